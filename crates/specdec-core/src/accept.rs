mod commit;
mod coupled;
mod greedy;
mod rejection;

pub use commit::{Budget, Committed, commit};
pub use coupled::Coupled;
pub use greedy::Greedy;
pub use rejection::{Rejection, accept_probability, residual};

use crate::sampling::{PositionNoise, Proposed, SamplingParams};
use crate::{Proposal, RequestError, Token};
use std::fmt::Debug;

/// One position at which a token is to be chosen.
#[derive(Debug)]
pub struct Position<'a> {
    /// Logits after the request's rules, `[V]`; may be overwritten.
    pub logits: &'a mut [f32],
    /// The request's parameters.
    pub params: &'a SamplingParams,
    /// The noise of this position.
    pub noise: PositionNoise,
}

/// A drafted token and the distribution it was drawn from.
#[derive(Debug, Clone, Copy)]
pub struct DraftedToken<'a> {
    /// The token.
    pub token: Token,
    /// Its q.
    pub q: DraftedFrom<'a>,
}

/// Where a drafted token was drawn from.
#[derive(Debug, Clone, Copy)]
pub enum DraftedFrom<'a> {
    /// It was chosen: q is 1 at the token.
    Deterministic,
    /// Candidates and their probabilities.
    Sparse(&'a [Token], &'a [f32]),
    /// Probabilities of the whole vocabulary.
    Dense(&'a [f32]),
}

impl DraftedFrom<'_> {
    /// q as a function of the token.
    pub fn probability(&self, drafted: Token, token: Token) -> f64 {
        match self {
            Self::Deterministic => f64::from(u8::from(drafted == token)),
            Self::Sparse(ids, probs) => ids
                .iter()
                .zip(*probs)
                .filter(|(id, _)| **id == token)
                .map(|(_, p)| f64::from(*p))
                .sum(),
            Self::Dense(probs) => probs.get(token as usize).map_or(0.0, |p| f64::from(*p)),
        }
    }
}

impl Proposal {
    /// Where token `i` of a draft was drawn from.
    pub fn at(&self, i: usize) -> DraftedFrom<'_> {
        match self {
            Self::Deterministic => DraftedFrom::Deterministic,
            Self::Sparse { ids, probs } => match (ids.get(i), probs.get(i)) {
                (Some(ids), Some(probs)) => DraftedFrom::Sparse(ids, probs),
                _ => DraftedFrom::Sparse(&[], &[]),
            },
            Self::Dense(rows) => DraftedFrom::Dense(rows.get(i).map_or(&[], Vec::as_slice)),
        }
    }
}

/// An acceptance rule: which token is emitted at a position, and with it whether the draft there
/// was right.
///
/// The token chosen without a draft must have the target's distribution, and with a draft drawn
/// from the stated q too: that is what makes speculation lossless.
pub trait Acceptance: Send + Sync + Debug {
    /// The rule's name.
    fn name(&self) -> &'static str;

    /// Refuses parameters the rule cannot honour.
    ///
    /// # Errors
    /// [`RequestError::OptionRefused`], naming the option.
    fn check(&self, params: &SamplingParams) -> Result<(), RequestError> {
        let _ = params;
        Ok(())
    }

    /// Whether, at temperature 0 and without logit rules, the token is always the target's best one, of equals the lowest
    /// id. Such tokens may be chosen on the device, without asking the rule.
    fn is_argmax_at_zero(&self) -> bool {
        false
    }

    /// The token to emit. The draft is accepted iff it is the token returned.
    fn choose(&self, at: Position<'_>, draft: Option<DraftedToken<'_>>) -> Option<Token>;

    /// The token a drafter should propose, from its own logits.
    fn propose(&self, at: Position<'_>) -> Option<Proposed>;
}
