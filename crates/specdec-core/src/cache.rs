//! The one seam between a model and its memory.

use crate::{Result, RowSpan, SeqId};
use burn::prelude::*;
use std::ops::Range;

/// Attention as a model sees it.
pub trait Attend {
    /// Stores this layer's new keys and values and attends to everything each token may see:
    /// all committed positions of its own sequence, and the block's earlier tokens of its own row.
    ///
    /// * `q` `[T, H, D]`, `k` and `v` `[T, Hkv, D]`, position encoding applied.
    /// * returns `[T, H, D]`.
    ///
    /// # Errors
    /// [`crate::Error::Cache`] for a layer or shape that does not fit the cache.
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>>;
}

/// Why a pass runs. Caches that learn from attention (or save it) treat phases differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Prompt tokens; all of them will be kept.
    Prefill,
    /// A drafter that runs the target itself. Staged entries of successive draft passes add up and
    /// are always rolled back: they never become committed.
    Draft,
    /// The anchor and the draft of each row.
    Verify,
}

/// A copy of committed, exact keys and values of one sequence.
#[derive(Debug, Clone)]
pub struct KvSegment {
    /// Positions covered.
    pub range: Range<usize>,
    /// Per layer: keys and values, `[len, Hkv, D]` each.
    pub layers: Vec<(Tensor<3>, Tensor<3>)>,
}

/// Keys and values of many sequences. Every pass is a transaction: `begin`, one `attend` per layer,
/// then `commit` or `rollback`.
///
/// Between passes, entry `p < len(seq)` of a sequence holds the keys and values of its token at
/// position `p`, computed while attending to exactly its positions `0..=p`.
pub trait KvCache: Send {
    /// Committed entries of a sequence; 0 for one never seen.
    fn len(&self, seq: SeqId) -> usize;

    /// Opens a pass. Each row must start at its committed length (in [`Phase::Draft`]: at its
    /// committed length plus what earlier draft passes staged). Sequences are created on first use.
    ///
    /// # Errors
    /// [`crate::CacheError`] when a pass is open, a row starts elsewhere or memory is exhausted;
    /// nothing has changed then.
    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>>;

    /// Ends the pass, keeping the first `keep[r]` staged entries of row `r`.
    ///
    /// # Errors
    /// [`crate::CacheError`] when no pass is open, it is a draft pass, or `keep` does not fit; the
    /// pass stays open.
    fn commit(&mut self, keep: &[usize]) -> Result<()>;

    /// Ends the pass, if one is open, keeping nothing.
    fn rollback(&mut self);

    /// Forgets a sequence and frees its memory. Unknown ones are ignored.
    fn evict(&mut self, seq: SeqId);

    /// Copies committed entries out; an empty range gives a segment without entries.
    ///
    /// # Errors
    /// [`crate::CacheError`] when the range is not committed (or no longer held).
    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment>;

    /// Appends exact entries to a sequence whose length is `segment.range.start`.
    ///
    /// # Errors
    /// [`crate::CacheError`] when the segment does not continue the sequence or has another shape.
    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()>;

    /// Whether [`begin`](Self::begin) has memory for these rows. Rows that do not fit wait, or
    /// others are preempted for them.
    fn fits(&self, rows: &[RowSpan]) -> bool {
        let _ = rows;
        true
    }

    /// Most entries that one sequence can have when it is alone; `None` without a limit.
    fn capacity(&self) -> Option<usize> {
        None
    }

    /// Whether `commit` may keep fewer entries than were staged. Caches of models with recurrent
    /// state may not; speculation is then refused when the decoder is built.
    fn can_rewind(&self) -> bool {
        true
    }

    /// Bytes held now, used or free.
    fn memory_bytes(&self) -> usize;
}
