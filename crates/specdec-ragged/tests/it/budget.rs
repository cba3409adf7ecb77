//! A limit on memory: rows wait and are preempted, nothing fails, and no token changes.

use burn::prelude::*;
use specdec_core::{
    Decoder, Error, FinishReason, FixedLength, Request, RequestError, Scheduler, TargetModel,
};
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_testkit::HashLm;
use specdec_testkit::oracle::Continuations;
use specdec_testkit::scripted::{RandomController, RandomScheduler, ScriptedDrafter};
use std::sync::Arc;

const CHUNK: usize = 4;

fn prompts() -> Vec<Vec<u32>> {
    [5, 1, 17, 9, 3, 12, 2]
        .iter()
        .map(|n| (0..*n).map(|i| (i * 7 + n) % 20).collect())
        .collect()
}

fn model() -> HashLm {
    HashLm::new(20, &Device::flex())
}

fn cache(model: &HashLm, positions: usize) -> SlotCache {
    let options = SlotOptions {
        chunk: CHUNK,
        preallocate: 0,
        max_positions: Some(positions),
    };
    SlotCache::with_options(model.spec(), &options).expect("good options")
}

fn decoder(model: &HashLm, positions: usize, scheduler: Option<RandomScheduler>) -> Decoder {
    let known = prompts()
        .into_iter()
        .map(|p| (p.clone(), model.greedy(&p, 40)));
    let builder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache(model, positions))
        .drafter(ScriptedDrafter::sometimes(
            Continuations::new(known),
            20,
            0.7,
            1,
        ))
        .prefill_chunk(6);
    match scheduler {
        None => builder.controller(FixedLength(3)),
        Some(scheduler) => builder
            .controller(RandomController::new(5, 4))
            .scheduler(scheduler),
    }
    .build()
    .expect("it fits")
}

/// From memory for one sequence only up to memory for all: the same output, never more memory than
/// allowed, and all of it free at the end.
#[test]
fn any_limit_gives_the_same_output() {
    let model = model();
    let mut preempted = Vec::new();
    for positions in [44, 60, 100, 400] {
        for seed in 0..4 {
            let scheduler = (seed > 0).then(|| RandomScheduler::new(seed));
            let mut decoder = decoder(&model, positions, scheduler);
            for prompt in prompts() {
                decoder
                    .submit(Request::new(prompt).max_new_tokens(24))
                    .expect("a good request");
            }
            let most = positions.div_ceil(CHUNK) * CHUNK;
            let done = decoder.run().expect("nothing fails for lack of memory");
            for (done, prompt) in done.iter().zip(prompts()) {
                assert_eq!(
                    done.tokens,
                    model.greedy(&prompt, 24),
                    "{positions} positions"
                );
                assert_eq!(done.finish, FinishReason::Length);
            }
            let bytes = decoder.cache().memory_bytes();
            let probe = cache(&model, positions);
            assert!(
                bytes <= most * probe.bytes_per_position(),
                "{bytes} bytes held"
            );
            let each: u64 = done.iter().map(|d| d.stats.preempted).sum();
            assert_eq!(each, decoder.stats().preempted);
            preempted.push((positions, decoder.stats().preempted));
        }
    }
    assert!(
        preempted.iter().any(|(p, n)| *p == 44 && *n > 0),
        "{preempted:?}"
    );
    assert!(
        preempted.iter().all(|(p, n)| *p < 400 || *n == 0),
        "{preempted:?}"
    );
}

/// Content ends where the memory of a sequence that has it all ends; a prompt that can never fit is
/// refused at once.
#[test]
fn a_sequence_never_outgrows_the_memory() {
    let model = model();
    let mut decoder = decoder(&model, 20, None);
    let prompt: Vec<u32> = (0..15).collect();
    let done = decoder
        .generate(Request::new(prompt.clone()).max_new_tokens(90))
        .expect("good");
    // 20 entries, and the newest token needs none.
    assert_eq!(done.tokens, model.greedy(&prompt, 6));
    assert_eq!(done.finish, FinishReason::Length);
    let long: Vec<u32> = (0..22).map(|i| i % 20).collect();
    let refused = decoder
        .submit(Request::new(long))
        .expect_err("it can never fit");
    assert!(
        matches!(
            refused,
            Error::Request(RequestError::PromptTooLong {
                len: 22,
                context: 21
            })
        ),
        "{refused}"
    );
}

/// As many sequences as the decoder takes: the next request is told to come later, and may.
#[test]
fn not_now_is_a_typed_answer() {
    let model = model();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache(&model, 100))
        .max_sequences(2)
        .build()
        .expect("it fits");
    let request = || Request::new([1, 2]).max_new_tokens(3);
    decoder.submit(request()).expect("a place");
    decoder.submit(request()).expect("a place");
    let refused = decoder.submit(request()).expect_err("two are taken");
    assert!(matches!(
        refused,
        Error::Request(RequestError::Busy { live: 2, limit: 2 })
    ));
    assert_eq!(decoder.run().expect("steps succeed").len(), 2);
    decoder.submit(request()).expect("a place again");
}

/// A scheduler that always asks for the youngest sequence cannot starve the older ones of memory
/// for ever: everything ends.
#[test]
fn a_contrary_scheduler_cannot_stop_the_others() {
    struct Youngest;
    impl Scheduler for Youngest {
        fn select(&mut self, pool: &specdec_core::PoolView) -> Vec<specdec_core::SeqId> {
            // Two at a time, the youngest ones, in turns.
            let n = pool.rows.len();
            let at = pool.step as usize % n;
            [n - 1 - at, (2 * n - 2 - at) % n]
                .map(|i| pool.rows[i].seq)
                .to_vec()
        }
    }
    let model = model();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache(&model, 44))
        .scheduler(Youngest)
        .prefill_chunk(3)
        .build()
        .expect("it fits");
    for prompt in prompts() {
        decoder
            .submit(Request::new(prompt).max_new_tokens(24))
            .expect("a good request");
    }
    let mut steps = 0;
    let mut ended = 0;
    while !decoder.is_idle() {
        let events = decoder.step().expect("steps succeed");
        ended += events
            .iter()
            .filter(|e| matches!(e, specdec_core::Event::Finished(_)))
            .count();
        steps += 1;
        assert!(steps < 20_000, "{ended} ended");
    }
    assert_eq!(ended, prompts().len());
}
