//! Reuse and draft length together, before a request starts.

use crate::costs::{CostTable, expected_tokens};
use crate::store::Stored;
use std::time::Duration;

/// Shares of the time of computing that taking in must save, and least seconds.
const LEAST_GAIN: (f64, f64) = (0.05, 2e-4);

/// Whether stored entries are predicted to be taken in faster than computed, by a margin.
pub(crate) fn worth_restoring(costs: &CostTable, stored: &Stored) -> bool {
    let compute = costs.prefill_seconds(0, stored.tokens);
    let restore = costs.restore_seconds(stored.bytes, stored.tier);
    compute - restore > (LEAST_GAIN.0 * compute).max(LEAST_GAIN.1)
}

/// A request as far as its cost is concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JointQuery {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens that will be emitted, expected.
    pub output: usize,
    /// What is stored of the prompt, if anything.
    pub stored: Option<Stored>,
    /// The drafter.
    pub source: usize,
    /// Prompt tokens the drafter already knows.
    pub drafter_knows: usize,
    /// The share of drafted tokens that are right.
    pub acceptance: f64,
}

/// One entry of the menu: reuse or not, and a draft length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointChoice {
    /// Whether stored entries are taken in.
    pub reuse: bool,
    /// Draft length; 0 is plain decoding.
    pub length: usize,
    /// Predicted time of the request.
    pub time: Duration,
}

/// The whole menu with predicted times, fastest first. The time of an entry is that of restoring or
/// computing the prompt, of the drafter's catching up where it drafts, and of the expected rounds.
pub fn joint_menu(costs: &CostTable, query: &JointQuery) -> Vec<JointChoice> {
    let prompt = query.prompt.saturating_sub(1);
    let context = query.prompt + query.output / 2;
    let mut menu = Vec::new();
    for reuse in [false, true] {
        let start = match (&query.stored, reuse) {
            (_, false) => costs.prefill_seconds(0, prompt),
            (Some(stored), true) => {
                costs.restore_seconds(stored.bytes, stored.tier)
                    + costs.prefill_seconds(stored.tokens, prompt)
            }
            (None, true) => continue,
        };
        for &length in costs.lengths() {
            let rounds = query.output as f64 / expected_tokens(length, query.acceptance);
            let round = costs.verify_seconds(1, context, length)
                + costs.draft_seconds(query.source, 1, context, length);
            let lag = query.prompt.saturating_sub(query.drafter_knows);
            let catch_up = if length > 0 {
                costs.catch_up_seconds(query.source, lag)
            } else {
                0.0
            };
            let seconds = start + catch_up + rounds * round;
            menu.push(JointChoice {
                reuse,
                length,
                time: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            });
        }
    }
    menu.sort_by_key(|choice| choice.time);
    menu
}
