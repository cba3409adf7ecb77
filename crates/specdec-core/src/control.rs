//! Draft lengths: planned before a step, observed after it.

use crate::{PoolView, SeqId};
use std::time::Duration;

/// How many tokens to draft for each row; 0 is plain decoding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Draft length of each row of the view, in its order. Missing entries count as 0; entries
    /// above a row's `max_draft` are cut to it.
    pub lengths: Vec<usize>,
}

/// What one row did in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowOutcome {
    /// The sequence.
    pub seq: SeqId,
    /// Draft length that was planned (after cutting to `max_draft`).
    pub planned: usize,
    /// Tokens the drafter proposed (k).
    pub drafted: usize,
    /// Drafts that were emitted.
    pub accepted: usize,
    /// Tokens emitted: accepted, and the target's own unless the row was cut.
    pub emitted: usize,
    /// Committed length before the step.
    pub context: usize,
    /// Whether the sequence ended in this step.
    pub finished: bool,
}

impl RowOutcome {
    /// A row that drafted the `drafted` tokens planned for it, of which `accepted` and the target's
    /// own token were emitted; set the public fields for what differs.
    pub fn new(seq: SeqId, drafted: usize, accepted: usize) -> Self {
        Self {
            seq,
            planned: drafted,
            drafted,
            accepted,
            emitted: accepted + 1,
            context: 0,
            finished: false,
        }
    }
}

/// What a step did and what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// One entry a row of the verify pass.
    pub rows: Vec<RowOutcome>,
    /// Time in the drafter.
    pub draft_time: Duration,
    /// Time in the verify pass: target, logits, read-back.
    pub verify_time: Duration,
    /// Tokens of the verify block.
    pub block: usize,
}

/// Chooses draft lengths. Sees counts and times, never tensors or text.
pub trait Controller: Send {
    /// Plans the next step for the rows of `view` (those that take part).
    fn plan(&mut self, view: &PoolView) -> Plan;

    /// Learns what a step did.
    fn observe(&mut self, outcome: &Outcome) {
        let _ = outcome;
    }

    /// A sequence has ended.
    fn evict(&mut self, seq: SeqId) {
        let _ = seq;
    }
}

/// The same draft length always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedLength(pub usize);

impl Controller for FixedLength {
    fn plan(&mut self, view: &PoolView) -> Plan {
        Plan {
            lengths: view
                .rows
                .iter()
                .map(|row| row.max_draft.min(self.0))
                .collect(),
        }
    }
}
