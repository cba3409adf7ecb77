//! The exact model: whatever is decoded around it, a row's tokens are those of plain integers.

use crate::Check;
use crate::world::{VOCAB, finish, hash_lm, held, memory, prompt, prompts, slots};
use burn::prelude::*;
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::TestRunner;
use specdec_core::KvCache;
use specdec_core::{Block, Decoder, Event, FixedLength, Phase, Request, SeqId, TargetModel};
use specdec_ragged::Strategy;
use specdec_testkit::oracle::{Continuations, difference, plain_run};
use specdec_testkit::scripted::ScriptedDrafter;
use specdec_testkit::strategies::scenarios;
use specdec_testkit::{HashLm, VecCache};
use std::sync::Arc;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("any_pool_by_slots", |device| {
        any_pool(device, Strategy::Slots)
    }),
    ("any_pool_by_eqspec", |device| {
        any_pool(device, Strategy::EqSpec)
    }),
    ("any_pool_by_eqspec_refill", |device| {
        any_pool(device, Strategy::EqSpecRefill)
    }),
    ("any_pool_by_exspec", |device| {
        any_pool(device, Strategy::ExSpec { window: 3 })
    }),
    ("every_shape_of_the_model", every_shape_of_the_model),
    (
        "after_every_round_the_cache_is_a_fresh_one",
        after_every_round_the_cache_is_a_fresh_one,
    ),
    ("a_long_prompt_in_pieces", a_long_prompt_in_pieces),
];

/// Pools for each strategy; the CPU's tests try thousands.
const POOLS: usize = 6;

/// Random pools, draft lengths, drafters and limits: as on the CPU, plainly.
fn any_pool(device: &Device, strategy: Strategy) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..POOLS {
        let scenario = scenarios()
            .new_tree(&mut runner)
            .expect("a scenario")
            .current();
        let fits = scenario
            .rows
            .iter()
            .all(|row| row.prompt.len() <= scenario.context);
        if !fits {
            continue;
        }
        let cpu = scenario.target(&Device::flex());
        let requests = || scenario.rows.iter().map(|row| row.request());
        let wanted = plain_run(
            &(Arc::new(cpu.clone()) as _),
            VecCache::new(cpu.spec()),
            requests(),
        );
        let model = scenario.target(device);
        let parts = strategy
            .parts(model.spec(), 3, &memory())
            .expect("good options");
        let decoder = Decoder::builder(Arc::new(model.clone()))
            .cache(parts.cache)
            .scheduler(parts.scheduler)
            .drafter(scenario.drafter(&model))
            .controller(scenario.controller())
            .prefill_chunk(scenario.prefill_chunk)
            .build()
            .expect("the parts fit");
        let got = finish(decoder, requests());
        for (want, got) in wanted.expect("plain decoding").iter().zip(&got) {
            assert_eq!(difference(want, got), None, "{scenario:?}");
        }
    }
}

/// Grouped heads, windows, ties, padded logits, ends, short contexts.
fn every_shape_of_the_model(device: &Device) {
    let model = || hash_lm(device);
    let shapes: [(&str, HashLm); 6] = [
        ("grouped heads", model().with_heads(6, 3)),
        (
            "a window on every second layer",
            model().with_window(9, false),
        ),
        (
            "a window on all layers",
            model().with_window(5, true).with_heads(4, 2),
        ),
        ("ties", model().with_ties(3)),
        ("padded logits", model().with_padding(7)),
        ("a short context", model().with_context(40)),
    ];
    for (what, model) in shapes {
        let prompts = prompts(VOCAB);
        let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 20))));
        let decoder = Decoder::builder(Arc::new(model.clone()))
            .cache(slots(model.spec()))
            .drafter(ScriptedDrafter::sometimes(known, VOCAB, 0.7, 3))
            .controller(FixedLength(4))
            .prefill_chunk(13)
            .build()
            .expect("the parts fit");
        let requests = prompts
            .iter()
            .map(|p| Request::new(p.clone()).max_new_tokens(14));
        for (done, prompt) in finish(decoder, requests).iter().zip(&prompts) {
            assert_eq!(
                done.tokens,
                model.greedy(prompt, 14),
                "{what}, prompt of {}",
                prompt.len()
            );
        }
    }
}

/// Keys and values of every live row, entry by entry.
fn after_every_round_the_cache_is_a_fresh_one(device: &Device) {
    let model = hash_lm(device);
    let prompts = [prompt(2, VOCAB), prompt(9, VOCAB), prompt(5, VOCAB)];
    let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 30))));
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(slots(model.spec()))
        .drafter(ScriptedDrafter::sometimes(known, VOCAB, 0.6, 5))
        .build()
        .expect("the parts fit");
    for prompt in &prompts {
        decoder
            .submit(Request::new(prompt.clone()).max_new_tokens(11))
            .expect("a good request");
    }
    let mut compared = 0;
    while !decoder.is_idle() {
        let events = decoder.step().expect("a step");
        assert!(
            events
                .iter()
                .all(|event| !matches!(event, Event::Failed { .. }))
        );
        for seq in decoder.live().collect::<Vec<_>>() {
            let len = decoder.cache().len(seq);
            if len > 0 {
                let tokens = decoder.tokens(seq).expect("it is live")[..len].to_vec();
                assert_eq!(
                    held(decoder.cache(), seq),
                    fresh(&model, &tokens),
                    "{seq}, {len} tokens"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 8, "{compared} caches compared");
}

/// What a cache holds after one pass over these tokens.
fn fresh(model: &HashLm, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut cache = VecCache::new(model.spec());
    let block = Block::single(SeqId(0), 0, tokens, &model.spec().device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("a row");
    model.forward(&block, &mut *attend, &[]).expect("a pass");
    drop(attend);
    cache.commit(&[tokens.len()]).expect("staged");
    held(&cache, SeqId(0))
}

fn a_long_prompt_in_pieces(device: &Device) {
    let model = hash_lm(device).with_context(1024);
    let prompt = prompt(700, VOCAB);
    let wanted = model.greedy(&prompt, 12);
    let known = Continuations::new([(prompt.clone(), wanted.clone())]);
    let decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(slots(model.spec()))
        .drafter(ScriptedDrafter::sometimes(known, VOCAB, 0.8, 2))
        .prefill_chunk(256)
        .build()
        .expect("the parts fit");
    let done = finish(decoder, [Request::new(prompt).max_new_tokens(12)]).remove(0);
    assert_eq!(done.tokens, wanted);
}
