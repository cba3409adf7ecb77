//! What is committed is exact, and what is not is never read.

use crate::hooks::{Hook, Hooked, Poison};
use crate::world::{
    Target, bare, by_hand, fill, flat, pass, plain, prompt, run, slots, span, tensor, transformer,
    vegas,
};
use burn::prelude::*;
use specdec_core::{
    Block, Decoder, DecoderBuilder, DraftContext, DraftRow, Drafter, Error, FixedLength, KvCache,
    KvSegment, Phase, Request, RowSpan, Selection, SeqId, TargetModel,
};
use specdec_ragged::SlotCache;
use specdec_testkit::HashLm;
use specdec_vegas::{Random, Vegas, VegasDrafter};
use std::collections::HashMap;
use std::sync::Arc;

fn speculating(target: &Target, k: usize) -> DecoderBuilder {
    Decoder::builder(Arc::clone(target))
        .drafter(VegasDrafter::new())
        .controller(FixedLength(k))
        .prefill_chunk(7)
}

fn numbers(tensor: Tensor<3>) -> Vec<f32> {
    tensor
        .into_data()
        .try_into_vec_as::<f32>()
        .expect("numbers")
}

/// Entries of a sequence as a prefill in one piece computes them.
fn fresh(target: &Target, tokens: &[u32]) -> KvSegment {
    let mut cache = slots(target.spec());
    let block = Block::single(SeqId(0), 0, tokens, &target.spec().device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("a pass");
    target
        .forward(&block, &mut *attend, &[])
        .expect("a forward");
    drop(attend);
    cache.commit(&[tokens.len()]).expect("a commit");
    cache.export(SeqId(0), 0..tokens.len()).expect("a copy")
}

/// Per layer, the greatest difference of the cache's entries from fresh ones.
fn drift(target: &Target, decoder: &Decoder, seq: SeqId) -> Vec<f32> {
    let Some(tokens) = decoder.tokens(seq) else {
        return Vec::new();
    };
    let len = decoder.cache().len(seq);
    if len == 0 {
        return Vec::new();
    }
    let held = decoder.cache().export(seq, 0..len).expect("a copy");
    let fresh = fresh(target, &tokens[..len]);
    let layers = held.layers.into_iter().zip(fresh.layers);
    let apart = |a: Vec<f32>, b: Vec<f32>| {
        let all = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
        all.fold(0.0, f32::max)
    };
    layers
        .map(|((k, v), (k2, v2))| {
            apart(numbers(k), numbers(k2)).max(apart(numbers(v), numbers(v2)))
        })
        .collect()
}

/// NaN behind every row: drafts write before they read, and nothing reads beyond its own position.
#[test]
fn t04_dead_slots_are_never_read() {
    let hash: Target = Arc::new(HashLm::new(20, &crate::world::device()));
    for (target, vocab) in [(transformer(), 288), (hash, 20)] {
        let request = || Request::new(prompt(25, vocab)).max_new_tokens(40);
        let want = plain(&target, request());
        let clean = vegas(&target, bare(0.1, 2));
        let dirty = Vegas::new(Poison::slots(target.spec(), 9), target.spec(), bare(0.1, 2));
        let decode = |decoder: DecoderBuilder| {
            let mut decoder = decoder.build().expect("the parts fit");
            decoder.submit(request()).expect("a good request");
            run(&mut decoder, |_| {}).remove(&SeqId(0)).expect("done")
        };
        let clean = decode(speculating(&target, 4).cache(clean));
        let dirty = decode(speculating(&target, 4).cache(dirty));
        assert_eq!(clean.tokens, want.tokens);
        assert_eq!(dirty.tokens, want.tokens);
        // The same drafts were accepted: they are not poisoned either.
        assert_eq!(dirty.stats.by_position, clean.stats.by_position);
        assert!(clean.stats.accepted < clean.stats.drafted);
    }
}

/// The control: NaN below the committed length is read.
#[test]
fn t04_a_committed_nan_is_seen() {
    let target = transformer();
    let mut cache = vegas(&target, bare(0.1, 2));
    let tokens = prompt(9, 288);
    let mut segment = fresh(&target, &tokens[..8]);
    for (k, v) in &mut segment.layers {
        *k = k.clone() * f32::NAN;
        *v = v.clone() * f32::NAN;
    }
    cache.import(SeqId(0), &segment).expect("a segment");
    let block = Block::single(SeqId(0), 8, &tokens[8..], &target.spec().device);
    let mut attend = cache.begin(block.rows(), Phase::Verify).expect("a pass");
    let hidden = target
        .forward(&block, &mut *attend, &[])
        .expect("a forward")
        .hidden;
    let hidden = hidden
        .into_data()
        .try_into_vec_as::<f32>()
        .expect("numbers");
    assert!(hidden.iter().all(|x| x.is_nan()));
}

#[test]
fn t05_entries_are_those_of_plain_decoding() {
    let target = transformer();
    let cache = Vegas::with_select(
        slots(target.spec()),
        target.spec(),
        bare(0.05, 1),
        Random::default(),
    );
    let mut decoder = speculating(&target, 4)
        .cache(cache)
        .build()
        .expect("the parts fit");
    for len in [3, 30, 17] {
        decoder
            .submit(Request::new(prompt(len, 288)).max_new_tokens(24))
            .expect("a good request");
    }
    let done = run(&mut decoder, |decoder| {
        for seq in 0..3 {
            let drift = drift(&target, decoder, SeqId(seq));
            assert!(drift.iter().all(|d| *d == 0.0), "sequence {seq}: {drift:?}");
        }
    });
    assert!(
        done.values()
            .any(|done| done.stats.accepted < done.stats.drafted)
    );
    assert!(done.values().any(|done| done.stats.accepted > 0));
}

/// The classic mistake: what a draft computed is kept for drafts that are accepted.
#[derive(Default)]
struct Reuse {
    rows: Vec<RowSpan>,
    phase: Option<Phase>,
    drafted: HashMap<(SeqId, usize, usize), (Tensor<3>, Tensor<3>)>,
}

impl Hook for Reuse {
    fn begun(&mut self, rows: &[RowSpan], phase: Phase, _: &Selection) {
        self.rows = rows.to_vec();
        self.phase = Some(phase);
    }

    fn entries(&mut self, layer: usize, k: Tensor<3>, v: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let places = self
            .rows
            .iter()
            .flat_map(|row| (0..row.len).map(|t| (row.seq, row.start + t)));
        let (mut ks, mut vs) = (Vec::new(), Vec::new());
        for (at, (seq, position)) in places.enumerate() {
            let own = (k.clone().narrow(0, at, 1), v.clone().narrow(0, at, 1));
            let place = (seq, position, layer);
            let (k, v) = match self.phase {
                Some(Phase::Draft) => {
                    self.drafted.insert(place, own.clone());
                    own
                }
                _ => self.drafted.remove(&place).unwrap_or(own),
            };
            ks.push(k);
            vs.push(v);
        }
        (Tensor::cat(ks, 0), Tensor::cat(vs, 0))
    }
}

/// The control: then entries of the second layer drift, which the check above sees.
#[test]
fn t05_reused_drafts_are_found_out() {
    let target = transformer();
    let inner: Hooked<SlotCache, Reuse> = Hooked {
        inner: slots(target.spec()),
        hook: Reuse::default(),
    };
    let cache = Vegas::with_select(inner, target.spec(), bare(0.05, 1), Random::default());
    let mut decoder = speculating(&target, 4)
        .cache(cache)
        .build()
        .expect("the parts fit");
    decoder
        .submit(Request::new(prompt(30, 288)).max_new_tokens(24))
        .expect("a good request");
    let mut worst = [0.0f32; 2];
    run(&mut decoder, |decoder| {
        for (worst, d) in worst.iter_mut().zip(drift(&target, decoder, SeqId(0))) {
            *worst = worst.max(d);
        }
    });
    assert!(worst[1] > 1e-2, "{worst:?}");
}

/// Keys keep the rotation of their own position: a query at 100 and a key at 97 are 3 apart, whichever
/// entries are left out between and before them.
#[test]
fn t10_positions_are_absolute() {
    let mut spec = by_hand(1, 1, 1);
    spec.context = 200;
    let rule = crate::world::ByLayer(|_| Some(vec![97]));
    let mut cache = Vegas::with_select(slots(&spec), &spec, bare(0.01, 1), rule);
    let rotated = |p: usize| [(p as f32).cos(), (p as f32).sin(), 0.0, 0.0];
    let run = |cache: &mut dyn KvCache, row: RowSpan, phase| {
        pass(cache, &[row], phase, 1, |_| {
            let k = tensor(row.len, 1, |t, _| rotated(row.start + t));
            let v = tensor(row.len, 1, |t, _| {
                [f32::from(u8::from(row.start + t == 97)), 0.0, 0.0, 0.0]
            });
            [k.clone(), k, v]
        })
    };
    run(&mut cache, span(0, 0, 100), Phase::Prefill);
    cache.commit(&[100]).expect("a commit");
    let out = run(&mut cache, span(0, 100, 1), Phase::Draft);
    cache.rollback();
    let (near, own) = (3.0f32.cos().exp(), 1.0f32.exp());
    assert!(
        (out[0][0] - near / (near + own)).abs() < 1e-5,
        "{}",
        out[0][0]
    );
}

/// Query head h reads key/value head h / 3, whatever is selected.
#[test]
fn t11_grouped_heads() {
    let spec = by_hand(2, 9, 3);
    let rule = crate::world::ByLayer(|layer| Some(vec![layer as u32, 5]));
    let mut cache = Vegas::with_select(slots(&spec), &spec, bare(0.01, 1), rule);
    fill(&mut cache, 0, 12, &spec);
    let out = flat(&mut cache, &[span(0, 12, 1)], Phase::Draft, &spec);
    cache.rollback();
    for (layer, out) in out.iter().enumerate() {
        for (head, out) in out.chunks(4).enumerate() {
            assert_eq!(out[1], (head / 3) as f32);
            // And all heads read the same positions: the layer's own, 5, and itself.
            let mean = (layer + 5 + 12) as f32 / 3.0;
            assert!((out[0] - mean).abs() < 1e-5, "{} instead of {mean}", out[0]);
        }
    }
}

/// Every layer attends to its own keys.
#[test]
fn t20_each_layer_has_its_own_keys() {
    let spec = by_hand(4, 1, 1);
    let drafted = |rule: fn(usize) -> Option<Vec<u32>>| {
        let rule = crate::world::ByLayer(rule);
        let mut cache = Vegas::with_select(slots(&spec), &spec, bare(0.01, 1), rule);
        fill(&mut cache, 0, 10, &spec);
        // Calls in another order than the layers', and a pass that was left out, shift nothing.
        drop(
            cache
                .begin(&[span(0, 10, 1)], Phase::Draft)
                .expect("a draft"),
        );
        cache.rollback();
        let mut attend = cache
            .begin(&[span(0, 10, 1)], Phase::Draft)
            .expect("a draft");
        let mut seen = vec![0.0; 4];
        for layer in [2, 0, 3, 1] {
            let at = |_, _| [10.0, 0.0, 1.0, 0.0];
            let zero = || tensor(1, 1, |_, _| [0.0; 4]);
            let out = attend
                .attend(layer, zero(), zero(), tensor(1, 1, at))
                .expect("attention");
            seen[layer] = numbers(out)[0];
        }
        seen
    };
    let mean = |key: f32| (key + 10.0) / 2.0;
    assert_eq!(
        drafted(|layer| Some(vec![layer as u32])),
        [mean(0.0), mean(1.0), mean(2.0), mean(3.0)]
    );
    assert_eq!(drafted(|_| Some(vec![0])), [mean(0.0); 4]);
    // Positions that are no candidates, twice named or in disorder do no harm.
    assert_eq!(
        drafted(|_| Some(vec![99, 10, 3, 3, 1, u32::MAX])),
        [(3.0 + 1.0 + 10.0) / 3.0; 4]
    );
    assert_eq!(drafted(|_| Some(vec![])), [10.0; 4]);
}

/// A shared target is a target.
struct Shared(Target);

impl TargetModel for Shared {
    fn spec(&self) -> &specdec_core::ModelSpec {
        self.0.spec()
    }
    fn forward(
        &self,
        block: &Block,
        attend: &mut dyn specdec_core::Attend,
        taps: &[usize],
    ) -> specdec_core::Result<specdec_core::Forward> {
        self.0.forward(block, attend, taps)
    }
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.0.logits(hidden)
    }
    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.0.embed(tokens)
    }
}

/// An error of the target in the middle of a draft leaves the cache as it was.
#[test]
fn a_failed_draft_leaves_nothing_behind() {
    let target = transformer();
    let want = plain(&target, Request::new(prompt(20, 288)).max_new_tokens(20));
    let flaky = specdec_testkit::scripted::FlakyTarget::new(
        Shared(Arc::clone(&target)),
        [1, 4, 5, 9, 15, 16, 22],
    );
    let flaky: Target = Arc::new(flaky);
    let cache = vegas(&target, bare(0.1, 2));
    let mut decoder = speculating(&flaky, 3)
        .cache(cache)
        .build()
        .expect("the parts fit");
    decoder
        .submit(Request::new(prompt(20, 288)).max_new_tokens(20))
        .expect("a good request");
    let mut failed = 0;
    let mut tokens = None;
    while !decoder.is_idle() {
        match decoder.step() {
            Ok(events) => {
                for event in events {
                    if let specdec_core::Event::Finished(done) = event {
                        tokens = Some(done.tokens);
                    }
                }
            }
            Err(Error::Target(_)) => failed += 1,
            Err(other) => panic!("{other}"),
        }
        let drift = drift(&target, &decoder, SeqId(0));
        assert!(drift.iter().all(|d| *d == 0.0), "{drift:?}");
    }
    assert_eq!(failed, 7);
    assert_eq!(tokens, Some(want.tokens));
}

/// A drafter by itself takes back what it staged before the target failed.
#[test]
fn a_failed_draft_is_taken_back() {
    let target = transformer();
    let flaky = specdec_testkit::scripted::FlakyTarget::new(Shared(Arc::clone(&target)), [2]);
    let mut cache = vegas(&target, bare(0.1, 2));
    let tokens = prompt(20, 288);
    cache
        .import(SeqId(0), &fresh(&target, &tokens[..19]))
        .expect("a segment");
    let sampler = specdec_core::sampling::Sampler::greedy();
    let row = DraftRow::new(SeqId(0), &tokens, 20, 5, &sampler);
    let draft = |cache: &mut dyn KvCache| {
        let cx = DraftContext {
            rows: std::slice::from_ref(&row),
            target: &flaky,
            cache,
        };
        VegasDrafter::new().draft(cx)
    };
    assert!(matches!(draft(&mut cache), Err(Error::Target(_))));
    drop(
        cache
            .begin(&[span(0, 19, 1)], Phase::Verify)
            .expect("no pass is open"),
    );
    cache.rollback();
    let again = draft(&mut cache).expect("a draft");
    assert_eq!(again.rows[0].tokens.len(), 5);
}
