//! The aligned caches beneath a draft model, where mistakes never show in the output: the whole
//! trace of acceptance is known beforehand.

use crate::world::{Setup, Target, Watched, hash_lm, prompt, setups};
use specdec_core::{Decoder, FixedLength, Request, SeqId, TargetModel};
use specdec_draft::ModelDrafter;
use specdec_ragged::Strategy;
use specdec_testkit::HashLm;
use specdec_testkit::conformance;
use specdec_testkit::oracle::{Traced, plan};
use specdec_testkit::scripted::Lengths;
use std::sync::Arc;

fn drafter(model: Arc<dyn TargetModel>, strategy: Strategy) -> ModelDrafter {
    let cache = strategy.cache(model.spec(), &Setup::memory());
    ModelDrafter::new(model, Watched::new(cache.expect("good options"), strategy))
}

#[test]
fn drafts_are_the_draft_models_own_in_every_cache() {
    for strategy in Strategy::ALL {
        let report =
            conformance::model_drafter(&crate::world::device(), |model| drafter(model, strategy))
                .unwrap_or_else(|violation| panic!("{strategy}: {violation}"));
        assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
    }
}

/// The same with both caches aligned and rows that are chosen, wait and leave: C24 in a batch.
#[test]
fn both_caches_aligned_and_rows_that_wait() {
    let model = hash_lm(20);
    let lengths = |seq: SeqId, round: usize| [0, 3, 5, 1, 0, 0, 4][(seq.0 as usize + round) % 7];
    let prompts = [1, 12, 5, 20, 3].map(prompt);
    let limits = [14, 30, 9, 22, 17];
    for setup in setups() {
        for (seed, rate) in [(1, 0.0), (2, 0.3), (3, 0.6)] {
            let draft = Arc::new(model.clone().with_mistakes(rate, seed));
            let target: Target = Arc::new(model.clone());
            let controller = Traced::new(Lengths::new(lengths));
            let trace = controller.trace();
            let mut decoder = setup.decoder(&target, drafter(draft, setup.strategy), controller);
            for (prompt, limit) in prompts.iter().zip(limits) {
                let request = Request::new(prompt.clone()).max_new_tokens(limit);
                decoder.submit(request).expect("a good request");
            }
            for done in decoder.run().expect("decoding") {
                let i = done.seq.0 as usize;
                assert_eq!(
                    done.tokens,
                    model.greedy(&prompts[i], limits[i]),
                    "{setup:?}"
                );
                let want = plan(
                    limits[i],
                    |round| lengths(done.seq, round),
                    |at| HashLm::mistaken(rate, seed, prompts[i].len() + at),
                );
                assert_eq!(
                    trace.of(done.seq),
                    want,
                    "{setup:?}, mistakes {rate}, row {i}"
                );
            }
        }
    }
}

/// C26 and C32: rows whose draft model does not know a token, or has no context left, go on alone.
#[test]
fn c26_c32_rows_that_cannot_be_drafted_for() {
    let model = hash_lm(20).with_context(64);
    let foreign = vec![1, 15, 2];
    let prompts = [foreign.clone(), vec![1, 2, 3], prompt(18)];
    for setup in setups() {
        let target: Target = Arc::new(model.clone());
        let narrow = Arc::new(HashLm::new(12, &crate::world::device()).with_context(64));
        let short = Arc::new(model.clone().with_context(24));
        for (draft, drafted) in [
            (narrow as Arc<dyn TargetModel>, [false, true, false]),
            (short, [true, true, true]),
        ] {
            let drafter = drafter(draft, setup.strategy);
            let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
            for prompt in &prompts {
                let request = Request::new(prompt.clone()).max_new_tokens(100);
                decoder.submit(request).expect("a good request");
            }
            for (i, done) in decoder.run().expect("decoding").iter().enumerate() {
                let room = 64 - prompts[i].len();
                assert_eq!(done.tokens, model.greedy(&prompts[i], room), "{setup:?}");
                if i != 2 {
                    assert_eq!(done.stats.drafted > 0, drafted[i], "{setup:?}, row {i}");
                }
            }
        }
    }
}

/// A draft cache without room for all rows drafts for some of them; nothing fails.
#[test]
fn a_small_draft_cache_drafts_for_fewer_rows() {
    let model = hash_lm(20);
    let prompts = [3, 12, 7, 1].map(prompt);
    for strategy in Strategy::ALL {
        for positions in [40, 60, 90, 200] {
            let memory = specdec_ragged::SlotOptions {
                max_positions: Some(positions),
                ..Setup::memory()
            };
            let draft: Arc<dyn TargetModel> = Arc::new(model.clone());
            let cache = strategy.cache(draft.spec(), &memory).expect("good options");
            let parts = strategy
                .parts(model.spec(), 4, &memory)
                .expect("good options");
            let mut decoder = Decoder::builder(Arc::new(model.clone()))
                .cache(parts.cache)
                .scheduler(parts.scheduler)
                .drafter(ModelDrafter::new(draft, cache))
                .controller(FixedLength(5))
                .prefill_chunk(6)
                .build()
                .expect("it fits");
            for prompt in &prompts {
                let request = Request::new(prompt.clone()).max_new_tokens(24);
                decoder.submit(request).expect("a good request");
            }
            for (done, prompt) in decoder.run().expect("nothing fails").iter().zip(&prompts) {
                assert_eq!(
                    done.tokens,
                    model.greedy(prompt, 24),
                    "{strategy}, {positions}"
                );
            }
        }
    }
}
