//! What a user asks for.

use crate::{CancelToken, Granularity, LogitRule, RequestError, Reuse, SamplingParams, Token};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

/// Fewest and most tokens of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens to emit; 0 gives an empty result without a model call.
    pub max_new_tokens: usize,
    /// Fewest tokens before an end token or stop may end the output.
    pub min_new_tokens: usize,
}

impl Default for Limits {
    /// At most 256, no minimum.
    fn default() -> Self {
        Self {
            max_new_tokens: 256,
            min_new_tokens: 0,
        }
    }
}

/// Whether a request is drafted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// As the decoder is built.
    #[default]
    On,
    /// Plain decoding for this request.
    Off,
    /// Drafts of at most this many tokens.
    AtMost(usize),
}

/// A stop that needs more than one token to see, such as a string. Fed each emitted token once, in
/// order, never a draft.
pub trait StopRule: Send + Debug {
    /// Whether the output ends with this token.
    fn hits(&mut self, token: Token) -> bool;
}

/// A prompt and how to continue it.
#[derive(Debug)]
pub struct Request {
    /// The prompt; not empty.
    pub prompt: Vec<Token>,
    /// Fewest and most tokens.
    pub limits: Limits,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens that end the output (and are its last token).
    pub end_tokens: BTreeSet<Token>,
    /// The request's own logit rules, applied after those of `sampling`.
    pub rules: Vec<Arc<dyn LogitRule>>,
    /// A stop beyond single tokens.
    pub stop: Option<Box<dyn StopRule>>,
    /// Whether to draft.
    pub speculation: Speculation,
    /// Whether it takes part in prefix reuse.
    pub reuse: Reuse,
    /// Lets another thread end it.
    pub cancel: Option<CancelToken>,
    /// Events per token or per round.
    pub granularity: Granularity,
}

impl Request {
    /// A greedy request with the default limits and no end token.
    pub fn new(prompt: impl Into<Vec<Token>>) -> Self {
        Self {
            prompt: prompt.into(),
            limits: Limits::default(),
            sampling: SamplingParams::default(),
            end_tokens: BTreeSet::new(),
            rules: Vec::new(),
            stop: None,
            speculation: Speculation::On,
            reuse: Reuse::default(),
            cancel: None,
            granularity: Granularity::default(),
        }
    }

    /// Sets the most tokens to emit.
    pub fn max_new_tokens(mut self, n: usize) -> Self {
        self.limits.max_new_tokens = n;
        self
    }

    /// Sets how tokens are chosen.
    pub fn sampling(mut self, sampling: SamplingParams) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the end tokens.
    pub fn end_tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.end_tokens = tokens.into_iter().collect();
        self
    }

    /// Sets whether to draft.
    pub fn speculation(mut self, speculation: Speculation) -> Self {
        self.speculation = speculation;
        self
    }

    /// Sets whether it takes part in prefix reuse.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    pub(crate) fn check(&self, vocab: usize, context: usize) -> Result<(), RequestError> {
        if self.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if self.prompt.len() > context {
            return Err(RequestError::PromptTooLong {
                len: self.prompt.len(),
                context,
            });
        }
        if let Some((index, &token)) = self
            .prompt
            .iter()
            .enumerate()
            .find(|(_, t)| **t as usize >= vocab)
        {
            return Err(RequestError::PromptToken {
                index,
                token,
                vocab,
            });
        }
        if let Some(&token) = self.end_tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(RequestError::OptionToken {
                option: "end_tokens",
                token,
                vocab,
            });
        }
        if self.limits.min_new_tokens > self.limits.max_new_tokens {
            return Err(RequestError::OptionValue {
                option: "min_new_tokens",
                value: self.limits.min_new_tokens.to_string(),
                allowed: "at most max_new_tokens",
            });
        }
        self.sampling.check(vocab)
    }
}
