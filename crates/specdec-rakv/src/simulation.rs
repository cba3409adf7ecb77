//! The controller in a simulated world: scripted acceptance, a known cost table, a simulated clock.

mod costs;
mod regret;
mod rows;

use crate::steering::{Sample, Steering};
use crate::switch::LOOK_BACK;
use crate::{Adaptive, CostTable};
use specdec_core::{Controller, FixedLength, Outcome, PoolView, RowOutcome, SeqId, SeqView};
use std::time::Duration;

pub(crate) const MENU: [usize; 5] = [0, 1, 2, 4, 8];
/// Seconds of a plain step.
const PLAIN: f64 = 0.01;

/// What a token costs a drafter that catches up, in drafted tokens.
const CATCH_UP: f64 = 0.08;

/// One number from several, evenly spread.
pub(crate) fn unit(parts: &[u64]) -> f64 {
    let mut z = 0x9e37_79b9_7f4a_7c15u64;
    for part in parts {
        z = z
            .wrapping_add(part.wrapping_mul(0xff51_afd7_ed55_8ccd))
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// What rounds cost, in plain steps, and what of that a drafted token is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    pub(crate) cycles: [f64; 5],
    pub(crate) draft: f64,
}

pub(crate) const B64: Costs = Costs {
    cycles: [1.0, 2.40, 3.07, 4.24, 6.10],
    draft: 0.30,
};
pub(crate) const A64: Costs = Costs {
    cycles: [1.0, 2.16, 2.57, 3.26, 4.13],
    draft: 0.05,
};
pub(crate) const A1024: Costs = Costs {
    cycles: [1.0, 1.59, 1.68, 2.02, 2.43],
    draft: 0.07,
};
pub(crate) const PACKED: Costs = Costs {
    cycles: [1.0, 1.05, 1.05, 1.16, 1.80],
    draft: 0.03,
};
pub(crate) const SOURCE: Costs = Costs {
    cycles: [1.0, 1.9, 2.8, 4.56, 8.12],
    draft: 0.88,
};
pub(crate) const ALL: [(&str, Costs); 5] = [
    ("B64", B64),
    ("A64", A64),
    ("A1024", A1024),
    ("packed", PACKED),
    ("source-like", SOURCE),
];

impl Costs {
    pub(crate) fn table(&self) -> CostTable {
        let verify: Vec<(usize, f64)> = (1..5)
            .map(|i| {
                (
                    MENU[i],
                    (self.cycles[i] - self.draft * MENU[i] as f64).max(1.0),
                )
            })
            .collect();
        let flat = CostTable::flat(PLAIN, &verify, &[("drafter", self.draft)]);
        let mut costs = flat.expect("a good table").measurements().clone();
        costs.sources[0].catch_up.each = CATCH_UP * self.draft * PLAIN;
        CostTable::new(costs).expect("a good table")
    }

    fn verify(&self, k: usize) -> f64 {
        let at = |i: usize| (self.cycles[i] - self.draft * MENU[i] as f64).max(1.0);
        let i = MENU.iter().position(|m| *m >= k).unwrap_or(4);
        if MENU[i] == k || i == 0 {
            return at(i);
        }
        let part = (k - MENU[i - 1]) as f64 / (MENU[i] - MENU[i - 1]) as f64;
        at(i - 1) + part * (at(i) - at(i - 1))
    }
}

/// How likely a draft is right at an output index, over all sequences.
pub(crate) type Process = fn(usize) -> f64;

/// A world of one row at a time.
#[derive(Clone, Copy)]
pub(crate) struct World {
    pub(crate) costs: Costs,
    pub(crate) acceptance: Process,
    pub(crate) seed: u64,
    /// Tokens in all.
    pub(crate) tokens: usize,
    /// Shortest and longest output of a sequence.
    pub(crate) outputs: (usize, usize),
    /// What real times are multiplied by, at a round: plain, drafted.
    pub(crate) noise: fn(u64, usize) -> f64,
}

/// What a run gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    /// Plain steps of all rounds.
    pub(crate) steps: f64,
    /// Draft length and steps of each round, and the output index it began at.
    pub(crate) rounds: Vec<(usize, f64, usize)>,
}

impl Run {
    /// Steps from an output index on.
    pub(crate) fn after(&self, index: usize) -> f64 {
        self.rounds
            .iter()
            .filter(|r| r.2 >= index)
            .map(|r| r.1)
            .sum()
    }

    /// Share of rounds from an output index on with this length.
    pub(crate) fn share(&self, index: usize, k: usize) -> f64 {
        let rounds = self.rounds.iter().filter(|r| r.2 >= index);
        let (all, hits) = rounds.fold((0, 0), |(n, h), r| (n + 1, h + usize::from(r.0 == k)));
        hits as f64 / f64::from(all.max(1))
    }
}

impl World {
    pub(crate) fn new(costs: Costs, acceptance: Process, seed: u64) -> Self {
        Self {
            costs,
            acceptance,
            seed,
            tokens: 20_000,
            outputs: (64, 256),
            noise: |_, _| 1.0,
        }
    }

    fn right(&self, index: usize) -> bool {
        unit(&[self.seed, index as u64]) < (self.acceptance)(index)
    }

    /// Lets a controller decode all tokens; where a steering is given, silent drafts are compared.
    pub(crate) fn run(&self, controller: &mut impl Controller, steering: Option<&Steering>) -> Run {
        let mut run = Run::default();
        let mut index = 0;
        let mut seq = 0;
        let mut round = 0;
        while index < self.tokens {
            let span = (self.outputs.1 - self.outputs.0 + 1) as f64;
            let output = self.outputs.0 + (unit(&[self.seed, 77, seq]) * span) as usize;
            let name = SeqId(seq);
            let start = index;
            let mut silent: Vec<(usize, usize)> = Vec::new();
            while index < start + output {
                let left = start + output - index;
                let content = 64 + index - start;
                let mut view = SeqView::new(name, content, content - 1, index - start);
                (view.max_draft, view.left) = (left - 1, left);
                let plan = controller.plan(&PoolView::new(vec![view], round));
                let planned = plan.lengths[0].min(left - 1);
                let choice = steering.and_then(|s| s.board().choices.get(&name).copied());
                let k = if choice.is_some_and(|c| c.verified.is_none()) {
                    0
                } else {
                    planned
                };
                let mut draft = self.costs.draft * k as f64;
                if choice.is_some_and(|c| c.silent.is_some()) {
                    silent.push((index, planned));
                    draft += self.costs.draft * planned as f64;
                }
                if let (Some(steering), Some(_)) = (steering, choice.and_then(|c| c.back)) {
                    let look: Vec<bool> = (index.saturating_sub(LOOK_BACK)..index)
                        .map(|i| self.right(i))
                        .collect();
                    draft += self.costs.draft * CATCH_UP * 1.5 * LOOK_BACK as f64;
                    steering.board().looks.push((name, 0, look));
                }
                let accepted = (0..k).take_while(|j| self.right(index + j)).count();
                let steps = draft + self.costs.verify(k);
                run.steps += steps;
                run.rounds.push((k, steps, index));
                index += accepted + 1;
                if let Some(steering) = steering {
                    silent.retain(|&(from, k)| {
                        let right = (0..k).take_while(|j| self.right(from + j)).count();
                        let done = index > from + right || index >= from + k;
                        if done {
                            steering.board().samples.push(Sample {
                                seq: name,
                                source: 0,
                                right,
                                failed: right < k,
                            });
                        }
                        !done
                    });
                }
                let mut row = RowOutcome::new(name, k, accepted);
                row.planned = planned;
                row.context = content - 1;
                row.finished = index >= start + output;
                let mut outcome = Outcome::default();
                outcome.rows.push(row);
                outcome.block = k + 1;
                let noise = (self.noise)(round, k);
                outcome.draft_time = Duration::from_secs_f64(draft * PLAIN * noise);
                outcome.verify_time = Duration::from_secs_f64(self.costs.verify(k) * PLAIN * noise);
                controller.observe(&outcome);
                round += 1;
            }
            controller.evict(name);
            seq += 1;
        }
        run
    }

    /// The same world with one length always.
    pub(crate) fn fixed(&self, k: usize) -> Run {
        self.run(&mut FixedLength(k), None)
    }

    /// The best fixed length in hindsight, and its steps.
    pub(crate) fn best_fixed(&self) -> (usize, f64) {
        let runs = MENU.map(|k| (k, self.fixed(k).steps));
        runs.into_iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .expect("a menu is not empty")
    }
}

/// A new controller of these costs, with the handle silent drafts go through.
pub(crate) fn steered(costs: Costs) -> (Adaptive, Steering) {
    let controller = Adaptive::new(costs.table());
    let steering = controller.steering();
    steering.board().drafters = 1;
    (controller, steering)
}
