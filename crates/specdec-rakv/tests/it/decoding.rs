//! Outputs with a store are those without: batches, preemption, chunks, drafts. E3 to E6, S1 to S10.

use crate::world::*;
use proptest::prelude::*;
use specdec_core::{Decoder, Event, FirstCome, FixedLength, Request, SeqId, Token};
use specdec_draft::{ModelDrafter, NgramDrafter};
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_rakv::{Adaptive, CostTable, StoredPrefixes};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::{Counted, Traced, difference, plain_run};
use specdec_testkit::scripted::Lengths;
use specdec_testkit::strategies::scenarios;
use std::sync::Arc;

fn table() -> CostTable {
    let verify = [(1, 1.05), (2, 1.1), (4, 1.2), (8, 1.8)];
    CostTable::flat(1e-3, &verify, &[("drafter", 0.05)]).expect("a table")
}

#[test]
fn e3_prompts_of_any_lengths_one_after_the_other() {
    let target = target();
    let prompts = vec![text(1, 24), text(2, 3), text(3, 60)];
    let mut decoder = speculating(&target, &store(&target), often_right(&prompts, 0.7), four());
    for prompt in &prompts {
        warm(&mut decoder, prompt, 20);
    }
}

#[test]
fn e4_again_and_longer() {
    let counted = Counted::new(hash_lm());
    let calls = counted.calls();
    let target: Target = Arc::new(counted);
    let first = text(1, 33);
    let longer = [first.clone(), text(2, 9)].concat();
    let prompts = vec![first.clone(), longer.clone()];
    let controller = Traced::new(FixedLength(4));
    let trace = controller.trace();
    let mut decoder = speculating(
        &target,
        &store(&target),
        often_right(&prompts, 0.8),
        controller,
    );
    assert_eq!(warm(&mut decoder, &first, 24), 0);
    let cold = trace.of(SeqId(0));
    let before = calls.tokens();
    assert_eq!(warm(&mut decoder, &first, 24), 32);
    // The drafter accepts as well, and only the verify passes ran.
    assert_eq!(trace.of(SeqId(1)), cold);
    let verified: usize = cold.iter().map(|round| round.k + 1).sum();
    assert_eq!(calls.tokens() - before, verified);
    let before = calls.tokens();
    assert_eq!(warm(&mut decoder, &longer, 24), 33);
    let verified: usize = trace.of(SeqId(2)).iter().map(|round| round.k + 1).sum();
    assert_eq!(calls.tokens() - before, longer.len() - 1 - 33 + verified);
    // All but one token of a prompt.
    assert_eq!(
        warm(&mut decoder, &longer[..longer.len() - 1], 3),
        longer.len() - 2
    );
}

/// P5 too.
#[test]
fn e5_p5_the_answer_comes_back_in_other_tokens() {
    let target = target();
    let mut decoder = decoder(&target, &store(&target));
    let prompt = text(1, 21);
    warm(&mut decoder, &prompt, 20);
    let answer = hash_lm().greedy(&prompt, 20);
    // From ids: everything that has entries is reused.
    let continued = [prompt.clone(), answer.clone(), vec![5, 6]].concat();
    assert_eq!(warm(&mut decoder, &continued, 8), 21 + 19);
    // Tokenised differently from its fifth token on.
    let mut other = [prompt, answer].concat();
    other[25] = (other[25] + 1) % VOCAB as Token;
    other.remove(30);
    assert_eq!(warm(&mut decoder, &other, 8), 25);
}

#[test]
fn e6_memory_is_flat_and_nothing_stays_pinned() {
    let target = target();
    let options = specdec_rakv::StoreOptions {
        block: 8,
        memory: 200_000,
        ..specdec_rakv::StoreOptions::default()
    };
    let store = specdec_rakv::PrefixStore::open(identity(&target), options).expect("good options");
    let mut decoder = decoder(&target, &store);
    let mut held = Vec::new();
    for n in 0..500 {
        let request = Request::new(text(n % 37, 5 + n % 23)).max_new_tokens(6);
        let seq = decoder.submit(request).expect("taken");
        if n % 5 == 0 {
            decoder.step().expect("a step");
            // It may have ended already.
            let _ = decoder.cancel(seq);
        }
        decoder.run().expect("decoding");
        held.push(decoder.cache().memory_bytes() + store.stats().memory_bytes);
    }
    let stats = store.stats();
    assert!(held[499] <= held[120], "{} then {}", held[120], held[499]);
    assert_eq!((stats.pins, stats.zombie_bytes), (0, 0));
    assert!(
        stats.memory_bytes <= 200_000 && stats.evicted > 0,
        "{stats:?}"
    );
}

/// S1: entries of the target were reused, the draft model has nothing: it reads all of the prompt
/// before its first draft, and every draft of the same model is right.
#[test]
fn s1_the_draft_model_catches_up_after_a_hit() {
    let target = target();
    let store = store(&target);
    let prompt = text(4, 50);
    for round in 0..2 {
        let drafter = ModelDrafter::new(Arc::clone(&target), slots(&target));
        let controller = Traced::new(FixedLength(4));
        let trace = controller.trace();
        let mut decoder = speculating(&target, &store, drafter, controller);
        assert_eq!(
            warm(&mut decoder, &prompt, 25),
            if round == 0 { 0 } else { 49 }
        );
        let rounds = trace.of(SeqId(0));
        assert!(rounds.iter().all(|r| r.n == r.k), "{rounds:?}");
        assert!(rounds.iter().any(|r| r.k == 4));
    }
}

/// S3 and S5: rounds without drafts leave no hole in the draft model's cache.
#[test]
fn s3_s5_lengths_that_come_and_go() {
    let target = target();
    let store = store(&target);
    let prompt = text(6, 30);
    for _ in 0..2 {
        let counted = Counted::new(hash_lm());
        let calls = counted.calls();
        let drafter = ModelDrafter::new(Arc::new(counted), slots(&target));
        let plan = [4, 4, 0, 0, 0, 4];
        let lengths = Traced::new(Lengths::new(move |_, round| plan[round % 6]));
        let trace = lengths.trace();
        let mut decoder = speculating(&target, &store, drafter, lengths);
        warm(&mut decoder, &prompt, 60);
        let rounds = trace.of(SeqId(0));
        assert!(rounds.iter().all(|r| r.n == r.k), "{rounds:?}");
        // One catch-up of exactly what it lacks, and a pass for each further draft.
        let content = prompt.len() + 60;
        let drafted: usize = rounds.iter().map(|r| r.k.saturating_sub(1)).sum();
        assert!(
            calls.tokens() <= content + drafted,
            "{} tokens",
            calls.tokens()
        );
    }
}

/// S6: a second request finds nothing of the first in the drafter.
#[test]
fn s6_two_requests_on_one_engine() {
    let target = target();
    let store = store(&target);
    let rounds = |store| {
        let controller = Traced::new(FixedLength(4));
        let trace = controller.trace();
        let mut decoder = speculating(&target, store, NgramDrafter::default(), controller);
        (0..3)
            .map(|_| warm(&mut decoder, &[1, 2, 1, 2, 1, 2, 1], 40))
            .for_each(drop);
        (0..3).map(|n| trace.of(SeqId(n))).collect::<Vec<_>>()
    };
    let of = rounds(&store);
    assert_eq!(of[0], of[1]);
    assert_eq!(of[0], of[2]);
}

/// S9: a draft that is always wrong emits nothing.
#[test]
fn s9_the_first_drafted_token_is_compared_too() {
    let target = target();
    let prompts = vec![text(1, 12)];
    let drafter = often_right(&prompts, 0.0);
    let mut decoder = speculating(&target, &store(&target), drafter, FixedLength(1));
    for _ in 0..2 {
        warm(&mut decoder, &prompts[0], 20);
    }
    assert_eq!(decoder.stats().accepted, 0);
    assert!(decoder.stats().drafted > 30);
}

/// S10: the controller does not keep prefixes from being reused.
#[test]
fn s10_the_hit_rate_is_the_same_with_a_controller() {
    let target = target();
    let prompts: Vec<Vec<Token>> = (0..6).map(|n| text(n % 3, 30 + n)).collect();
    let reused = |controlled: bool| {
        let store = store(&target);
        let mut decoder = if controlled {
            speculating(
                &target,
                &store,
                often_right(&prompts, 0.7),
                Adaptive::new(table()),
            )
        } else {
            decoder(&target, &store)
        };
        prompts
            .iter()
            .map(|p| warm(&mut decoder, p, 12))
            .collect::<Vec<_>>()
    };
    assert_eq!(reused(true), reused(false));
    assert!(reused(true).iter().sum::<usize>() > 0);
}

/// F9 through a real decoder: passes of the target, against plain decoding.
#[test]
fn f9_an_adversary_costs_little() {
    let counted = Counted::new(hash_lm());
    let calls = counted.calls();
    let target: Target = Arc::new(counted);
    let prompts: Vec<Vec<Token>> = (0..4).map(|n| text(n, 20)).collect();
    // Times of a toy say nothing; its table stands.
    let options = specdec_rakv::AdaptiveOptions {
        refresh: false,
        ..specdec_rakv::AdaptiveOptions::default()
    };
    let controller = Adaptive::with_options(table(), options).expect("good options");
    let mut decoder = speculating(
        &target,
        &store(&target),
        often_right(&prompts, 0.0),
        controller.clone(),
    );
    for prompt in &prompts {
        warm(&mut decoder, prompt, 80);
    }
    let report = controller.report();
    let drafted = decoder.stats().drafted as f64;
    let plain = (4 * 80) as f64;
    assert!(drafted < 0.3 * plain, "{drafted} drafted: {report}");
    assert!(report.spent < 1.3 * plain, "{report:?}");
    assert!(calls.passes() as f64 <= plain + 20.0);
}

/// An import that fails half-way: the row is prefilled as if there were no store.
#[test]
fn a_failed_import_falls_back_to_prefill() {
    let target = target();
    let store = store(&target);
    let prefixes = StoredPrefixes::new(store.clone(), &device());
    let mut decoder = Decoder::builder(Arc::clone(&target))
        .cache(Refusing(slots(&target), true))
        .prefixes(prefixes)
        .build()
        .expect("the parts fit");
    let prompt = text(1, 30);
    for _ in 0..3 {
        assert_eq!(warm(&mut decoder, &prompt, 10), 0);
    }
    assert_eq!(decoder.stats().reuse_failures, 2);
    assert_eq!((store.stats().failed, store.stats().pins), (2, 0));
}

/// Younger rows lose their memory and come back with what they had stored.
#[test]
fn preempted_rows_come_back_with_their_entries() {
    let target = target();
    let prompts: Vec<Vec<Token>> = (0..5).map(|n| text(n, 20)).collect();
    let run = |prefixes: bool| {
        let options = SlotOptions {
            chunk: 5,
            max_positions: Some(90),
            ..SlotOptions::default()
        };
        let cache = SlotCache::with_options(target.spec(), &options).expect("good options");
        let mut builder = Decoder::builder(Arc::clone(&target))
            .cache(cache)
            .drafter(often_right(&prompts, 0.6))
            .controller(FixedLength(3))
            .prefill_chunk(13);
        if prefixes {
            builder = builder.prefixes(StoredPrefixes::new(store(&target), &device()));
        }
        let mut decoder = builder.build().expect("the parts fit");
        for prompt in &prompts {
            decoder
                .submit(Request::new(prompt.clone()).max_new_tokens(40))
                .expect("taken");
        }
        for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
            assert_eq!(
                done.tokens,
                hash_lm().greedy(prompt, 40),
                "store: {prefixes}"
            );
        }
        decoder.stats().clone()
    };
    let (without, with) = (run(false), run(true));
    assert!(without.preempted > 0 && with.preempted > 0);
    assert!(with.reused > 0 && without.reused == 0);
    assert!(with.prefilled < without.prefilled, "{with:?}");
}

/// The draft model's own entries, in a store of its own.
#[test]
fn s2_the_draft_model_has_a_store_of_its_own() {
    let target = target();
    let smaller: Target = Arc::new(hash_lm().with_mistakes(0.3, 5).seeded(0));
    let draft_store = specdec_rakv::PrefixStore::open(
        identity(&smaller).with_revision("draft"),
        specdec_rakv::StoreOptions {
            block: 8,
            ..Default::default()
        },
    )
    .expect("good options");
    let prompt = text(3, 40);
    let run = |target_store: &specdec_rakv::PrefixStore,
               draft_store: &specdec_rakv::PrefixStore| {
        let counted = Counted::new(hash_lm().with_mistakes(0.3, 5));
        let calls = counted.calls();
        let drafter = ModelDrafter::new(Arc::new(counted), slots(&target))
            .with_prefixes(StoredPrefixes::new(draft_store.clone(), &device()));
        let controller = Traced::new(FixedLength(3));
        let trace = controller.trace();
        let mut decoder = speculating(&target, target_store, drafter, controller);
        warm(&mut decoder, &prompt, 20);
        (trace.of(SeqId(0)), calls.tokens())
    };
    let own = store(&target);
    let (cold, cold_tokens) = run(&own, &draft_store);
    // Both know the prompt; the drafter knows it and the target does not; and the reverse.
    let (both, both_tokens) = run(&own, &draft_store);
    let (longer, _) = run(&store(&target), &draft_store);
    let (shorter, shorter_tokens) = run(&own, &store(&target));
    for rounds in [&both, &longer, &shorter] {
        assert_eq!(rounds, &cold, "the same drafts, accepted alike");
    }
    assert_eq!(shorter_tokens, cold_tokens);
    assert!(
        both_tokens + 39 <= cold_tokens,
        "{both_tokens} of {cold_tokens}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// S4: any pool, draft lengths, scheduler, chunks and memory: the outputs are plain decoding's,
    /// the second time out of the store.
    #[test]
    fn s4_any_pool_with_a_store(scenario in scenarios(), block in 1..5usize, tight in any::<bool>()) {
        let model = scenario.target(&device());
        let target: Target = Arc::new(model.clone());
        let requests = || scenario.rows.iter().map(|row| row.request());
        let wanted = plain_run(&target, VecCache::new(target.spec()), requests()).expect("plain");
        let store = store_of(&target, block);
        for round in 0..2 {
            let options = SlotOptions {
                chunk: 3,
                max_positions: tight.then_some(36),
                ..SlotOptions::default()
            };
            let cache = SlotCache::with_options(target.spec(), &options).expect("good options");
            let mut decoder = Decoder::builder(Arc::clone(&target))
                .cache(cache)
                .prefixes(StoredPrefixes::new(store.clone(), &device()))
                .drafter(scenario.drafter(&model))
                .controller(scenario.controller())
                .scheduler(scenario.scheduler())
                .prefill_chunk(scenario.prefill_chunk)
                .build()
                .expect("the parts fit");
            for request in requests() {
                decoder.submit(request).expect("taken");
            }
            let mut got = Vec::new();
            while !decoder.is_idle() {
                for event in decoder.step().expect("a step") {
                    if let Event::Finished(done) = event {
                        got.push(done);
                    }
                }
            }
            got.sort_by_key(|done| done.seq);
            prop_assert_eq!(got.len(), wanted.len());
            for (got, want) in got.iter().zip(&wanted) {
                prop_assert_eq!(difference(want, got), None, "round {}", round);
            }
            prop_assert_eq!(store.stats().pins, 0);
        }
    }
}

/// Rows of a batch that start together, and a place that becomes free.
#[test]
fn batches_share_prefixes() {
    let target = target();
    let shared = text(1, 25);
    let prompts: Vec<Vec<Token>> = (0..8)
        .map(|n| [shared.clone(), text(n + 2, n + 1)].concat())
        .collect();
    let store = store(&target);
    let mut decoder = builder(&target, &store)
        .scheduler(FirstCome { max_rows: 3 })
        .drafter(often_right(&prompts, 0.7))
        .controller(Adaptive::new(table()))
        .build()
        .expect("the parts fit");
    for prompt in &prompts {
        decoder
            .submit(Request::new(prompt.clone()).max_new_tokens(20))
            .expect("taken");
    }
    for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
        assert_eq!(done.tokens, hash_lm().greedy(prompt, 20));
        assert_eq!(cold(&target, prompt, 20), done.tokens);
        let late = done.seq.0 >= 3;
        assert!(
            !late || done.stats.reused >= 25,
            "{}: {:?}",
            done.seq,
            done.stats
        );
    }
}
