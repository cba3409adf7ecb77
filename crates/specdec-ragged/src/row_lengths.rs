mod costs;
mod row;

use costs::Costs;
use row::Row;
use specdec_core::{BuildError, Controller, Outcome, Plan, PoolView, Result, SeqId};
use std::collections::HashMap;

/// Limits of [`RowLengths`].
///
/// | option | default | meaning |
/// |---|---|---|
/// | `min` | 0 | shortest draft; 0 allows plain decoding |
/// | `max` | 8 | longest draft; `min` or more |
/// | `start` | 4 | draft length of a row's first round, rounded down to a level |
/// | `retry` | 8 | plain rounds before the first try to draft again; 1 or more |
/// | `max_retry` | 64 | most plain rounds before such a try; `retry` or more |
/// | `least_cost` | 0.03 | what a drafted token costs at least, in rounds of plain decoding; above 0 |
#[derive(Debug, Clone, PartialEq)]
pub struct RowLengthsOptions {
    /// Shortest draft.
    pub min: usize,
    /// Longest draft.
    pub max: usize,
    /// Draft length of a row's first round.
    pub start: usize,
    /// Plain rounds before the first try.
    pub retry: u32,
    /// Most plain rounds before a try.
    pub max_retry: u32,
    /// Least cost of a drafted token.
    pub least_cost: f64,
}

impl Default for RowLengthsOptions {
    fn default() -> Self {
        Self {
            min: 0,
            max: 8,
            start: 4,
            retry: 8,
            max_retry: 64,
            least_cost: 0.03,
        }
    }
}

impl RowLengthsOptions {
    fn check(&self) -> Result<(), BuildError> {
        let wrong = |setting, value: String, allowed| {
            Err(BuildError::Setting {
                setting,
                value,
                allowed,
            })
        };
        if self.max < self.min {
            return wrong("max", self.max.to_string(), "min or more");
        }
        if self.retry == 0 {
            return wrong("retry", "0".into(), "1 or more");
        }
        if self.max_retry < self.retry {
            return wrong("max_retry", self.max_retry.to_string(), "retry or more");
        }
        if !(self.least_cost > 0.0 && self.least_cost.is_finite()) {
            return wrong("least_cost", self.least_cost.to_string(), "above 0");
        }
        Ok(())
    }

    /// The lengths a row may have: `min`, powers of two, `max`.
    fn levels(&self) -> Vec<usize> {
        let powers = (0..usize::BITS).map(|bit| 1 << bit);
        let mut levels = vec![self.min];
        levels.extend(powers.filter(|k| (self.min + 1..self.max).contains(k)));
        if self.max > self.min {
            levels.push(self.max);
        }
        levels
    }
}

/// A draft length for each row, from how its own drafts fared and from what passes cost.
///
/// Each row keeps a running average `p` of how often a drafted token was accepted. With drafts of
/// `k` tokens a round then yields `E(k) = 1 + p + .. + p^k` tokens, and takes `1 + k c` times as
/// long as a plain one; the row takes the length with the best ratio. The cost `c` of a token is
/// measured: the time of a draft step, and how the time of a verify pass grows with its tokens (per
/// row of the batch, so lengths shrink as batches grow). It comes from [`Outcome`]s alone: the same
/// outcomes give the same plans.
///
/// Lengths are few (0, 1, 2, 4, 8) so that rows run in step, and rise one at a time, and only where
/// that promises 5 % more; they fall as soon as that is better. A row whose drafts do not pay
/// decodes plainly, and tries a short draft again after 8, 16, 32, then every 64 rounds.
///
/// A row's lengths do not depend on what its neighbours' drafts were worth, only on the times of
/// the passes they share.
#[derive(Debug, Clone)]
pub struct RowLengths {
    options: RowLengthsOptions,
    levels: Vec<usize>,
    costs: Costs,
    rows: HashMap<SeqId, Row>,
}

impl Default for RowLengths {
    fn default() -> Self {
        Self::checked(RowLengthsOptions::default())
    }
}

impl RowLengths {
    /// Lengths from 0 to `max`.
    pub fn up_to(max: usize) -> Self {
        Self::checked(RowLengthsOptions {
            max,
            ..RowLengthsOptions::default()
        })
    }

    /// Lengths within other limits.
    ///
    /// # Errors
    /// [`BuildError::Setting`] for an option out of its range.
    pub fn with_options(options: RowLengthsOptions) -> Result<Self> {
        options.check()?;
        Ok(Self::checked(options))
    }

    fn checked(options: RowLengthsOptions) -> Self {
        Self {
            levels: options.levels(),
            costs: Costs::default(),
            rows: HashMap::new(),
            options,
        }
    }
}

impl Controller for RowLengths {
    fn plan(&mut self, view: &PoolView) -> Plan {
        let first = Row::new(&self.levels, &self.options);
        let lengths = view.rows.iter().map(|row| {
            let state = self.rows.get(&row.seq).unwrap_or(&first);
            state.length(&self.levels).min(row.max_draft)
        });
        Plan {
            lengths: lengths.collect(),
        }
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.costs.observe(outcome);
        let cost = self.costs.of_token(outcome.rows.len());
        let cost = cost.max(self.options.least_cost);
        for row in &outcome.rows {
            let state = self
                .rows
                .entry(row.seq)
                .or_insert_with(|| Row::new(&self.levels, &self.options));
            state.observe(row, cost, &self.levels, &self.options);
        }
    }

    fn evict(&mut self, seq: SeqId) {
        self.rows.remove(&seq);
    }
}
