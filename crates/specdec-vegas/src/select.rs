mod baselines;
mod ranked;

pub use baselines::{Everything, Random, Streaming};
pub use ranked::Ranked;

use specdec_core::{Score, SeqId};
use std::fmt::Debug;

/// The entries of one sequence in one layer among which the keys of the next drafts are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Candidates<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// The layer.
    pub layer: usize,
    /// The key/value head, where each has keys of its own.
    pub head: Option<usize>,
    /// Positions `0..count` can be chosen; those after them are attended to in any case.
    pub count: usize,
    /// Keys that the pass saw, drafted ones included.
    pub keys: usize,
    /// Fewest keys to choose.
    pub least: usize,
    /// Most keys to choose.
    pub budget: usize,
    /// What each candidate weighed, `[count]`: the mean over the query heads that look at them and the
    /// collected queries. Empty when the rule does not need them.
    pub weights: &'a [f32],
    /// What these are: softmax weights, or the scores before softmax.
    pub score: Score,
}

impl<'a> Candidates<'a> {
    /// Candidates `0..count` after a pass that saw as many keys, all of which may be chosen; set the
    /// public fields for what differs.
    pub fn new(seq: SeqId, layer: usize, count: usize, weights: &'a [f32]) -> Self {
        Self {
            seq,
            layer,
            head: None,
            count,
            keys: count,
            least: count,
            budget: count,
            weights,
            score: Score::Weights,
        }
    }
}

/// Chooses the keys that drafts attend to. Whatever it chooses, the output stays the target's; what
/// changes is how many drafts are accepted.
pub trait Select: Send + Sync + Debug {
    /// A short name.
    fn name(&self) -> &'static str;

    /// Whether it looks at [`Candidates::weights`]. If not, no attention is collected.
    fn needs_weights(&self) -> bool;

    /// The chosen positions, in any order; `None` for all. Positions that are not candidates are
    /// ignored.
    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>>;
}
