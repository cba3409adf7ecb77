//! What a sequence is called, and what schedulers and controllers may know of it.

use std::fmt;

/// A token id, an index into the target's vocabulary.
pub type Token = u32;

/// The name of a sequence inside one decoder. Never reused while the decoder lives, and never an
/// input of sampling: the same request gives the same tokens under any name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A live sequence, as schedulers and controllers see it: counts, never tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeqView {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens of content: prompt and emitted.
    pub content: usize,
    /// Tokens whose keys and values are committed in the cache.
    pub cached: usize,
    /// Tokens emitted so far.
    pub emitted: usize,
    /// The step in which this sequence last took part (or was admitted), counted from 0.
    pub last_run: u64,
    /// The longest draft this sequence can use in the next step; 0 means plain decoding.
    pub max_draft: usize,
    /// Tokens that may still be emitted, by the request's limit and the context.
    pub left: usize,
    /// Tokens of its content whose entries came from a prefix cache, summed over its starts.
    pub reused: usize,
}

impl SeqView {
    /// Whether the whole prompt but its last token is cached, so that the next pass can emit.
    pub fn is_prefilled(&self) -> bool {
        self.cached + 1 >= self.content
    }
}

/// The sequences of a decoder in order of admission, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolView {
    /// One entry a sequence.
    pub rows: Vec<SeqView>,
    /// The number of the step being planned, counted from 0.
    pub step: u64,
}

impl PoolView {
    /// A view of these sequences at this step.
    pub fn new(rows: Vec<SeqView>, step: u64) -> Self {
        Self { rows, step }
    }
}

impl SeqView {
    /// A view with these counts; the others start at 0.
    pub fn new(seq: SeqId, content: usize, cached: usize, emitted: usize) -> Self {
        Self {
            seq,
            content,
            cached,
            emitted,
            last_run: 0,
            max_draft: 0,
            left: 0,
            reused: 0,
        }
    }
}
