//! How far drafts could have been right, and how far they were.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sums over drafted blocks. What a block's text is, is known only as far as the step emitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixCounts {
    /// Blocks that were drafted and verified.
    pub blocks: u64,
    /// Tokens drafted in them.
    pub drafted: u64,
    /// Tokens until the text left the candidates: what the best choice could have got.
    pub oracle: u64,
    /// Tokens until the text left the chosen path.
    pub selected: u64,
    /// Tokens until the text left the drafter's own best tokens, head or no head.
    pub top1: u64,
}

impl PrefixCounts {
    fn mean(&self, sum: u64) -> Option<f64> {
        (self.blocks > 0).then(|| sum as f64 / self.blocks as f64)
    }

    /// Mean length of the prefix that lay among the candidates.
    pub fn oracle_prefix(&self) -> Option<f64> {
        self.mean(self.oracle)
    }

    /// Mean length of the prefix that was chosen.
    pub fn selected_prefix(&self) -> Option<f64> {
        self.mean(self.selected)
    }

    /// Mean length of the prefix that the drafter's best tokens would have got.
    pub fn top1_prefix(&self) -> Option<f64> {
        self.mean(self.top1)
    }
}

/// A view of a drafter's counts that stays when the drafter is inside a decoder.
#[derive(Debug, Clone, Default)]
pub struct PrefixStatistics(Arc<Mutex<PrefixCounts>>);

impl PrefixStatistics {
    /// The counts so far.
    pub fn counts(&self) -> PrefixCounts {
        *self.lock()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PrefixCounts> {
        // Numbers only: a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
