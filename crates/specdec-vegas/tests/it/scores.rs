//! What is collected and how it is put together, by hand.

use crate::hooks::{Hook, Hooked};
use crate::world::{Asked, Log, Recording, bare, by_hand, fill, flat, pass, slots, span, tensor};
use burn::prelude::*;
use specdec_core::{KvCache, ModelSpec, Phase, SelectiveCache};
use specdec_ragged::SlotCache;
use specdec_vegas::{
    Candidates, CheckedConfig, Collect, HeadSets, Ranked, Score, Select, Vegas, VegasConfig,
};

pub(crate) fn recorded<C: SelectiveCache>(
    inner: C,
    spec: &ModelSpec,
    config: CheckedConfig,
) -> (Vegas<C>, Log<Asked>) {
    let (rule, log) = Recording::new(Ranked::new(&config));
    (Vegas::with_select(inner, spec, config, rule), log)
}

/// Begins a draft and ends it.
pub(crate) fn draft(cache: &mut dyn KvCache, seq: u64) {
    let row = span(seq, cache.len(specdec_core::SeqId(seq)), 1);
    drop(cache.begin(&[row], Phase::Draft).expect("a draft"));
    cache.rollback();
}

pub(crate) fn take(log: &Log<Asked>) -> Vec<Asked> {
    std::mem::take(&mut *log.lock().expect("no panic"))
}

pub(crate) fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{got:?} {want:?}");
    let near = got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near, "{got:?} instead of {want:?}");
}

/// Queries of unit vectors: query (t, h) scores key j with component `axis(t, h)` of it.
pub(crate) fn axes(
    cache: &mut dyn KvCache,
    row: specdec_core::RowSpan,
    phase: Phase,
    (heads, kv_heads): (usize, usize),
    (axis, keys): (impl Fn(usize, usize) -> usize, &[[f32; 4]]),
) {
    pass(cache, &[row], phase, 1, |_| {
        let unit = |t, h| {
            let mut q = [0.0; 4];
            q[axis(t, h)] = 1.0;
            q
        };
        let k = tensor(row.len, kv_heads, |t, _| keys[t]);
        [tensor(row.len, heads, unit), k.clone(), k]
    });
}

pub(crate) fn ln(x: f32) -> f32 {
    x.ln()
}

/// Two heads that look at four keys: what the rule is asked, by set of keys.
pub(crate) fn two_heads(kv_heads: usize, score: Score, heads: HeadSets) -> Vec<Asked> {
    let spec = by_hand(1, 2, kv_heads);
    let config = VegasConfig {
        ratio: 0.5,
        min: 1,
        score,
        heads,
        ..VegasConfig::paper()
    };
    let config = config.check().expect("a good config");
    let (mut cache, log) = recorded(slots(&spec), &spec, config);
    let keys = [
        [ln(1.0), ln(6.0), 0.0, 0.0],
        [ln(2.0), 0.0, 0.0, 0.0],
        [ln(4.0), 0.0, 0.0, 0.0],
        [ln(1.0), ln(8.0), 0.0, 0.0],
    ];
    let heads = (2, kv_heads);
    let row = span(0, 0, 4);
    axes(&mut cache, row, Phase::Prefill, heads, (|_, h| h, &keys));
    cache.commit(&[4]).expect("a commit");
    draft(&mut cache, 0);
    let asked = take(&log);
    for asked in &asked {
        assert_eq!((asked.count, asked.keys, asked.budget), (4, 4, 2));
    }
    asked
}

/// The weights of two heads, averaged: not their logits, and not the greater of the two.
#[test]
fn t01_the_mean_over_heads_of_softmax_weights() {
    // Heads of one group, and of two.
    for kv_heads in [1, 2] {
        let asked = two_heads(kv_heads, Score::Weights, HeadSets::Shared).remove(0);
        close(&asked.weights, &[0.25, 0.15625, 0.28125, 0.3125]);
        assert_eq!(asked.chosen, Some(vec![2, 3]));
    }
}

/// The first query sees three keys, the last five; each is normalised over what it sees.
fn two_rows(collect: Collect) -> Asked {
    let spec = by_hand(1, 1, 1);
    let config = VegasConfig {
        ratio: 0.2,
        min: 1,
        collect,
        ..VegasConfig::paper()
    };
    let config = config.check().expect("a good config");
    let (mut cache, log) = recorded(slots(&spec), &spec, config);
    let first = [ln(2.0), 0.0, 0.0, 0.0, 0.0];
    let last = [0.0, 0.0, ln(6.0), ln(4.0), ln(4.0)];
    let keys: Vec<[f32; 4]> = (0..5).map(|j| [first[j], last[j], 0.0, 0.0]).collect();
    axes(
        &mut cache,
        span(0, 0, 2),
        Phase::Prefill,
        (1, 1),
        (|_, _| 2, &keys[..2]),
    );
    cache.commit(&[2]).expect("a commit");
    // The query between them is as if it looked at nothing in particular.
    let axis = |t, _| [0, 2, 1][t];
    axes(
        &mut cache,
        span(0, 2, 3),
        Phase::Verify,
        (1, 1),
        (axis, &keys[2..]),
    );
    cache.commit(&[1]).expect("a commit");
    draft(&mut cache, 0);
    take(&log).remove(0)
}

#[test]
fn t02_two_queries_with_different_ranges() {
    let asked = two_rows(Collect::Ends);
    close(&asked.weights, &[0.28125, 0.15625, 0.3125]);
    assert_eq!((asked.count, asked.keys, asked.budget), (3, 5, 1));
    assert_eq!(asked.chosen, Some(vec![2]));
}

#[test]
fn other_queries_when_asked_for() {
    close(&two_rows(Collect::Last).weights, &[0.0625, 0.0625, 0.375]);
    let (a, b) = ([0.5, 0.25, 0.25], [0.0625, 0.0625, 0.375]);
    let all: Vec<f32> = (0..3).map(|j| (a[j] + 0.25 + b[j]) / 3.0).collect();
    close(&two_rows(Collect::All).weights, &all);
}

/// Positions 10..=14 are verified. Two drafts are accepted, and tails begin at the anchor that was
/// verified first, whatever is accepted.
#[test]
fn t03_candidates_and_tails() {
    let spec = by_hand(2, 1, 1);
    let (inner, begun) = crate::hooks::spied(&spec);
    let (mut cache, log) = recorded(inner, &spec, bare(0.25, 1));
    fill(&mut cache, 0, 10, &spec);
    flat(&mut cache, &[span(0, 10, 5)], Phase::Verify, &spec);
    cache.commit(&[3]).expect("a commit");
    let meter = cache.meter();
    let mut attended = Vec::new();
    for j in 0..4 {
        let before = meter.read().attended;
        let out = flat(&mut cache, &[span(0, 13 + j, 1)], Phase::Draft, &spec);
        // All look alike, so the lowest four are kept, and what is seen is averaged.
        let seen = (0..4).chain(11..=13 + j);
        let mean = seen.clone().sum::<usize>() as f32 / seen.count() as f32;
        for layer in out {
            assert!((layer[0] - mean).abs() < 1e-5, "{} not {mean}", layer[0]);
        }
        attended.push(meter.read().attended - before);
    }
    cache.rollback();
    for asked in take(&log) {
        assert_eq!((asked.count, asked.keys, asked.budget), (11, 15, 4));
    }
    let begun = begun.lock().expect("no panic");
    let drafts: Vec<_> = begun.iter().filter(|b| b.phase == Phase::Draft).collect();
    assert_eq!(drafts.len(), 4);
    for draft in drafts {
        let keys = draft.selection.row(0).expect("a sparse row");
        assert_eq!(keys.tail(), 11);
        assert_eq!(
            keys.lists()
                .map(|(l, k)| (l, k[0].len()))
                .collect::<Vec<_>>(),
            [(0, 4), (1, 4)]
        );
    }
    // k + 3 in each layer at the first step, {11, 12, 13} beside the keys; k + 6 at the last.
    assert_eq!(attended, [2 * 7, 2 * 8, 2 * 9, 2 * 10]);
}

/// Each layer ranks by what it looked at itself.
#[test]
fn t20_each_layer_ranks_for_itself() {
    let spec = by_hand(3, 1, 1);
    let (mut cache, log) = recorded(slots(&spec), &spec, bare(0.1, 1));
    pass(&mut cache, &[span(0, 0, 10)], Phase::Prefill, 3, |layer| {
        let looked = |t| if t == 7 - 2 * layer { 5.0 } else { 0.0 };
        let k = tensor(10, 1, |t, _| [looked(t), 0.0, 0.0, 0.0]);
        [tensor(10, 1, |_, _| [1.0, 0.0, 0.0, 0.0]), k.clone(), k]
    });
    cache.commit(&[10]).expect("a commit");
    draft(&mut cache, 0);
    let chosen: Vec<_> = take(&log).into_iter().map(|asked| asked.chosen).collect();
    assert_eq!(chosen, [Some(vec![7]), Some(vec![5]), Some(vec![3])]);
}

/// A reported weight beyond a row's candidates, however large, is nobody's.
struct Loud {
    from: usize,
}

impl Hook for Loud {
    fn weights(&mut self, weights: Tensor<3>) -> Tensor<3> {
        let [queries, width, columns] = weights.dims();
        let from = self.from.min(columns);
        let kept = weights.narrow(2, 0, from);
        let loud = Tensor::full(
            [queries, width, columns - from + 3],
            f32::INFINITY,
            &crate::world::device(),
        );
        Tensor::cat(vec![kept, loud], 2)
    }
}

#[test]
fn t09_nothing_beyond_the_candidates_counts() {
    let spec = by_hand(2, 2, 1);
    let inner: Hooked<SlotCache, Loud> = Hooked {
        inner: slots(&spec),
        hook: Loud { from: 9 },
    };
    let (mut cache, log) = recorded(inner, &spec, bare(0.3, 1));
    // A longer row beside it makes the reported rows longer than the short one.
    fill(&mut cache, 0, 8, &spec);
    cache.rollback();
    flat(&mut cache, &[span(0, 8, 4)], Phase::Verify, &spec);
    cache.commit(&[4]).expect("a commit");
    draft(&mut cache, 0);
    let asked = take(&log);
    assert_eq!(asked.len(), 2);
    for asked in asked {
        assert_eq!(asked.weights.len(), 9);
        assert!(asked.weights.iter().all(|w| w.is_finite()));
        assert!(asked.chosen.expect("some").iter().all(|&key| key < 9));
    }
    // No candidates, no keys.
    let none = Candidates::new(specdec_core::SeqId(0), 0, 0, &[]);
    assert_eq!(Ranked::default().select(&none), None);
}

/// A row beside a longer one reports and gets what it would alone.
#[test]
fn t09_a_short_row_beside_a_long_one() {
    let spec = by_hand(1, 2, 1);
    let alone = |long: usize| {
        let (mut cache, log) = recorded(slots(&spec), &spec, bare(0.3, 1));
        fill(&mut cache, 0, 7, &spec);
        let mut rows = vec![span(0, 7, 3)];
        if long > 0 {
            fill(&mut cache, 1, long, &spec);
            rows.insert(0, span(1, long, 2));
        }
        flat(&mut cache, &rows, Phase::Verify, &spec);
        cache.commit(&vec![2; rows.len()]).expect("a commit");
        draft(&mut cache, 0);
        let asked = take(&log).into_iter().filter(|a| a.seq.0 == 0);
        asked.map(|a| (a.weights, a.chosen)).collect::<Vec<_>>()
    };
    assert_eq!(alone(0), alone(40));
}

/// One head looks at position 0 only, in a context of 2048.
#[test]
fn t18_an_attention_sink_is_kept() {
    let spec = by_hand(1, 1, 1);
    let chosen = |sinks: usize, sink_weighs: bool| {
        let config = VegasConfig {
            ratio: 16.0 / 2048.0,
            min: 1,
            sinks,
            ..VegasConfig::paper()
        };
        let config = config.check().expect("a good config");
        let (mut cache, log) = recorded(slots(&spec), &spec, config);
        let mut keys = vec![[0.0; 4]; 2048];
        keys[0][0] = if sink_weighs { 6.0 } else { -6.0 };
        axes(
            &mut cache,
            span(0, 0, 2048),
            Phase::Prefill,
            (1, 1),
            (|_, _| 0, &keys),
        );
        cache.commit(&[2048]).expect("a commit");
        draft(&mut cache, 0);
        take(&log).remove(0).chosen.expect("some")
    };
    assert_eq!(chosen(0, true), (0..16).collect::<Vec<u32>>());
    assert_eq!(chosen(0, false), (1..17).collect::<Vec<u32>>());
    let reserved = chosen(4, false);
    assert_eq!(reserved, (0..16).collect::<Vec<u32>>());
}

/// Right after a prefill only the anchor is in the tail: the last prefilled token stays if it weighs
/// enough, or if recent positions are reserved.
#[test]
fn t19_the_last_prefilled_token() {
    let spec = by_hand(1, 1, 1);
    let chosen = |recent: usize| {
        let config = VegasConfig {
            ratio: 0.2,
            min: 1,
            recent,
            ..VegasConfig::paper()
        };
        let config = config.check().expect("a good config");
        let (mut cache, log) = recorded(slots(&spec), &spec, config);
        let mut keys = vec![[0.0; 4]; 20];
        keys[19][0] = -9.0;
        axes(
            &mut cache,
            span(0, 0, 20),
            Phase::Prefill,
            (1, 1),
            (|_, _| 0, &keys),
        );
        cache.commit(&[20]).expect("a commit");
        draft(&mut cache, 0);
        take(&log).remove(0).chosen.expect("some")
    };
    assert_eq!(chosen(0), [0, 1, 2, 3]);
    assert_eq!(chosen(1), [0, 1, 2, 19]);
}

/// With two tokens both queries count, with one it counts in full.
#[test]
fn t22_two_queries_and_one() {
    let spec = by_hand(1, 1, 1);
    let weights = |len: usize, phase: Phase| {
        let (mut cache, log) = recorded(slots(&spec), &spec, bare(0.2, 1));
        fill(&mut cache, 0, 3, &spec);
        let mut keys = vec![[0.0; 4]; len];
        keys[0][0] = ln(3.0);
        axes(
            &mut cache,
            span(0, 3, len),
            phase,
            (1, 1),
            (|_, _| 0, &keys),
        );
        cache.commit(&[len]).expect("a commit");
        draft(&mut cache, 0);
        let asked = take(&log);
        let last = asked.last().expect("a set");
        (last.weights.clone(), last.count, last.keys)
    };
    // One token: {1, 1, 1, 3} / 6.
    let (sixth, half) = (1.0 / 6.0, 0.5);
    let (one, count, keys) = weights(1, Phase::Verify);
    close(&one, &[sixth, sixth, sixth, half]);
    assert_eq!((count, keys), (4, 4));
    // Two: the second sees {1, 1, 1, 3, 1} / 7.
    let (two, count, keys) = weights(2, Phase::Verify);
    let mean = |a: f32, b: f32| (a + b) / 2.0;
    let (low, high) = (mean(sixth, 1.0 / 7.0), mean(half, 3.0 / 7.0));
    close(&two, &[low, low, low, high]);
    assert_eq!((count, keys), (4, 5));
    // A prefill of two: the last query only, and everything is a candidate.
    let (last, count, keys) = weights(2, Phase::Prefill);
    let seventh = 1.0 / 7.0;
    close(&last, &[seventh, seventh, seventh, 3.0 * seventh, seventh]);
    assert_eq!((count, keys), (5, 5));
}

#[test]
fn t23_the_lowest_positions_win_ties() {
    // With one thread and with several.
    let spec = by_hand(3, 2, 1);
    for threads in [1, 2, 3] {
        specdec_kernels::set_threads(threads);
        let (mut cache, log) = recorded(slots(&spec), &spec, bare(0.1, 1));
        fill(&mut cache, 0, 70, &spec);
        draft(&mut cache, 0);
        let asked = take(&log);
        assert_eq!(asked.len(), 3);
        for asked in asked {
            assert_eq!(asked.chosen, Some((0..7).collect()));
        }
    }
    specdec_kernels::set_threads(0);
}

/// Whatever a row's keys and queries are, what is collected is finite and a share of 1.
#[test]
fn t24_collected_weights_are_finite() {
    let spec = by_hand(2, 4, 2);
    let (mut cache, log) = recorded(slots(&spec), &spec, bare(0.1, 1));
    let huge = |t: usize, h: usize| [3e4 * t as f32, -1e4, h as f32, 700.0];
    pass(&mut cache, &[span(0, 0, 30)], Phase::Prefill, 2, |_| {
        [
            tensor(30, 4, huge),
            tensor(30, 2, huge),
            tensor(30, 2, huge),
        ]
    });
    cache.commit(&[30]).expect("a commit");
    draft(&mut cache, 0);
    for asked in take(&log) {
        let sum: f32 = asked.weights.iter().sum();
        assert!(asked.weights.iter().all(|w| (0.0..=1.0001).contains(w)));
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }
}
