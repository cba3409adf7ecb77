//! Any pool, any strategy: each row as if it were alone (INV-8), entries as if freshly computed.

use crate::world::{
    Setup, Target, Watched, check_round, device, hash_lm, often_right, prompt, setups,
};
use proptest::prelude::*;
use specdec_core::{Completion, Decoder, Event, Request, SeqId};
use specdec_ragged::{Fallback, GroupByLength, RowLengths, Strategy};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::{difference, plain_run};
use specdec_testkit::strategies::{Scenario, scenarios};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Decodes a scenario, rows arriving when they arrive, every round checked.
fn decode(scenario: &Scenario, target: &Target, mut decoder: Decoder) -> Vec<Completion> {
    let mut done = BTreeMap::new();
    let mut names: BTreeMap<SeqId, usize> = BTreeMap::new();
    let mut step = 0;
    loop {
        for (i, row) in scenario.rows.iter().enumerate() {
            if row.arrives == step {
                let seq = decoder.submit(row.request()).expect("a good request");
                names.insert(seq, i);
            }
        }
        for event in decoder.step().expect("decoding") {
            if let Event::Finished(completion) = event {
                done.insert(names[&completion.seq], completion);
            }
        }
        check_round(&decoder, target);
        step += 1;
        if decoder.is_idle() && step > 4 {
            return done.into_values().collect();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn each_row_is_as_if_it_were_alone(scenario in scenarios(), rows in 1usize..5, window in 1usize..8) {
        let model = scenario.target(&device());
        let target: Target = Arc::new(model.clone());
        let fits = |row: &specdec_testkit::strategies::RowPlan| row.prompt.len() <= scenario.context;
        prop_assume!(scenario.rows.iter().all(fits));
        let requests = scenario.rows.iter().map(|row| row.request());
        let alone: Vec<Completion> = requests
            .map(|request| {
                let cache = VecCache::new(target.spec());
                plain_run(&target, cache, [request]).expect("plain decoding").remove(0)
            })
            .collect();
        for strategy in [
            Strategy::Slots,
            Strategy::EqSpec,
            Strategy::EqSpecRefill,
            Strategy::ExSpec { window },
        ] {
            let setup = Setup { strategy, rows };
            let parts = strategy.parts(target.spec(), rows, &Setup::memory()).expect("good options");
            let with = (scenario.drafter(&model), scenario.controller());
            let decoder = setup.build(&target, parts.cache, parts.scheduler, with);
            for (i, (got, want)) in decode(&scenario, &target, decoder).iter().zip(&alone).enumerate() {
                prop_assert_eq!(difference(want, got), None, "{}, row {}", strategy, i);
            }
        }
        // Rows in any order, the rectangle beneath them.
        let cache = Strategy::EqSpec.cache(target.spec(), &Setup::memory()).expect("good options");
        let decoder = Decoder::builder(Arc::clone(&target))
            .cache(Watched::new(cache, Strategy::EqSpec))
            .scheduler(scenario.scheduler())
            .drafter(scenario.drafter(&model))
            .controller(scenario.controller())
            .prefill_chunk(scenario.prefill_chunk)
            .build()
            .expect("the parts fit");
        for (i, (got, want)) in decode(&scenario, &target, decoder).iter().zip(&alone).enumerate() {
            prop_assert_eq!(difference(want, got), None, "any order, row {}", i);
        }
        // The other ways to group.
        let setup = Setup { strategy: Strategy::ExSpec { window }, rows };
        let cache = setup.strategy.cache(target.spec(), &Setup::memory()).expect("good options");
        let scheduler = GroupByLength::new(window, rows)
            .with_fallback(Fallback::Nearest)
            .with_max_wait(2)
            .admitting_by_length();
        let with = (scenario.drafter(&model), scenario.controller());
        let decoder = setup.build(&target, cache, scheduler, with);
        for (i, (got, want)) in decode(&scenario, &target, decoder).iter().zip(&alone).enumerate() {
            prop_assert_eq!(difference(want, got), None, "nearest lengths, row {}", i);
        }
    }
}

/// Lengths planned from real times differ from run to run; the output does not.
#[test]
fn planned_lengths_change_nothing() {
    let prompts = [2, 9, 5, 1, 14].map(prompt);
    let model = hash_lm(20);
    for setup in setups() {
        for right in [0.0, 0.8, 1.0] {
            let target: Target = Arc::new(model.clone());
            let drafter = often_right(&prompts, right);
            let mut decoder = setup.decoder(&target, drafter, RowLengths::up_to(6));
            for prompt in &prompts {
                let request = Request::new(prompt.clone()).max_new_tokens(40);
                decoder.submit(request).expect("a good request");
            }
            for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
                assert_eq!(done.tokens, model.greedy(prompt, 40), "{setup:?}");
            }
        }
    }
}
