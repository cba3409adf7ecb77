//! The seam to whatever proposes tokens.

use crate::sampling::{History, PickedCandidate, Proposed, Sampler};
use crate::{BuildError, KvCache, ModelSpec, Phase, Result, SeqId, TargetModel, Token};
use burn::prelude::*;
use std::ops::Range;

/// The distribution a draft was drawn from: the q of rejection sampling, honestly stated.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Proposal {
    /// The token was chosen, not drawn: q is 1 at the token.
    #[default]
    Deterministic,
    /// Drawn from a few candidates; for each drafted token its candidates and their probabilities.
    Sparse {
        /// Candidates of each drafted token, `[k][K]`.
        ids: Vec<Vec<Token>>,
        /// Their probabilities, `[k][K]`, each row summing to 1.
        probs: Vec<Vec<f32>>,
    },
    /// Drawn from the whole vocabulary, `[k][V]`, each row summing to 1.
    Dense(Vec<Vec<f32>>),
}

/// The draft of one row: at most `k` tokens, and how they were found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowDraft {
    /// Proposed tokens, first one next.
    pub tokens: Vec<Token>,
    /// Where they were drawn from.
    pub proposal: Proposal,
}

impl RowDraft {
    /// Tokens that were chosen, not drawn.
    pub fn deterministic(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            proposal: Proposal::Deterministic,
        }
    }
}

/// The drafts of a step, one entry a row of the context, in its order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// One entry a row.
    pub rows: Vec<RowDraft>,
}

/// One row that wants a draft.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DraftRow<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Prompt and emitted tokens; the last one is the anchor.
    pub tokens: &'a [Token],
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Most tokens wanted; at least 1.
    pub k: usize,
    sampler: &'a Sampler,
}

impl<'a> DraftRow<'a> {
    /// A row that wants `k` tokens after `tokens`.
    pub fn new(
        seq: SeqId,
        tokens: &'a [Token],
        prompt_len: usize,
        k: usize,
        sampler: &'a Sampler,
    ) -> Self {
        Self {
            seq,
            tokens,
            prompt_len,
            k,
            sampler,
        }
    }

    /// Picks the next drafted token from a drafter's own logits, as the request's acceptance rule
    /// likes it best: the best token when greedy, with the position's shared noise when coupled,
    /// drawn (and its q stated) under rejection. The request's logit rules are applied first.
    ///
    /// * `drafted` are the tokens picked so far for this row;
    /// * `logits` `[V]` is overwritten.
    ///
    /// `None` when no token is left to pick.
    pub fn pick(&self, drafted: &[Token], logits: &mut [f32]) -> Option<Proposed> {
        if drafted.is_empty() {
            return self
                .sampler
                .propose(History::new(self.tokens, self.prompt_len), logits);
        }
        let tokens = [self.tokens, drafted].concat();
        self.sampler
            .propose(History::new(&tokens, self.prompt_len), logits)
    }

    /// As [`pick`](Self::pick), from scores of a few candidates: see
    /// [`Sampler::propose_among`].
    ///
    /// * `vocab` is the target's vocabulary;
    /// * `candidates` `[K]` are different tokens, `scores` `[K]` theirs, as logits.
    pub fn pick_among(
        &self,
        drafted: &[Token],
        vocab: usize,
        candidates: &[Token],
        scores: &[f32],
    ) -> Option<PickedCandidate> {
        let tokens = [self.tokens, drafted].concat();
        let history = History::new(&tokens, self.prompt_len);
        self.sampler
            .propose_among(history, vocab, candidates, scores)
    }
}

/// What a drafter may use.
pub struct DraftContext<'a> {
    /// The rows that want a draft.
    pub rows: &'a [DraftRow<'a>],
    /// The target, for drafters that run it themselves.
    pub target: &'a dyn TargetModel,
    /// The target's cache, for drafters that run it themselves (in [`Phase::Draft`]).
    pub cache: &'a mut dyn KvCache,
}

impl std::fmt::Debug for DraftContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftContext")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// What a pass committed, for drafters that follow the target.
#[derive(Debug)]
#[non_exhaustive]
pub struct Observation<'a> {
    /// Prefill or verify.
    pub phase: Phase,
    /// One entry a row of the pass.
    pub rows: &'a [ObservedRow<'a>],
    /// The hidden states the drafter tapped, over the whole block, `[T, hidden]` each.
    pub taps: &'a [Tensor<2>],
}

impl<'a> Observation<'a> {
    /// An observation of a pass.
    pub fn new(phase: Phase, rows: &'a [ObservedRow<'a>], taps: &'a [Tensor<2>]) -> Self {
        Self { phase, rows, taps }
    }
}

/// What one row of a pass committed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ObservedRow<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Prompt and emitted tokens after the pass; the last one is not in the cache.
    pub tokens: &'a [Token],
    /// Position of the row's first token in the pass.
    pub start: usize,
    /// Where in the block (and in the taps) the row's committed tokens lie.
    pub committed: Range<usize>,
    /// Tokens that had been drafted.
    pub drafted: usize,
    /// Drafts that were emitted.
    pub accepted: usize,
}

impl<'a> ObservedRow<'a> {
    /// A row that committed the block's tokens `committed`, the first at position `start`.
    pub fn new(seq: SeqId, tokens: &'a [Token], start: usize, committed: Range<usize>) -> Self {
        Self {
            seq,
            tokens,
            start,
            committed,
            drafted: 0,
            accepted: 0,
        }
    }

    /// Sets how many tokens had been drafted and how many of them were emitted.
    pub fn with_draft(mut self, drafted: usize, accepted: usize) -> Self {
        self.drafted = drafted;
        self.accepted = accepted;
        self
    }
}

/// Proposes tokens. Whatever it proposes, the output stays the target's.
pub trait Drafter: Send {
    /// A short name for results and statistics.
    fn name(&self) -> &'static str;

    /// Proposes at most `k` tokens for each row; fewer, or none, is always right.
    ///
    /// # Errors
    /// [`crate::Error::Drafter`]; the step is then not taken and may be tried again.
    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft>;

    /// Learns what a pass committed.
    ///
    /// Positions that were taken from a prefix cache are in no pass: the first observation of a
    /// sequence may start beyond position 0 ([`ObservedRow::start`]). A drafter that needs something
    /// of every position has to do without it there, or to compute it when it drafts.
    ///
    /// # Errors
    /// [`crate::Error::Drafter`].
    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        let _ = observation;
        Ok(())
    }

    /// Which of each row's newest tokens it would have drafted, each after the tokens before it. `k`
    /// of a row is how many to look at; true where the token is the one it would have drafted; fewer
    /// entries, or none, are right. It leaves no trace. `None` when it cannot tell but by drafting.
    ///
    /// A controller asks to learn whether drafting would pay, without drafting.
    ///
    /// # Errors
    /// [`crate::Error::Drafter`].
    fn look_back(&mut self, cx: DraftContext<'_>) -> Result<Option<Vec<Vec<bool>>>> {
        let _ = cx;
        Ok(None)
    }

    /// A sequence has ended, or lost its memory and will be prefilled again: forget it. Unknown ones are ignored.
    fn evict(&mut self, seq: SeqId) {
        let _ = seq;
    }

    /// The target's hidden states it wants to see (see [`TargetModel::forward`]).
    fn taps(&self) -> &[usize] {
        &[]
    }

    /// Checks that it can draft for this target; called once when the decoder is built.
    ///
    /// # Errors
    /// [`BuildError::Vocabulary`] and others, with the reason.
    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        let _ = target;
        Ok(())
    }
}
