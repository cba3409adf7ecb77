//! A limit on memory: rows wait and are preempted, nothing fails, and no token changes.

use burn::prelude::*;
use specdec_core::{
    Decoder, Draft, DraftContext, Drafter, Error, Event, FinishReason, FixedLength, Request,
    RequestError, Result, RowDraft, Scheduler, SeqId, TargetModel,
};
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_testkit::HashLm;
use specdec_testkit::oracle::Continuations;
use specdec_testkit::scripted::{RandomController, RandomScheduler, ScriptedDrafter};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

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
            .filter(|e| matches!(e, Event::Finished(_)))
            .count();
        steps += 1;
        assert!(steps < 20_000, "{ended} ended");
    }
    assert_eq!(ended, prompts().len());
}

/// A row that is chosen and waits for memory that older ones hold does not stop them: the oldest runs
/// in its place.
#[test]
fn who_waits_for_memory_lets_the_oldest_run() {
    struct Last;
    impl Scheduler for Last {
        fn select(&mut self, pool: &specdec_core::PoolView) -> Vec<SeqId> {
            pool.rows.last().map(|row| row.seq).into_iter().collect()
        }
    }
    let model = model();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache(&model, 40))
        .scheduler(Last)
        .build()
        .expect("it fits");
    let old: Vec<u32> = (0..20).collect();
    let young: Vec<u32> = (0..24).map(|i| i % 7).collect();
    decoder
        .submit(Request::new(old.clone()).max_new_tokens(15))
        .expect("a good request");
    decoder.step().expect("steps succeed");
    decoder
        .submit(Request::new(young.clone()).max_new_tokens(5))
        .expect("a good request");
    let mut done = Vec::new();
    for _ in 0..40 {
        for event in decoder.step().expect("steps succeed") {
            if let Event::Finished(completion) = event {
                done.push(completion.tokens);
            }
        }
    }
    assert_eq!(done, [model.greedy(&old, 15), model.greedy(&young, 5)]);
}

/// Drafts nothing and counts who is forgotten.
#[derive(Debug, Clone, Default)]
struct Forgetting(Arc<Mutex<HashMap<SeqId, u64>>>);

impl Drafter for Forgetting {
    fn name(&self) -> &'static str {
        "forgetting"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let rows = vec![RowDraft::default(); cx.rows.len()];
        Ok(Draft { rows })
    }

    fn evict(&mut self, seq: SeqId) {
        *self.0.lock().expect("no panic").entry(seq).or_default() += 1;
    }
}

/// A row that loses its memory keeps its tokens: each is told once, in order, and counted once. The
/// drafter forgets the row too.
#[test]
fn a_preempted_row_goes_on_where_it_was() {
    let model = model();
    let forgetting = Forgetting::default();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache(&model, 44))
        .drafter(forgetting.clone())
        .prefill_chunk(6)
        .build()
        .expect("it fits");
    for prompt in prompts() {
        decoder
            .submit(Request::new(prompt).max_new_tokens(24))
            .expect("a good request");
    }
    let mut told: HashMap<SeqId, Vec<u32>> = HashMap::new();
    let mut done = Vec::new();
    while !decoder.is_idle() {
        for event in decoder.step().expect("steps succeed") {
            match event {
                Event::Tokens { seq, tokens } => {
                    let tokens = tokens.iter().map(|t| t.token);
                    told.entry(seq).or_default().extend(tokens);
                }
                Event::Finished(completion) => done.push(completion),
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    assert!(decoder.stats().preempted > 3, "{:?}", decoder.stats());
    let forgotten = forgetting.0.lock().expect("no panic");
    for done in &done {
        assert_eq!(told[&done.seq], done.tokens, "{}", done.seq);
        assert_eq!(done.stats.emitted, 24);
        assert_eq!(forgotten[&done.seq], 1 + done.stats.preempted);
    }
}

/// Where memory is short it belongs to older rows: the oldest one emits in every step, and no row
/// holds any while an older one waits.
#[test]
fn older_rows_come_first() {
    let model = model();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache(&model, 44))
        .build()
        .expect("it fits");
    for first in 0..6 {
        let prompt: Vec<u32> = (first..first + 6).collect();
        decoder
            .submit(Request::new(prompt).max_new_tokens(24))
            .expect("a good request");
    }
    let mut ended = Vec::new();
    while !decoder.is_idle() {
        let oldest = decoder.live().next().expect("it is not idle");
        let events = decoder.step().expect("steps succeed");
        assert!(events.iter().any(|e| e.seq() == oldest), "{oldest} waits");
        for event in events {
            if let Event::Finished(done) = event {
                ended.push(done.seq);
            }
        }
        let held: Vec<bool> = decoder
            .live()
            .map(|seq| decoder.cache().len(seq) > 0)
            .collect();
        assert!(
            held.is_sorted_by(|older, younger| older >= younger),
            "{held:?}"
        );
    }
    assert!(ended.is_sorted() && ended.len() == 6, "{ended:?}");
    assert!(decoder.stats().preempted > 2, "{:?}", decoder.stats());
}

/// Two rows that fit without drafts and not with them: the drafts are given up, no row waits.
#[test]
fn drafts_are_given_up_before_rows() {
    let model = model();
    let prompts = [vec![1, 2, 3, 4, 5], vec![6, 7, 8, 9, 10]];
    let known = prompts.iter().map(|p| (p.clone(), model.greedy(p, 20)));
    // At most 8 entries of the first row beside 8 of the second, or 16 of the second alone.
    let options = SlotOptions {
        chunk: 1,
        preallocate: 0,
        max_positions: Some(16),
    };
    let cache = SlotCache::with_options(model.spec(), &options).expect("good options");
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache)
        .drafter(ScriptedDrafter::adversary(Continuations::new(known), 20))
        .controller(FixedLength(4))
        .build()
        .expect("it fits");
    for (prompt, limit) in prompts.iter().zip([4, 12]) {
        let request = Request::new(prompt.clone()).max_new_tokens(limit);
        decoder.submit(request).expect("a good request");
    }
    while !decoder.is_idle() {
        let live: Vec<SeqId> = decoder.live().collect();
        let events = decoder.step().expect("steps succeed");
        for seq in live {
            assert!(events.iter().any(|e| e.seq() == seq), "{seq} waits");
        }
    }
    let stats = decoder.stats();
    assert_eq!((stats.preempted, stats.emitted), (0, 16));
    assert!(stats.drafted > 0 && stats.speculative_rounds < stats.rounds);
}
