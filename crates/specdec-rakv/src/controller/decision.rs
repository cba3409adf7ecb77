use specdec_core::SeqId;
use std::fmt;
use std::time::Duration;

/// Why a row drafts as long as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The row cannot use a draft: one token is left, or it is not to be drafted for.
    NoRoom,
    /// The present length is still the best.
    Best,
    /// Another length is better by enough.
    Better,
    /// Another length is better, but not by enough to change.
    NotEnough,
    /// Drafting would be faster, but the drafter has to catch up first and too few tokens are left
    /// to earn that back.
    CatchUp,
    /// To find out whether drafts are right: they are verified.
    Probe,
    /// To find out whether drafts are right: they are compared with what is emitted later, not
    /// verified.
    SilentProbe,
    /// To find out whether drafts would have been right: the drafter looks back at emitted tokens.
    LookBack,
    /// To find out what a plain step costs.
    PlainProbe,
}

/// What was planned for a row in a step, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// The sequence.
    pub seq: SeqId,
    /// Which drafter drafts; nothing is meant by it at length 0.
    pub source: usize,
    /// Draft length; 0 is plain decoding.
    pub length: usize,
    /// Why.
    pub reason: Reason,
    /// Expected tokens of the round.
    pub tokens: f64,
    /// Predicted time of the round, had every row of the step this length.
    pub time: Duration,
    /// Expected tokens per time, in those of plain decoding.
    pub rate: f64,
    /// The estimated share of first drafted tokens that are right.
    pub acceptance: f64,
    /// The drafter and the length that pay from the lowest acceptance on (by a full cycle); the
    /// fastest where none ever pays.
    pub contender: (usize, usize),
    /// The acceptance from which the contender pays; `None` when it never does.
    pub needed: Option<f64>,
}

impl fmt::Display for Decision {
    /// For instance `k = 0: acceptance .41, k = 4 needs .92 here`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = |x: f64| (x * 100.0).round() as u32;
        write!(f, "k = {}: acceptance ", self.length)?;
        match hundredths(self.acceptance) {
            100.. => write!(f, "1.00")?,
            n => write!(f, ".{n:02}")?,
        }
        let (_, k) = self.contender;
        if k == 0 {
            return Ok(());
        }
        match self.needed {
            None => write!(f, ", k = {k} never pays here"),
            Some(needed) => write!(f, ", k = {k} needs .{:02} here", hundredths(needed).min(99)),
        }
    }
}
