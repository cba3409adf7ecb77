//! Passes that attend to a part of what is cached, against the plain cache.

use crate::world::device;
use burn::prelude::*;
use proptest::prelude::*;
use specdec_core::{
    CacheError, Error, HeadWeights, ModelSpec, Phase, RowKeys, RowSpan, Score, Selection,
    SelectionError, SelectiveCache, SeqId,
};
use specdec_ragged::{SlotOptions, Strategy as Batching};
use specdec_testkit::VecCache;
use std::sync::Arc;

const LAYERS: usize = 3;
const LISTED: [usize; 2] = [0, 2];

fn spec(window: Option<usize>) -> ModelSpec {
    let mut spec = ModelSpec::new(16, LAYERS, 8, &device()).with_heads(4, 2, 8);
    spec.windows = vec![None, window, window];
    spec
}

fn numbers(seed: u64, tokens: usize, heads: usize) -> Tensor<3> {
    let values = (0..tokens * heads * 8).map(|i| {
        let mixed = (seed * 1_000_003 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    });
    let values: Vec<f32> = values.collect();
    Tensor::from_data(TensorData::new(values, [tokens, heads, 8]), &device())
}

fn values(tensor: Tensor<3>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().expect("numbers")
}

/// Attended values and scores, per layer.
type Seen = Vec<(Vec<f32>, Option<(Vec<usize>, Vec<f32>)>)>;

fn pass<C: SelectiveCache>(
    cache: &mut C,
    (rows, phase): (&[RowSpan], Phase),
    selection: &Selection,
    seed: u64,
) -> Seen {
    let tokens = rows.iter().map(|row| row.len).sum();
    let mut attend = cache
        .begin_selective(rows, phase, selection)
        .expect("a legal pass");
    let layers = (0..LAYERS as u64).map(|layer| {
        let at = |n| seed * 100 + layer * 10 + n;
        let (q, k, v) = (
            numbers(at(0), tokens, 4),
            numbers(at(1), tokens, 2),
            numbers(at(2), tokens, 2),
        );
        let seen = attend
            .attend_weighed(layer as usize, q, k, v)
            .expect("attention");
        let weights = seen.weights.map(|w| (w.dims().to_vec(), values(w)));
        (values(seen.out), weights)
    });
    layers.collect()
}

/// A pool of rows: committed lengths, and tokens of the pass.
#[derive(Debug, Clone)]
struct Case {
    rows: Vec<(usize, usize)>,
    window: Option<usize>,
    keys: Vec<Option<(f64, f64)>>,
    queries: Vec<prop::sample::Index>,
    heads: HeadWeights,
    score: Score,
    /// Key lists by head.
    by_head: bool,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let keys = prop::option::weighted(0.8, (0.0..1.0f64, 0.0..=1.0f64));
    (
        prop::collection::vec((0usize..40, 1usize..5), 1..4),
        prop::option::of(1usize..12),
        prop::collection::vec(keys, 3),
        prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        prop_oneof![Just(HeadWeights::Mean), Just(HeadWeights::PerKvHead)],
        prop_oneof![Just(Score::Weights), Just(Score::Logits)],
        any::<bool>(),
        0u64..1000,
    )
        .prop_map(
            |(rows, window, keys, queries, heads, score, by_head, seed)| Case {
                rows,
                window,
                keys,
                queries,
                heads,
                score,
                by_head,
                seed,
            },
        )
}

impl Case {
    fn spans(&self) -> Vec<RowSpan> {
        let rows = (0..).zip(&self.rows);
        rows.map(|(seq, &(start, len))| RowSpan {
            seq: SeqId(seq),
            start,
            len,
        })
        .collect()
    }

    /// About this share of the positions below the tail, another set for each layer and, where asked, head.
    fn selection(&self) -> Selection {
        let keys = self.keys.iter().zip(&self.rows).map(|(keys, &(start, _))| {
            let (share, tail) = (*keys)?;
            let tail = (tail * start as f64) as usize;
            let list = |layer: usize, head: u64| -> Arc<[u32]> {
                let kept = (0..tail as u32).filter(|&p| {
                    let mixed = (self.seed + layer as u64 * 7 + head * 13 + u64::from(p) * 31)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    ((mixed >> 40) as f64) < share * (1u64 << 24) as f64
                });
                kept.collect()
            };
            let listed = (0..LAYERS).map(|layer| LISTED.contains(&layer).then_some(layer));
            Some(Arc::new(match self.by_head {
                true => {
                    let lists = listed.map(|l| l.map(|l| (0..2).map(|h| list(l, h)).collect()));
                    RowKeys::by_head(lists.collect(), tail)
                }
                false => RowKeys::new(listed.map(|l| l.map(|l| list(l, 0))).collect(), tail),
            }))
        });
        let tokens: usize = self.rows.iter().map(|(_, len)| len).sum();
        Selection {
            rows: keys.collect(),
            queries: self
                .queries
                .iter()
                .map(|query| query.index(tokens))
                .collect(),
            heads: self.heads,
            score: self.score,
        }
    }

    /// A cache with the committed entries.
    fn prepare<C: SelectiveCache>(&self, cache: &mut C) {
        for span in self.spans().into_iter().filter(|span| span.start > 0) {
            let row = RowSpan {
                start: 0,
                len: span.start,
                ..span
            };
            let all = Selection::default();
            pass(
                cache,
                (&[row], Phase::Prefill),
                &all,
                self.seed + span.seq.0,
            );
            cache.commit(&[row.len]).expect("a commit");
        }
    }

    fn run<C: SelectiveCache>(&self, cache: &mut C, selection: &Selection) -> Seen {
        self.prepare(cache);
        let spans = self.spans();
        pass(cache, (&spans, Phase::Draft), selection, self.seed + 50)
    }
}

fn near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn selected_attention_and_its_weights(case in cases()) {
        let spec = spec(case.window);
        let selection = case.selection();
        let want = case.run(&mut VecCache::new(&spec), &selection);
        for strategy in [Batching::Slots, Batching::EqSpec] {
            let options = SlotOptions { chunk: 5, ..SlotOptions::default() };
            let mut cache = strategy.cache(&spec, &options).expect("good options");
            let got = case.run(&mut cache, &selection);
            for (layer, ((out, weights), (want_out, want_weights))) in got.iter().zip(&want).enumerate() {
                prop_assert!(near(out, want_out), "{}, layer {}", strategy, layer);
                prop_assert_eq!(weights.is_some(), !selection.queries.is_empty());
                let (Some((shape, weights)), Some((want_shape, want_weights))) = (weights, want_weights) else {
                    continue;
                };
                let width = if case.heads == HeadWeights::Mean { 1 } else { 2 };
                prop_assert_eq!(&shape[..2], &[selection.queries.len(), width]);
                // The columns may end with the rows that are asked about.
                let (columns, want_columns) = (shape[2], want_shape[2]);
                for (got, want) in weights.chunks(columns).zip(want_weights.chunks(want_columns)) {
                    prop_assert!(near(got, &want[..columns]), "{}, layer {}: {:?} {:?}", strategy, layer, got, want);
                    prop_assert!(want[columns..].iter().all(|w| *w == 0.0));
                    let sum: f32 = got.iter().sum();
                    prop_assert!(case.score == Score::Logits || (sum - 1.0).abs() < 1e-4);
                }
            }
        }
    }

    /// Lists of every position, and no lists, have the same bits.
    #[test]
    fn all_keys_are_no_selection(case in cases()) {
        let spec = spec(case.window);
        let listed = |start: usize, tail: usize| {
            let all: Arc<[u32]> = (0..tail as u32).collect();
            prop_assert!(tail <= start);
            Ok(Some(Arc::new(RowKeys::new(vec![Some(all); LAYERS], tail))))
        };
        let rows = case.rows.iter().map(|&(start, len)| listed(start, start.saturating_sub(len)));
        let selection = Selection { rows: rows.collect::<Result<_, TestCaseError>>()?, ..Selection::default() };
        let make = || Batching::Slots.cache(&spec, &SlotOptions::default()).expect("good options");
        let all = case.run(&mut make(), &selection);
        let none = case.run(&mut make(), &Selection::default());
        for ((all, _), (none, _)) in all.iter().zip(&none) {
            prop_assert!(all.iter().zip(none).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

fn refused<C: SelectiveCache>(cache: &mut C) {
    let rows = [RowSpan {
        seq: SeqId(0),
        start: 0,
        len: 10,
    }];
    pass(cache, (&rows, Phase::Prefill), &Selection::default(), 1);
    cache.commit(&[10]).expect("a commit");
    let rows = [RowSpan {
        start: 10,
        len: 2,
        ..rows[0]
    }];
    let keys = |layers: Vec<Option<Vec<u32>>>, tail| {
        let layers = layers.into_iter().map(|list| list.map(Arc::from));
        Selection {
            rows: vec![Some(Arc::new(RowKeys::new(layers.collect(), tail)))],
            ..Selection::default()
        }
    };
    let mut too_many = keys(vec![], 0);
    too_many.rows.push(None);
    let query = Selection {
        queries: vec![0, 2],
        ..Selection::default()
    };
    let mut refuse =
        |selection: &Selection| match cache.begin_selective(&rows, Phase::Draft, selection) {
            Err(Error::Cache(CacheError::Selection(error))) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was taken"),
        };
    type E = SelectionError;
    assert!(matches!(refuse(&too_many), E::Rows { given: 2, rows: 1 }));
    assert!(matches!(
        refuse(&keys(vec![], 11)),
        E::Tail {
            row: 0,
            tail: 11,
            start: 10
        }
    ));
    assert!(matches!(
        refuse(&query),
        E::Query {
            query: 2,
            tokens: 2
        }
    ));
    let layer = refuse(&keys(vec![None, None, None, Some(vec![])], 0));
    assert!(matches!(
        layer,
        E::Layer {
            layer: 3,
            layers: 3,
            ..
        }
    ));
    let three: Vec<Arc<[u32]>> = vec![Arc::from([0]); 3];
    let three = Selection {
        rows: vec![Some(Arc::new(RowKeys::by_head(vec![Some(three)], 5)))],
        ..Selection::default()
    };
    assert!(matches!(
        refuse(&three),
        E::Heads {
            layer: 0,
            lists: 3,
            kv_heads: 2,
            ..
        }
    ));
    for (list, index) in [
        (vec![1, 5], 1),
        (vec![3, 2], 1),
        (vec![2, 2], 1),
        (vec![9], 0),
    ] {
        let error = refuse(&keys(vec![None, Some(list)], 5));
        assert!(
            matches!(error, E::Key { row: 0, layer: 1, index: i, tail: 5, .. } if i == index),
            "{error}"
        );
    }
    // Nothing has changed: the pass can begin, and plain passes see everything again.
    drop(
        cache
            .begin_selective(&rows, Phase::Draft, &keys(vec![Some(vec![1])], 5))
            .expect("a pass"),
    );
    cache.rollback();
    assert_eq!(cache.len(SeqId(0)), 10);
    drop(cache.begin(&rows, Phase::Verify).expect("a pass"));
    cache.rollback();
}

#[test]
fn selections_that_do_not_fit_are_refused() {
    for strategy in [Batching::Slots, Batching::EqSpec] {
        let cache = strategy.cache(&spec(None), &SlotOptions::default());
        refused(&mut cache.expect("good options"));
    }
    refused(&mut VecCache::new(&spec(None)));
}
