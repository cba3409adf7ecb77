//! Prefixes under every batch strategy.

use crate::world::*;
use specdec_core::{Decoder, Request, Token};
use specdec_ragged::{SlotOptions, Strategy};
use specdec_rakv::StoredPrefixes;
use specdec_testkit::scripted::RandomController;
use std::sync::Arc;

#[test]
fn prefixes_under_every_strategy() {
    let target = target();
    let shared = text(1, 23);
    let prompts: Vec<Vec<Token>> = (0..7)
        .map(|n| [&shared[..23 - n], &text(n + 2, 2 * n + 1)].concat())
        .collect();
    for strategy in [
        Strategy::Slots,
        Strategy::EqSpec,
        Strategy::EqSpecRefill,
        Strategy::ExSpec { window: 6 },
    ] {
        let store = store(&target);
        for round in 0..3 {
            let memory = SlotOptions {
                chunk: 5,
                ..SlotOptions::default()
            };
            let parts = strategy
                .parts(target.spec(), 3, &memory)
                .expect("good options");
            let mut decoder = Decoder::builder(Arc::clone(&target))
                .cache(parts.cache)
                .scheduler(parts.scheduler)
                .prefixes(StoredPrefixes::new(store.clone(), &device()))
                .drafter(often_right(&prompts, 0.6))
                .controller(RandomController::new(round, 5))
                .prefill_chunk(9)
                .build()
                .expect("the parts fit");
            for prompt in &prompts {
                let request = Request::new(prompt.clone()).max_new_tokens(25);
                decoder.submit(request).expect("taken");
            }
            for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
                let wanted = hash_lm().greedy(prompt, 25);
                assert_eq!(done.tokens, wanted, "{strategy:?}, round {round}");
                let reused = done.stats.reused as usize;
                assert!(
                    round == 0 || reused == prompt.len() - 1,
                    "{strategy:?}: {reused}"
                );
            }
            let stats = store.stats();
            assert_eq!((stats.pins, stats.failed, stats.unexported), (0, 0, 0));
        }
    }
}
