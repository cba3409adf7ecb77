//! Every policy on every condition.

use crate::replay::Right;
use crate::timed::{Clock, Run};
use crate::world::{Drafts, Runs, World};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use specdec::DraftLength;
use specdec::prelude::*;
use specdec::rakv::PrefixStore;
use std::collections::HashMap;
use std::sync::Arc;

/// Of a prompt's tokens, those that are stored.
const SHARED: f64 = 0.75;

/// Name, what runs, and how often a replay is right.
type Drafting = (&'static str, Runs, Option<f64>);

/// What is varied.
pub struct Plan {
    prompts: &'static [usize],
    outputs: &'static [usize],
    drafters: &'static [Drafting],
    repeats: usize,
}

impl Plan {
    /// For the tiny pair. The longest prompt leaves room for the longest output in a context of 512. The dear drafters
    /// pay from an acceptance of about 0.9 on.
    pub fn tiny(repeats: usize) -> Self {
        Self {
            prompts: &[64, 192, 448],
            outputs: &[16, 32, 64],
            drafters: &[
                ("draft model", Runs::Dear, None),
                ("dear replay, .40", Runs::Dear, Some(0.40)),
                ("cheap replay, .60", Runs::Cheap, Some(0.60)),
                ("cheap replay, .95", Runs::Cheap, Some(0.95)),
            ],
            repeats,
        }
    }

    /// For a model that takes milliseconds a token.
    pub fn large(repeats: usize) -> Self {
        Self {
            prompts: &[64, 192],
            outputs: &[24, 64],
            drafters: &[
                ("dear replay, .40", Runs::Dear, Some(0.40)),
                ("dear replay, .95", Runs::Dear, Some(0.95)),
                ("cheap replay, .30", Runs::Cheap, Some(0.30)),
                ("cheap replay, .90", Runs::Cheap, Some(0.90)),
            ],
            repeats,
        }
    }
}

/// What an arm does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Everything is computed; this draft length.
    Fresh(usize),
    /// Stored prefixes are taken in; this draft length.
    Reuse(usize),
    /// Stored prefixes are taken in; the controller chooses the length.
    Adaptive,
}

pub const POLICIES: [Policy; 8] = [
    Policy::Fresh(0),
    Policy::Fresh(4),
    Policy::Reuse(0),
    Policy::Reuse(1),
    Policy::Reuse(2),
    Policy::Reuse(4),
    Policy::Reuse(8),
    Policy::Adaptive,
];

/// Its place among the arms.
pub fn place(policy: Policy) -> usize {
    let found = POLICIES.iter().position(|p| *p == policy);
    found.expect("one of the arms")
}

/// All blocks of one drafter, prompt length and output length.
pub struct Condition {
    pub drafter: &'static str,
    pub prompt: usize,
    pub output: usize,
    /// The runs of each policy, block by block.
    pub runs: Vec<Vec<Run>>,
}

pub struct Grid {
    pub conditions: Vec<Condition>,
    /// Share of the time for which the thread had a processor.
    pub share: f64,
    /// What the controllers said in the end, by drafter.
    pub reports: Vec<(&'static str, String)>,
}

/// A prompt, what is to come of it, and the condition it belongs to.
struct Case {
    condition: usize,
    prompt: Vec<u32>,
    want: Vec<u32>,
}

pub fn run(world: &World, plan: &Plan) -> Grid {
    let (prefixes, mut cases) = cases(world, plan);
    let store = world.store(&prefixes);
    let known: HashMap<Vec<u32>, Vec<u32>> = cases
        .iter()
        .map(|case| (case.prompt.clone(), case.want.clone()))
        .collect();
    let known = Arc::new(known);
    let mut grid = Grid {
        conditions: Vec::new(),
        share: 0.0,
        reports: Vec::new(),
    };
    let mut clock = Clock::default();
    let mut order = Xoshiro256PlusPlus::seed_from_u64(3);
    for &(drafter, runs, right) in plan.drafters {
        let drafts = Drafts {
            runs,
            replay: right.map(|right| (Right::new(right), Arc::clone(&known))),
        };
        let mut arms = POLICIES.map(|policy| arm(world, &drafts, policy, &store));
        let first = grid.conditions.len();
        for &prompt in plan.prompts {
            for &output in plan.outputs {
                grid.conditions.push(Condition {
                    drafter,
                    prompt,
                    output,
                    runs: vec![Vec::new(); POLICIES.len()],
                });
            }
        }
        cases.shuffle(&mut order);
        for case in &cases {
            let mut turns: Vec<usize> = (0..POLICIES.len()).collect();
            turns.shuffle(&mut order);
            let shared = (case.prompt.len() as f64 * SHARED) as u64;
            for i in turns {
                let run = clock.generate(&mut arms[i], &case.prompt, &case.want);
                let fresh = matches!(POLICIES[i], Policy::Fresh(_));
                assert_eq!(run.stats.reused, if fresh { 0 } else { shared });
                grid.conditions[first + case.condition].runs[i].push(run);
            }
        }
        let adaptive = arms[place(Policy::Adaptive)].adaptive();
        let adaptive = adaptive.expect("it is adaptive");
        let costs = adaptive.costs();
        let needed = costs.lengths()[1..].iter().map(|&k| {
            let cycle = costs.cycle(0, 1, 192, k);
            let pays = costs.break_even(0, 1, 192, k);
            let pays = pays.map_or("never".into(), |a| format!("{a:.2}"));
            format!("k = {k}: {cycle:.2} plain steps, pays from {pays}")
        });
        let needed: Vec<String> = needed.collect();
        let reading = costs.catch_up_seconds(0, 64) / costs.verify_seconds(1, 192, 0);
        let report = format!(
            "{}; {}; 64 tokens read in the time of {reading:.1}",
            adaptive.report(),
            needed.join("; ")
        );
        grid.reports.push((drafter, report));
    }
    grid.share = clock.share();
    grid
}

fn arm(world: &World, drafts: &Drafts, policy: Policy, store: &PrefixStore) -> Generator {
    let some = |k: usize| (k > 0).then_some(drafts);
    match policy {
        Policy::Fresh(k) => world.generator(some(k), DraftLength::Fixed(k), None),
        Policy::Reuse(k) => world.generator(some(k), DraftLength::Fixed(k), Some(store)),
        Policy::Adaptive => world.generator(Some(drafts), DraftLength::adaptive(), Some(store)),
    }
}

/// The shared prefixes, and a prompt for each condition and repeat.
fn cases(world: &World, plan: &Plan) -> (Vec<Vec<u32>>, Vec<Case>) {
    let (mut prefixes, mut cases) = (Vec::new(), Vec::new());
    for (i, &prompt) in plan.prompts.iter().enumerate() {
        let shared = (prompt as f64 * SHARED) as usize;
        let prefix = world.text(shared, i as u64);
        for (j, _) in plan.outputs.iter().enumerate() {
            let condition = i * plan.outputs.len() + j;
            for repeat in 0..plan.repeats {
                let seed = (1000 * (condition + 1) + repeat) as u64;
                cases.push(Case {
                    condition,
                    prompt: world.go_on(&prefix, prompt - shared, seed),
                    want: Vec::new(),
                });
            }
        }
        prefixes.push(prefix);
    }
    let asked: Vec<(&[u32], usize)> = cases
        .iter()
        .map(|case| {
            (
                &case.prompt[..],
                plan.outputs[case.condition % plan.outputs.len()],
            )
        })
        .collect();
    let outputs = world.outputs(&asked);
    for (case, output) in cases.iter_mut().zip(outputs) {
        case.want = output;
    }
    (prefixes, cases)
}
