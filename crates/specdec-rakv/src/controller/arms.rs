use super::correction::{Correction, Features};
use super::row::Row;
use crate::acceptance::Forgetting;
use crate::costs::{CostTable, MAX_MENU, MAX_SOURCES, Refresh, StepCosts};
use crate::switch::LOOK_BACK;

/// A drafter and a place in the menu.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arm {
    /// The drafter, counted from 0.
    pub source: usize,
    /// The place of the draft length in the menu; at 0 nothing is drafted, by nobody.
    pub level: usize,
}

/// Every arm of a row in a step: what it yields and what it costs, in plain steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arms {
    /// Expected tokens of a round.
    pub(crate) tokens: [[f64; MAX_MENU]; MAX_SOURCES],
    /// Cost of a round.
    pub(crate) steps: [[f64; MAX_MENU]; MAX_SOURCES],
    /// Cost of a round's draft alone.
    pub(crate) draft: [[f64; MAX_MENU]; MAX_SOURCES],
    /// Cost of a round with a draft that is never empty.
    pub(crate) cycle: [[f64; MAX_MENU]; MAX_SOURCES],
    /// Cost of a token.
    pub(crate) per_token: [[f64; MAX_MENU]; MAX_SOURCES],
    /// Cost for each drafter to catch up.
    pub(crate) lag: [f64; MAX_SOURCES],
    /// Cost for each drafter to look back.
    pub(crate) back: [f64; MAX_SOURCES],
    /// Seconds of a plain step.
    pub(crate) plain: f64,
}

/// What the arms of a row follow from, beside the row.
pub(crate) struct Setting<'a, C> {
    pub(crate) table: &'a CostTable,
    pub(crate) refresh: &'a Refresh,
    pub(crate) correction: &'a C,
    pub(crate) how: Forgetting,
    /// Drafters that can be chosen.
    pub(crate) sources: usize,
}

impl Arms {
    /// Before anything was planned.
    pub(crate) const NONE: Self = Self {
        tokens: [[1.0; MAX_MENU]; MAX_SOURCES],
        steps: [[1.0; MAX_MENU]; MAX_SOURCES],
        draft: [[0.0; MAX_MENU]; MAX_SOURCES],
        cycle: [[1.0; MAX_MENU]; MAX_SOURCES],
        per_token: [[1.0; MAX_MENU]; MAX_SOURCES],
        lag: [0.0; MAX_SOURCES],
        back: [0.0; MAX_SOURCES],
        plain: 0.0,
    };

    /// The arm that drafts and yields most, up to a place in the menu.
    pub(crate) fn best_draft(&self, top: usize, sources: usize) -> Arm {
        let mut best = Arm::default();
        for source in 0..sources {
            for level in 1..=top {
                let cost = self.per_token[source][level];
                if best.level == 0 || cost < self.per_token[best.source][best.level] {
                    best = Arm { source, level };
                }
            }
        }
        best
    }
}

impl<C: Correction> Setting<'_, C> {
    /// The arms of a row of which `content` tokens are known and that can use `most` drafts, at
    /// these costs. A length above `most` is cut to it.
    pub(crate) fn arms(
        &self,
        row: &Row,
        step: &StepCosts,
        (content, most): (usize, usize),
        x: &Features,
    ) -> Arms {
        let lengths = self.table.lengths();
        let common = self.refresh.common();
        let plain_log = self.refresh.of_verify(0);
        let plain = step.verify[0] * plain_log;
        let mut arms = Arms {
            plain: plain * common,
            ..Arms::NONE
        };
        let correct = |source, level| self.correction.log_factor(Arm { source, level }, x).exp();
        let plain_factor = correct(0, 0);
        let longest = lengths.last().copied().unwrap_or(0);
        for source in 0..self.sources {
            let own = &row.sources[source];
            let [first, later] = own.estimate.hazards(&self.how);
            let cover = own.estimate.cover();
            let of_draft = self.refresh.of_draft(source);
            let (mut k, mut survival, mut tokens) = (0, first, 1.0);
            arms.per_token[source][0] = plain_factor;
            for (level, &length) in lengths.iter().enumerate().skip(1) {
                let below = lengths[level - 1];
                let cut = length.min(most).max(below);
                let part = (cut - below) as f64 / (length - below) as f64;
                while k < cut {
                    tokens += survival;
                    survival *= later;
                    k += 1;
                }
                let verify = |level: usize| step.verify[level] * self.refresh.of_verify(level);
                let verify = between(verify(level - 1), verify(level), part) / plain;
                let drafts = &step.draft[source];
                let draft = between(drafts[level - 1], drafts[level], part) * of_draft / plain;
                let yields = 1.0 + cover * (tokens - 1.0);
                let steps = 1.0 + cover * (verify - 1.0) + draft;
                arms.draft[source][level] = draft;
                arms.cycle[source][level] = verify + draft;
                arms.tokens[source][level] = yields;
                arms.steps[source][level] = steps;
                arms.per_token[source][level] = steps / yields * correct(source, level);
            }
            let back = self.table.catch_up_seconds(source, 3 * LOOK_BACK / 2);
            // At least a drafted token: a drafter for which no catching up was measured.
            arms.back[source] = (back * of_draft / plain).max(arms.draft[source][1]);
            let lag = content.saturating_sub(own.seen);
            if lag > longest + 1 {
                arms.lag[source] = self.table.catch_up_seconds(source, lag) * of_draft / plain;
            }
        }
        arms
    }
}

fn between(low: f64, high: f64, part: f64) -> f64 {
    low + (high - low) * part
}
