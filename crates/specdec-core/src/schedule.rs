//! Which sequences take part in a step.

use crate::{PoolView, SeqId};

/// Chooses the rows of a step.
pub trait Scheduler: Send {
    /// The sequences that take part in the next step. Names that are not in the pool are ignored,
    /// and so is every second mention of one. An empty answer for a pool that is not empty would
    /// stop decoding for ever: the decoder then takes the oldest sequence.
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId>;
}

/// The oldest sequences first, at most `max_rows` at a time; the others wait for a free place.
/// A sequence that started runs in every step until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstCome {
    /// Most rows in a pass.
    pub max_rows: usize,
}

impl Default for FirstCome {
    /// 16 rows.
    fn default() -> Self {
        Self { max_rows: 16 }
    }
}

impl Scheduler for FirstCome {
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId> {
        pool.rows
            .iter()
            .take(self.max_rows.max(1))
            .map(|row| row.seq)
            .collect()
    }
}
