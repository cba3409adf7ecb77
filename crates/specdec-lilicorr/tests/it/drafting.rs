//! What a draft is made from: committed context, and nothing else.

use crate::reference::{Reference, block_tokens};
use crate::world::{Stepper, Target, close, config, device, model, prompt, target};
use burn::prelude::*;
use specdec_core::{Block, DraftRow, KvCache, Phase, SeqId, Token, sampling::Sampler};
use specdec_lilicorr::{
    DFlashDrafter, DraftConfig, DraftModel, Lattice, LayerKind, LiLiCorrDrafter, top_candidates,
};
use specdec_testkit::VecCache;
use std::sync::Arc;

const SEQ: SeqId = SeqId(0);

fn numbers<const N: usize>(tensor: Tensor<N>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().expect("f32")
}

fn lattice(drafter: &LiLiCorrDrafter, target: &Target, seq: SeqId, content: &[Token]) -> Lattice {
    let sampler = Sampler::greedy();
    let row = DraftRow::new(seq, content, 1, 1, &sampler);
    drafter.lattice(&row, &**target).expect("a lattice")
}

/// The lattice of a drafter that has seen `content` in one pass.
fn fresh(model: &DraftModel, target: &Target, content: &[Token]) -> Lattice {
    let mut drafter = LiLiCorrDrafter::new(model.clone(), &**target).expect("it fits");
    if content.len() > 1 {
        Stepper::new(target).pass(&mut drafter, &[(SEQ, content, &[])], Phase::Prefill);
    }
    lattice(&drafter, target, SEQ, content)
}

fn same(a: &Lattice, b: &Lattice, what: &str) {
    assert_eq!(a.ids, b.ids, "{what}");
    let flat = |l: &Lattice| -> Vec<f32> {
        let pairs = l.pairs.iter().flatten().flatten();
        let all = l.logprobs.iter().flatten().chain(&l.start).chain(pairs);
        all.copied().collect()
    };
    close(&flat(a), &flat(b), 2e-5, what);
}

/// F5 and T32: the candidates of the incremental drafter are those of a slow reference over the
/// whole context, below and above the window of its sliding layer.
#[test]
fn f5_t32_t33_candidates_equal_a_slow_reference() {
    let target: Target = Arc::new(target(3));
    let mut config = config(&*target);
    config.layers = vec![LayerKind::Full, LayerKind::Sliding(12)];
    let model = model(&config, 5);
    let reference = Reference::new(&model);
    let spec = target.spec().clone();
    let text = prompt(40, spec.vocab, 1);
    let embed = |tokens: &[Token]| -> Vec<Vec<f32>> {
        let ids: Vec<i64> = tokens.iter().map(|&t| i64::from(t)).collect();
        let ids = Tensor::from_data(TensorData::new(ids, [tokens.len()]), &spec.device);
        numbers(target.embed(ids))
            .chunks(spec.hidden)
            .map(<[f32]>::to_vec)
            .collect()
    };
    let mut cache = VecCache::new(&spec);
    let block = Block::single(SEQ, 0, &text, &spec.device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("a row");
    let forward = target
        .forward(&block, &mut *attend, &config.taps)
        .expect("a pass");
    drop(attend);
    let taps = numbers(Tensor::cat(forward.taps, 1));
    let taps: Vec<Vec<f32>> = taps
        .chunks(config.taps.len() * spec.hidden)
        .map(<[f32]>::to_vec)
        .collect();
    let mut drafter = DFlashDrafter::with_candidates(model, &*target, 6).expect("it fits");
    let mut stepper = Stepper::new(&target);
    let sampler = Sampler::greedy();
    let mut drafts_differ = 0;
    for len in [2, 3, 9, 14, 15, 27, 40] {
        let content = &text[..len];
        stepper.pass(&mut drafter, &[(SEQ, content, &[])], Phase::Prefill);
        let row = DraftRow::new(SEQ, content, 1, 1, &sampler);
        let got = drafter.lattice(&row, &*target).expect("a lattice");
        let features = reference.fuse(&taps[..len - 1]);
        let embedded = embed(&block_tokens(&config, content[len - 1]));
        let hidden = reference.block(&features, &embedded);
        let hidden: Vec<f32> = hidden[1..].iter().flatten().map(|&v| v as f32).collect();
        let slots = config.slots();
        let hidden = Tensor::from_data(TensorData::new(hidden, [slots, spec.hidden]), &spec.device);
        let logits = numbers(target.logits(hidden));
        for (slot, logits) in logits.chunks(spec.vocab).enumerate() {
            let want = top_candidates(logits, 6);
            assert_eq!(got.ids[slot], want.ids, "{len} tokens, slot {slot}");
            close(
                &got.logprobs[slot],
                &want.logprobs,
                1e-4,
                "log-probabilities",
            );
        }
        drafts_differ += usize::from(got.ids[0][0] != got.ids[4][0]);
    }
    assert!(drafts_differ > 0, "slots see their positions");
}

/// T3: rejected drafts leave nothing behind, ten rounds long.
#[test]
fn t3_rejected_drafts_leave_no_trace() {
    let target: Target = Arc::new(target(1));
    let model = model(&config(&*target), 2);
    let mut drafter = LiLiCorrDrafter::new(model.clone(), &*target).expect("it fits");
    let mut stepper = Stepper::new(&target);
    let mut content = prompt(7, 288, 3);
    stepper.pass(&mut drafter, &[(SEQ, &content, &[])], Phase::Prefill);
    for round in 0..10 {
        let draft = stepper.draft(&mut drafter, &[(SEQ, &content, 5)], &Sampler::greedy());
        let rejected = draft[0].tokens.clone();
        assert_eq!(rejected.len(), 5);
        content.push((rejected[0] + 1 + round) % 288);
        stepper.pass(&mut drafter, &[(SEQ, &content, &rejected)], Phase::Verify);
        assert_eq!(drafter.positions(SEQ).len(), content.len() - 1);
        let got = lattice(&drafter, &target, SEQ, &content);
        same(
            &got,
            &fresh(&model, &target, &content),
            &format!("round {round}"),
        );
    }
}

/// T6 and T40: rows that commit 1, 4 and 8 tokens in one pass each get their own features and anchor.
#[test]
fn t6_t40_rows_of_a_batch_commit_different_numbers() {
    let target: Target = Arc::new(target(4));
    let model = model(&config(&*target), 6);
    let mut drafter = LiLiCorrDrafter::new(model.clone(), &*target).expect("it fits");
    let mut stepper = Stepper::new(&target);
    let texts: Vec<Vec<Token>> = (0..3).map(|i| prompt(30, 288, 10 + i)).collect();
    let mut lens = [3usize, 6, 2];
    let junk = prompt(9, 288, 77);
    let seqs = [SeqId(4), SeqId(9), SeqId(1)];
    for grow in [[0, 0, 0], [1, 4, 8], [8, 1, 4], [2, 2, 2]] {
        lens.iter_mut().zip(grow).for_each(|(len, g)| *len += g);
        let rows: Vec<_> = (0..3)
            .map(|i| (seqs[i], &texts[i][..lens[i]], &junk[..i * 2]))
            .collect();
        stepper.pass(&mut drafter, &rows, Phase::Verify);
        let asked: Vec<_> = rows
            .iter()
            .map(|(seq, content, _)| (*seq, *content, 5))
            .collect();
        let drafts = stepper.draft(&mut drafter, &asked, &Sampler::greedy());
        for i in 0..3 {
            assert_eq!(drafter.positions(seqs[i]).len(), lens[i] - 1);
            let want = fresh(&model, &target, &texts[i][..lens[i]]);
            same(
                &lattice(&drafter, &target, seqs[i], &texts[i][..lens[i]]),
                &want,
                "row",
            );
            assert_eq!(
                drafts[i].tokens,
                want.tokens(&want.greedy()),
                "row {i} in a batch"
            );
        }
    }
}

/// T5 and T8: prompts longer than any chunk, and beyond the first allocation.
#[test]
fn t5_t8_long_prompts_in_chunks() {
    let target: Target = Arc::new(target(2));
    let model = model(&config(&*target), 8);
    let text = prompt(150, 288, 4);
    let want = fresh(&model, &target, &text);
    for chunk in [1, 7, 50] {
        let mut drafter = LiLiCorrDrafter::new(model.clone(), &*target).expect("it fits");
        let mut stepper = Stepper::new(&target);
        while stepper.cached(SEQ) + 1 < text.len() {
            let end = (stepper.cached(SEQ) + chunk + 1).min(text.len());
            stepper.pass(&mut drafter, &[(SEQ, &text[..end], &[])], Phase::Prefill);
        }
        assert_eq!(drafter.positions(SEQ), (0..149).collect::<Vec<_>>());
        same(
            &lattice(&drafter, &target, SEQ, &text),
            &want,
            &format!("chunks of {chunk}"),
        );
    }
}

/// T7: a sequence that was evicted and comes again, under the same or another name, starts afresh.
#[test]
fn t7_a_sequence_that_comes_again_starts_afresh() {
    use specdec_core::Drafter;
    let target: Target = Arc::new(target(2));
    let model = model(&config(&*target), 9);
    let mut drafter = LiLiCorrDrafter::new(model.clone(), &*target).expect("it fits");
    Stepper::new(&target).pass(
        &mut drafter,
        &[(SEQ, &prompt(20, 288, 1), &[])],
        Phase::Prefill,
    );
    drafter.evict(SEQ);
    assert!(drafter.positions(SEQ).is_empty());
    let other = prompt(9, 288, 2);
    Stepper::new(&target).pass(&mut drafter, &[(SEQ, &other, &[])], Phase::Prefill);
    same(
        &lattice(&drafter, &target, SEQ, &other),
        &fresh(&model, &target, &other),
        "again",
    );
    // A single token has no position before it.
    drafter.evict(SEQ);
    let one = [5];
    let got = lattice(&drafter, &target, SEQ, &one);
    same(&got, &fresh(&model, &target, &one), "one token");
    // Without an eviction, positions that come again replace what was there.
    Stepper::new(&target).pass(
        &mut drafter,
        &[(SEQ, &prompt(30, 288, 1), &[])],
        Phase::Prefill,
    );
    Stepper::new(&target).pass(&mut drafter, &[(SEQ, &other, &[])], Phase::Prefill);
    same(
        &lattice(&drafter, &target, SEQ, &other),
        &fresh(&model, &target, &other),
        "replaced",
    );
}

/// T4: positions from a prefix cache have no features. There is no draft until the position before
/// the anchor has some, and then the draft is made of what is known.
#[test]
fn t4_positions_without_features() {
    let target: Target = Arc::new(target(2));
    let model = model(&config(&*target), 9);
    let mut drafter = LiLiCorrDrafter::new(model, &*target).expect("it fits");
    let mut quiet =
        DFlashDrafter::new(crate::world::model(&config(&*target), 1), &*target).expect("fits");
    let text = prompt(20, 288, 5);
    let mut stepper = Stepper::new(&target);
    // Told to nobody, as an import would be.
    stepper.pass(&mut quiet, &[(SEQ, &text[..12], &[])], Phase::Prefill);
    let none = stepper.draft(&mut drafter, &[(SEQ, &text[..12], 4)], &Sampler::greedy());
    assert!(none[0].tokens.is_empty());
    stepper.pass(&mut drafter, &[(SEQ, &text[..13], &[])], Phase::Verify);
    assert_eq!(drafter.positions(SEQ), [11]);
    let some = stepper.draft(&mut drafter, &[(SEQ, &text[..13], 4)], &Sampler::greedy());
    assert_eq!(some[0].tokens.len(), 4);
    // A hole in the middle.
    stepper.pass(&mut quiet, &[(SEQ, &text[..16], &[])], Phase::Verify);
    let none = stepper.draft(&mut drafter, &[(SEQ, &text[..16], 4)], &Sampler::greedy());
    assert!(none[0].tokens.is_empty());
    stepper.pass(&mut drafter, &[(SEQ, &text[..18], &[])], Phase::Verify);
    assert_eq!(drafter.positions(SEQ), [11, 15, 16]);
    let some = stepper.draft(&mut drafter, &[(SEQ, &text[..18], 4)], &Sampler::greedy());
    assert_eq!(some[0].tokens.len(), 4);
}

/// T9 and T41: the norm of fused features is applied: scaling it scales values that layers see, and
/// scaling the raw map does not.
#[test]
fn t9_t41_features_are_normalised() {
    let target: Target = Arc::new(target(1));
    let config = config(&*target);
    let plain = model(&config, 3);
    let with = |name: &str, factor: f32| -> DraftModel {
        let mut weights = plain.weights().expect("readable");
        let (shape, values) = weights.get(name).expect("there");
        let (shape, values) = (shape.to_vec(), values.iter().map(|v| v * factor).collect());
        weights.insert(name, shape, values);
        DraftModel::from_weights(&config, weights, &device()).expect("the same names")
    };
    let width = config.taps.len() * config.hidden;
    let taps: Vec<f32> = (0..3 * width).map(|i| (i % 17) as f32 - 8.0).collect();
    let taps = Tensor::from_data(TensorData::new(taps, [3, width]), &device());
    let fused = |model: &DraftModel| numbers(model.fuse(taps.clone()));
    let twice: Vec<f32> = fused(&plain).iter().map(|v| 2.0 * v).collect();
    close(
        &fused(&with("hidden_norm.weight", 2.0)),
        &twice,
        1e-5,
        "norm",
    );
    close(&fused(&with("fc.weight", 2.0)), &fused(&plain), 1e-4, "map");
}

/// T39 and T50: candidates of a reduced vocabulary are named by the target's ids, and its output rows
/// are the target's rows of those ids.
#[test]
fn t39_t50_t51_a_reduced_vocabulary() {
    let target: Target = Arc::new(target(1));
    let whole = config(&*target);
    let kept: Vec<Token> = (0..288).filter(|t| t % 3 == 1).collect();
    let reduced = DraftConfig {
        draft_vocab: Some(kept.clone()),
        ..whole.clone()
    };
    let content = prompt(9, 288, 6);
    let lattice_of = |config: &DraftConfig, k: usize| {
        let model = model(config, 3);
        let mut drafter = DFlashDrafter::with_candidates(model, &*target, k).expect("it fits");
        Stepper::new(&target).pass(&mut drafter, &[(SEQ, &content, &[])], Phase::Prefill);
        let sampler = Sampler::greedy();
        let row = DraftRow::new(SEQ, &content, 1, 1, &sampler);
        drafter.lattice(&row, &*target).expect("a lattice")
    };
    let (all, some) = (lattice_of(&whole, 288), lattice_of(&reduced, 5));
    for slot in 0..all.len() {
        let left: Vec<usize> = (0..288)
            .filter(|&i| kept.contains(&all.ids[slot][i]))
            .collect();
        let ids: Vec<Token> = left.iter().take(5).map(|&i| all.ids[slot][i]).collect();
        assert_eq!(some.ids[slot], ids, "slot {slot}");
        // The norm is over the kept tokens, whose part of the map is held in f16.
        let sum: f64 = left
            .iter()
            .map(|&i| f64::from(all.logprobs[slot][i]).exp())
            .sum();
        let want: Vec<f32> = left[..5]
            .iter()
            .map(|&i| all.logprobs[slot][i] - sum.ln() as f32)
            .collect();
        close(&some.logprobs[slot], &want, 1e-3, "log-probabilities");
    }
}
