//! What a decoder tells while it works, and at the end.

use crate::{Error, SeqId, Stats, Token};
use std::fmt;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// An end token was emitted; it is the last of the tokens.
    EndToken,
    /// The stop rule of the request (stop strings) was met.
    Stop,
    /// The limit of new tokens or the end of the context was reached.
    Length,
    /// It was cancelled; the tokens so far are kept.
    Cancelled,
    /// It could not go on; the tokens so far are kept. See [`Event::Failed`].
    Failed,
}

impl fmt::Display for FinishReason {
    /// `stop` (end token or stop rule), `length`, `cancelled` or `failed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndToken | Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        })
    }
}

/// A token and its log-probability under the target, before logit rules and temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: Token,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// One emitted token.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Emitted {
    /// The token.
    pub token: Token,
    /// Its log-probability, when logprobs were asked for.
    pub logprob: Option<f32>,
    /// The best tokens at this place, best first, as many as were asked for.
    pub top: Vec<TokenLogprob>,
    /// Whether it was drafted (false: the target's own token).
    pub drafted: bool,
}

/// How many tokens an event carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Granularity {
    /// One event a token.
    #[default]
    Token,
    /// One event a round, with all its tokens.
    Block,
}

/// Something happened to a sequence.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Tokens were emitted, in order; never empty.
    Tokens {
        /// The sequence.
        seq: SeqId,
        /// The tokens.
        tokens: Vec<Emitted>,
    },
    /// The sequence ended. Its last event.
    Finished(Completion),
    /// The sequence could not go on; others are not affected. Its last event.
    Failed {
        /// Why.
        error: Error,
        /// What it had emitted.
        completion: Completion,
    },
}

impl Event {
    /// The sequence it is about.
    pub fn seq(&self) -> SeqId {
        match self {
            Self::Tokens { seq, .. } => *seq,
            Self::Finished(completion) | Self::Failed { completion, .. } => completion.seq,
        }
    }
}

/// The whole result of a sequence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The emitted tokens, an end token included.
    pub tokens: Vec<Token>,
    /// One entry a token when logprobs were asked for, else empty.
    pub logprobs: Vec<Emitted>,
    /// Why it ended.
    pub finish: FinishReason,
    /// What went wrong, in words, when it ended with [`FinishReason::Failed`]; the error itself is
    /// in [`Event::Failed`].
    pub failure: Option<String>,
    /// Counts and times.
    pub stats: Stats,
    /// The seed that was used: asking again with it gives the same tokens.
    pub seed: u64,
    /// Name of the drafter that ran, `None` for plain decoding.
    pub drafter: Option<&'static str>,
}
