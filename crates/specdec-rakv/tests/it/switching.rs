//! Several drafters in one, steered by the controller; the controller suite.

use crate::world::*;
use specdec_core::{
    Acceptance, Coupled, Decoder, Drafter, FixedLength, Greedy, Request, SamplingParams, SeqId,
    Token,
};
use specdec_draft::{ModelDrafter, NgramDrafter};
use specdec_rakv::{Adaptive, AdaptiveOptions, CostTable, RakvError, Reason, Ridge, SwitchDrafter};
use specdec_testkit::conformance::{ControllerPromises, controller, controller_promising};
use specdec_testkit::oracle::Counted;
use specdec_testkit::scripted::{FailingDrafter, ScriptedTarget};
use std::sync::Arc;

fn table(names: &[(&str, f64)]) -> CostTable {
    let verify = [(1, 1.05), (2, 1.1), (4, 1.2), (8, 1.8)];
    CostTable::flat(1e-3, &verify, names).expect("a table")
}

/// Times of toys say nothing: the table stands.
fn options() -> AdaptiveOptions {
    AdaptiveOptions {
        refresh: false,
        ..AdaptiveOptions::default()
    }
}

fn adaptive(names: &[(&str, f64)]) -> Adaptive {
    Adaptive::with_options(table(names), options()).expect("good options")
}

#[test]
fn the_controllers_pass_the_suite() {
    let one = [("drafter", 0.05)];
    controller(&device(), || Adaptive::new(table(&one))).expect("the contract");
    controller(&device(), || {
        Adaptive::corrected(table(&one), AdaptiveOptions::default(), Ridge::default())
            .expect("good options")
    })
    .expect("the contract");
    let promises = ControllerPromises::default();
    let mut independent = promises;
    independent.independent_rows = true;
    controller_promising(&independent, &device(), || {
        let options = AdaptiveOptions {
            carry_over: false,
            ..options()
        };
        Adaptive::with_options(table(&one), options).expect("good options")
    })
    .expect("rows are independent");
}

#[test]
fn the_better_of_two_drafters_drafts() {
    let target = target();
    let prompts: Vec<Vec<Token>> = (0..8).map(|n| text(n, 20)).collect();
    for (rights, better) in [([0.05, 0.9], 1), ([0.9, 0.05], 0)] {
        let controller = adaptive(&[("first", 0.02), ("second", 0.02)]);
        let sources =
            rights.map(|right| -> Box<dyn Drafter> { Box::new(often_right(&prompts, right)) });
        let switch = SwitchDrafter::new(sources, controller.steering()).expect("two");
        let mut decoder = speculating(&target, &store(&target), switch, controller.clone());
        for prompt in &prompts {
            warm(&mut decoder, prompt, 80);
        }
        let stats = decoder.stats();
        let length = stats.acceptance_length().expect("rounds");
        assert!(length > 2.5, "{length}: {}", controller.report());
        let acceptance = controller.report().acceptance;
        assert!(acceptance[better].1[0] > 0.75, "{acceptance:?}");
        assert_eq!(controller.report().best_choice.0, better);
    }
}

/// A drafter that is hopeless at first is not verified any more, only asked what it would have said;
/// when it gets better, that is noticed.
#[test]
fn silent_drafts_are_compared_with_what_is_emitted() {
    let target = target();
    let prompts: Vec<Vec<Token>> = (0..30).map(|n| text(n, 12)).collect();
    let mut options = options();
    options.exploration = 0.05;
    let costs = CostTable::flat(1e-3, &[(4, 3.0)], &[("drafter", 0.05)]).expect("a table");
    let controller = Adaptive::with_options(costs, options).expect("good options");
    let mut drafter = often_right(&prompts, 0.95);
    for prompt in &prompts[..12] {
        drafter = drafter.with_prompt(prompt.clone(), specdec_testkit::scripted::Mistakes::Always);
    }
    let switch = SwitchDrafter::new(
        [Box::new(drafter) as Box<dyn Drafter>],
        controller.steering(),
    );
    let mut decoder = speculating(
        &target,
        &store(&target),
        switch.expect("one"),
        controller.clone(),
    );
    let mut drafted = Vec::new();
    let mut reasons = std::collections::BTreeMap::new();
    for prompt in &prompts {
        let before = decoder.stats().drafted;
        let seq = decoder
            .submit(Request::new(prompt.clone()).max_new_tokens(80))
            .expect("taken");
        while !decoder.is_idle() {
            decoder.step().expect("a step");
            if let Some(decision) = controller.decision(seq) {
                *reasons.entry(format!("{:?}", decision.reason)).or_insert(0) += 1;
            }
        }
        drafted.push(decoder.stats().drafted - before);
    }
    assert!(
        drafted[4..12].iter().all(|n| *n == 0),
        "{drafted:?} {reasons:?}"
    );
    assert!(
        drafted[20..].iter().all(|n| *n > 20),
        "{drafted:?} {reasons:?}"
    );
    assert!(
        reasons.contains_key(&format!("{:?}", Reason::SilentProbe)),
        "{reasons:?}"
    );
}

/// A draft model looks back at what was emitted: one pass, and no trace in its cache.
#[test]
fn a_draft_model_looks_back() {
    // Every token has one successor, and all 40 lie on one circle; the draft model is wrong after
    // every fourth id.
    let next = |token: Token| (token * 21 + 7) % VOCAB as Token;
    let says = move |wrong: bool| {
        ScriptedTarget::new(VOCAB, &device(), move |seen| {
            let wanted = next(seen.token) + Token::from(wrong && seen.token % 4 == 0);
            let logit = |t: usize| f32::from(u8::from(t == wanted as usize % VOCAB));
            (0..VOCAB).map(logit).collect()
        })
    };
    let target: Target = Arc::new(says(false));
    let costs = CostTable::flat(1e-3, &[(4, 4.2)], &[("draft-model", 0.1)]).expect("a table");
    let controller = Adaptive::with_options(costs, options()).expect("good options");
    let counted = Counted::new(says(true));
    let calls = counted.calls();
    let drafter = ModelDrafter::new(Arc::new(counted), slots(&target));
    let switch = SwitchDrafter::new(
        [Box::new(drafter) as Box<dyn Drafter>],
        controller.steering(),
    );
    let mut decoder = Decoder::builder(Arc::clone(&target))
        .cache(slots(&target))
        .drafter(switch.expect("one"))
        .controller(controller.clone())
        .build()
        .expect("the parts fit");
    let mut looked = 0;
    for n in 0..6 {
        let prompt = text(n, 30);
        let last = prompt[29];
        let seq = decoder
            .submit(Request::new(prompt).max_new_tokens(80))
            .expect("taken");
        let mut tokens = Vec::new();
        while !decoder.is_idle() {
            for event in decoder.step().expect("a step") {
                if let specdec_core::Event::Finished(done) = event {
                    tokens = done.tokens;
                }
            }
            let decision = controller.decision(seq);
            looked += usize::from(decision.is_some_and(|d| d.reason == Reason::LookBack));
        }
        let wanted = std::iter::successors(Some(next(last)), |t| Some(next(*t))).take(80);
        assert!(tokens.into_iter().eq(wanted));
    }
    assert!(looked > 0, "{}", controller.report());
    // Each look back is one pass of 48 tokens (fewer at half the text), and nothing else ran the
    // draft model.
    assert_eq!(calls.passes(), looked);
    assert!(
        (looked * 46..=looked * 48).contains(&calls.tokens()),
        "{}",
        calls.tokens()
    );
    let (name, [first, later]) = controller.report().acceptance[0].clone();
    assert_eq!(name, "draft-model");
    assert!(
        (0.65..0.85).contains(&first) && (first - later).abs() < 0.01,
        "{first} {later}"
    );
}

/// Any rule, several drafters, rows in a batch: the output is plain decoding's.
#[test]
fn outputs_do_not_depend_on_who_drafts() {
    let target = target();
    let prompts: Vec<Vec<Token>> = (0..5).map(|n| text(n, 8 + n)).collect();
    let rules: [Arc<dyn Acceptance>; 2] = [Arc::new(Coupled), Arc::new(Greedy)];
    for rule in rules {
        let sampled = rule.name() != Greedy.name();
        let request = |prompt: &Vec<Token>| {
            let mut request = Request::new(prompt.clone()).max_new_tokens(40);
            if sampled {
                request.sampling = SamplingParams {
                    seed: Some(7),
                    ..SamplingParams::sampled(0.8)
                };
            }
            request
        };
        let run = |drafted: bool| {
            let mut builder =
                builder(&target, &store(&target)).acceptance_shared(Arc::clone(&rule));
            if drafted {
                let controller = adaptive(&[("ngram", 0.0), ("draft-model", 0.1)]);
                let model = hash_lm().with_mistakes(0.2, 3);
                let sources: [Box<dyn Drafter>; 2] = [
                    Box::new(NgramDrafter::default()),
                    Box::new(ModelDrafter::new(Arc::new(model), slots(&target))),
                ];
                let switch = SwitchDrafter::new(sources, controller.steering()).expect("two");
                builder = builder.drafter(switch).controller(controller);
            }
            let mut decoder = builder.build().expect("the parts fit");
            for prompt in &prompts {
                decoder.submit(request(prompt)).expect("taken");
            }
            let done = decoder.run().expect("decoding");
            (
                done.into_iter().map(|d| d.tokens).collect::<Vec<_>>(),
                decoder.stats().drafted,
            )
        };
        let ((plain, none), (drafted, some)) = (run(false), run(true));
        assert_eq!(plain, drafted, "{}", rule.name());
        assert!(none == 0 && some > 0);
    }
}

/// All sources observe, each with its own taps, also when another one fails to.
#[test]
fn all_sources_observe() {
    let target = target();
    let prompts = vec![text(1, 10)];
    let controller = adaptive(&[("a", 0.01), ("b", 0.01)]);
    let failing = FailingDrafter::at_drafts(often_right(&prompts, 0.9), []).and_observations([2]);
    let (watcher, seen) = Watcher::new(vec![3, 1]);
    let sources: [Box<dyn Drafter>; 2] = [Box::new(failing), Box::new(watcher)];
    let switch = SwitchDrafter::new(sources, controller.steering()).expect("two");
    assert_eq!(switch.taps(), [1, 3]);
    let mut decoder = speculating(&target, &store(&target), switch, controller);
    decoder
        .submit(Request::new(prompts[0].clone()).max_new_tokens(12))
        .expect("taken");
    let mut failures = 0;
    while !decoder.is_idle() {
        failures += usize::from(decoder.step().is_err());
    }
    assert_eq!(failures, 1);
    let seen = seen.lock().expect("nobody panicked");
    assert_eq!(
        seen.iter().map(|(committed, _)| committed).sum::<usize>(),
        10 + 12 - 1
    );
    // Tap 3 before tap 1, as this source asked: they differ.
    assert!(seen.iter().all(|(_, shapes)| shapes.len() == 2));
}

type Seen = Arc<std::sync::Mutex<Vec<(usize, Vec<Vec<f32>>)>>>;

/// A drafter that only watches.
struct Watcher {
    taps: Vec<usize>,
    seen: Seen,
}

impl Watcher {
    fn new(taps: Vec<usize>) -> (Self, Seen) {
        let seen = Seen::default();
        (
            Self {
                taps,
                seen: Arc::clone(&seen),
            },
            seen,
        )
    }
}

impl Drafter for Watcher {
    fn name(&self) -> &'static str {
        "watcher"
    }

    fn draft(
        &mut self,
        cx: specdec_core::DraftContext<'_>,
    ) -> specdec_core::Result<specdec_core::Draft> {
        let rows = vec![specdec_core::RowDraft::default(); cx.rows.len()];
        Ok(specdec_core::Draft { rows })
    }

    fn observe(&mut self, observation: &specdec_core::Observation<'_>) -> specdec_core::Result<()> {
        let committed = observation.rows.iter().map(|row| row.committed.len()).sum();
        let values = observation.taps.iter().map(|tap| {
            tap.clone()
                .into_data()
                .try_into_vec_as::<f32>()
                .expect("numbers")
        });
        let values: Vec<Vec<f32>> = values.collect();
        assert_ne!(values[0], values[1], "two layers");
        self.seen
            .lock()
            .expect("nobody panicked")
            .push((committed, values));
        Ok(())
    }

    fn taps(&self) -> &[usize] {
        &self.taps
    }
}

#[test]
fn without_a_controller_that_steers_the_first_drafts() {
    let target = target();
    let prompts = vec![text(1, 10)];
    let sources = [0.9, 0.0].map(|r| -> Box<dyn Drafter> { Box::new(often_right(&prompts, r)) });
    let unused = adaptive(&[("a", 0.1), ("b", 0.1)]).steering();
    let switch = SwitchDrafter::new(sources, unused).expect("two");
    let mut decoder = speculating(&target, &store(&target), switch, FixedLength(4));
    warm(&mut decoder, &prompts[0], 40);
    assert!(decoder.stats().acceptance_rate().is_some_and(|r| r > 0.4));
}

#[test]
fn no_drafter_and_too_many_are_refused() {
    for n in [0, 5] {
        let drafter = || -> Box<dyn Drafter> { Box::new(NgramDrafter::default()) };
        let refused = SwitchDrafter::new((0..n).map(|_| drafter()), adaptive(&[]).steering());
        assert!(
            matches!(
                refused,
                Err(RakvError::Setting {
                    setting: "drafters",
                    ..
                })
            ),
            "{n}"
        );
    }
}

/// C16: a fixed length through the same machinery is what it is without.
#[test]
fn c16_fixed_lengths_through_a_switch() {
    let target = target();
    let prompts = vec![text(1, 10)];
    let run = |switched: bool| -> (Vec<Token>, specdec_core::Stats) {
        let mut builder = Decoder::builder(Arc::clone(&target)).cache(slots(&target));
        let drafter = often_right(&prompts, 0.7);
        builder = if switched {
            let steering = adaptive(&[("a", 0.1)]).steering();
            let sources = [Box::new(drafter) as Box<dyn Drafter>];
            builder.drafter(SwitchDrafter::new(sources, steering).expect("one"))
        } else {
            builder.drafter(drafter)
        };
        let mut decoder = builder
            .controller(FixedLength(3))
            .build()
            .expect("the parts fit");
        let done = decoder.generate(Request::new(prompts[0].clone()).max_new_tokens(40));
        let done = done.expect("decoding");
        assert_eq!(done.seq, SeqId(0));
        (done.tokens, done.stats)
    };
    let ((a, one), (b, two)) = (run(false), run(true));
    assert_eq!(a, b);
    assert_eq!(
        (one.rounds, one.drafted, one.accepted),
        (two.rounds, two.drafted, two.accepted)
    );
    assert_eq!(target.spec().vocab, VOCAB);
}
