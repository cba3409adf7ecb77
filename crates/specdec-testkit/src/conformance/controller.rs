//! The controller suite.

use super::report::{Report, Violation};
use super::watched::random_prompt;
use crate::oracle::Continuations;
use crate::scripted::ScriptedDrafter;
use crate::seeded::{Seeded, digest, happens};
use crate::{HashLm, VecCache};
use burn::prelude::Device;
use specdec_core::{
    Controller, Decoder, Outcome, PoolView, Request, RowOutcome, SeqId, SeqView, TargetModel,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a controller promises beyond the trait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ControllerPromises {
    /// A row's lengths do not depend on the rows beside it.
    pub independent_rows: bool,
}

/// Puts a controller through its contract: plans of the right length that ask for no more than a
/// row can use, through pools that grow, shrink and empty, drafts that are all taken, all refused
/// or never made, steps that take no time; and the same output as plain decoding.
///
/// # Errors
/// The first [`Violation`].
pub fn controller<C: Controller + 'static>(
    device: &Device,
    make: impl Fn() -> C,
) -> Result<Report, Violation> {
    controller_promising(&ControllerPromises::default(), device, make)
}

/// As [`controller()`], for a controller that promises something else than the default.
///
/// # Errors
/// The first [`Violation`].
pub fn controller_promising<C: Controller + 'static>(
    promises: &ControllerPromises,
    device: &Device,
    make: impl Fn() -> C,
) -> Result<Report, Violation> {
    let mut report = Report::new("controller");
    let all = [0, 1, 2, 3, 4];
    for right in [0.0, 0.5, 1.0] {
        for time in [0, 1_000] {
            let world = World { right, time };
            let together = world.lengths(make(), &all, &mut report)?;
            if promises.independent_rows {
                for row in all {
                    let alone = world.lengths(make(), &[row], &mut report)?;
                    let (want, got) = (alone.get(&SeqId(row)), together.get(&SeqId(row)));
                    report.check(
                        "a row's lengths do not depend on its neighbours",
                        want == got,
                        || format!("row {row}, right {right}: alone {want:?}, in a pool {got:?}"),
                    )?;
                }
            }
        }
        decode(device, make(), right, &mut report)?;
    }
    Ok(report)
}

/// A pretended decoder. What a row does depends on its name, its round and the length planned.
struct World {
    /// Probability that a draft is right.
    right: f64,
    /// Time of a pass per token, in nanoseconds.
    time: u64,
}

const STEPS: u64 = 60;

impl World {
    /// The lengths each row was given, in order of its rounds.
    fn lengths<C: Controller>(
        &self,
        mut controller: C,
        names: &[u64],
        report: &mut Report,
    ) -> Result<BTreeMap<SeqId, Vec<usize>>, Violation> {
        let mut given: BTreeMap<SeqId, Vec<usize>> = BTreeMap::new();
        let mut content: BTreeMap<u64, usize> =
            names.iter().map(|n| (*n, 5 + *n as usize)).collect();
        for step in 0..STEPS {
            // Row n arrives at step 3n and leaves at step 40 + n; it is idle now and then.
            let rows: Vec<SeqView> = names
                .iter()
                .filter(|n| (3 * **n..40 + **n).contains(&step) && !happens(0.2, [**n, step]))
                .map(|n| {
                    let length = content[n];
                    let mut view = SeqView::new(SeqId(*n), length, length - 1, length - 5);
                    view.last_run = step;
                    view.max_draft = (digest([*n, step]) % 9) as usize;
                    view
                })
                .collect();
            let view = PoolView::new(rows, step);
            let plan = controller.plan(&view);
            let (n, most) = (plan.lengths.len(), view.rows.len());
            report.check("a plan has no more entries than rows", n <= most, || {
                format!("{n} entries for {most} rows at step {step}")
            })?;
            let mut outcome = Outcome::default();
            for (i, row) in view.rows.iter().enumerate() {
                let k = plan.lengths.get(i).copied().unwrap_or(0);
                let most = row.max_draft;
                report.check(
                    "a length is no more than the row can use",
                    k <= most,
                    || {
                        format!(
                            "{k} for row {}, which can use {most}, at step {step}",
                            row.seq
                        )
                    },
                )?;
                given.entry(row.seq).or_default().push(k);
                let accepted = (0..k)
                    .take_while(|j| {
                        happens(self.right, [row.seq.0, row.content as u64 + *j as u64])
                    })
                    .count();
                *content.entry(row.seq.0).or_default() += accepted + 1;
                outcome.block += k + 1;
                let mut done = RowOutcome::new(row.seq, k, accepted);
                done.context = row.cached;
                outcome.rows.push(done);
            }
            outcome.draft_time = Duration::from_nanos(self.time * outcome.block as u64 / 4);
            outcome.verify_time = Duration::from_nanos(self.time * (20 + outcome.block as u64));
            if !view.rows.is_empty() {
                controller.observe(&outcome);
            }
            for name in names.iter().filter(|n| 40 + **n == step + 1) {
                controller.evict(SeqId(*name));
            }
        }
        let empty = controller.plan(&PoolView::new(Vec::new(), STEPS));
        report.check(
            "an empty pool has an empty plan",
            empty.lengths.is_empty(),
            || format!("{:?}", empty.lengths),
        )?;
        // Names nobody has, and nothing at all, do no harm.
        controller.evict(SeqId(u64::MAX));
        controller.observe(&Outcome::default());
        Ok(given)
    }
}

/// A real decoder gives what plain decoding gives.
fn decode(
    device: &Device,
    controller: impl Controller + 'static,
    right: f64,
    report: &mut Report,
) -> Result<(), Violation> {
    let target = HashLm::new(20, device);
    let mut draws = Seeded::new(7);
    let prompts: Vec<_> = [1, 6, 3].map(|n| random_prompt(&mut draws, 20, n)).into();
    let after: Vec<_> = prompts.iter().map(|p| target.greedy(p, 30)).collect();
    let known = Continuations::new(prompts.iter().cloned().zip(after.iter().cloned()));
    let decoder = Decoder::builder(Arc::new(target.clone()))
        .cache(VecCache::new(target.spec()))
        .drafter(ScriptedDrafter::sometimes(known, 20, right, 1))
        .controller(controller)
        .build();
    let mut decoder = report.done("a decoder can be built", decoder, String::new)?;
    for prompt in prompts {
        let seq = decoder.submit(Request::new(prompt).max_new_tokens(22));
        report.done("a request is taken", seq, String::new)?;
    }
    let done = decoder.run();
    let done = report.done("decoding does not fail", done, String::new)?;
    for (done, want) in done.iter().zip(&after) {
        let same = done.tokens == want[..22];
        report.check("the output is that of plain decoding", same, || {
            format!("{:?} instead of {:?}", done.tokens, &want[..22])
        })?;
    }
    Ok(())
}
