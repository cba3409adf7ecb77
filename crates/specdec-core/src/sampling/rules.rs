//! Rules that change logits as a function of the history: nothing to roll back.

use crate::Token;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;

/// The content before a position: the prompt and everything emitted (or, inside a block, drafted
/// and agreed with) before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History<'a> {
    tokens: &'a [Token],
    prompt_len: usize,
}

impl<'a> History<'a> {
    /// A history whose first `prompt_len` tokens are the prompt.
    pub fn new(tokens: &'a [Token], prompt_len: usize) -> Self {
        Self {
            tokens,
            prompt_len: prompt_len.min(tokens.len()),
        }
    }

    /// Prompt and output.
    pub fn tokens(&self) -> &'a [Token] {
        self.tokens
    }

    /// The prompt.
    pub fn prompt(&self) -> &'a [Token] {
        &self.tokens[..self.prompt_len]
    }

    /// The output.
    pub fn output(&self) -> &'a [Token] {
        &self.tokens[self.prompt_len..]
    }
}

/// Changes the logits at one position. Must be a function of its arguments: it is called for
/// positions of drafts too, some of which never come to be, possibly several times.
///
/// A grammar or another constraint is a rule that sets what it forbids to minus infinity.
pub trait LogitRule: Send + Sync + Debug {
    /// Changes `logits` `[V]` of the token that would follow `history`.
    fn apply(&self, history: History<'_>, logits: &mut [f32]);
}

/// Repetition penalty (Keskar et al. 2019, section 4.1) on tokens of prompt and output;
/// presence and frequency penalty on tokens of the output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Above 1 makes repetition less likely; 1 is off.
    pub repetition: f32,
    /// Taken off once for a token that occurs in the output.
    pub presence: f32,
    /// Taken off once per occurrence in the output.
    pub frequency: f32,
}

impl LogitRule for Penalties {
    fn apply(&self, history: History<'_>, logits: &mut [f32]) {
        if self.repetition != 1.0 {
            let seen: BTreeSet<Token> = history.tokens().iter().copied().collect();
            for token in seen {
                if let Some(l) = logits.get_mut(token as usize) {
                    *l = if *l > 0.0 {
                        *l / self.repetition
                    } else {
                        *l * self.repetition
                    };
                }
            }
        }
        if self.presence != 0.0 || self.frequency != 0.0 {
            let mut counts: HashMap<Token, u32> = HashMap::new();
            for &token in history.output() {
                *counts.entry(token).or_default() += 1;
            }
            for (token, count) in counts {
                if let Some(l) = logits.get_mut(token as usize) {
                    *l -= self.presence + self.frequency * count as f32;
                }
            }
        }
    }
}

/// Adds to the logits of some tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Bias(pub Vec<(Token, f32)>);

impl LogitRule for Bias {
    fn apply(&self, _: History<'_>, logits: &mut [f32]) {
        for &(token, bias) in &self.0 {
            if let Some(l) = logits.get_mut(token as usize) {
                *l += bias;
            }
        }
    }
}

/// Forbids every token but these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowOnly(pub BTreeSet<Token>);

impl LogitRule for AllowOnly {
    fn apply(&self, _: History<'_>, logits: &mut [f32]) {
        let kept: Vec<(usize, f32)> = self
            .0
            .iter()
            .filter_map(|&t| Some((t as usize, *logits.get(t as usize)?)))
            .collect();
        logits.fill(f32::NEG_INFINITY);
        for (token, l) in kept {
            logits[token] = l;
        }
    }
}

/// Forbids these tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ban(pub Vec<Token>);

impl LogitRule for Ban {
    fn apply(&self, _: History<'_>, logits: &mut [f32]) {
        forbid(self.0.iter(), logits);
    }
}

/// Forbids the end tokens until the output has this many tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinNewTokens {
    /// Fewest tokens of output before an end token.
    pub min: usize,
    /// The end tokens.
    pub ends: BTreeSet<Token>,
}

impl LogitRule for MinNewTokens {
    fn apply(&self, history: History<'_>, logits: &mut [f32]) {
        if history.output().len() < self.min {
            forbid(self.ends.iter(), logits);
        }
    }
}

fn forbid<'a>(tokens: impl Iterator<Item = &'a Token>, logits: &mut [f32]) {
    for &token in tokens {
        if let Some(l) = logits.get_mut(token as usize) {
            *l = f32::NEG_INFINITY;
        }
    }
}
