//! How one request chooses tokens, everywhere: for drafts, in a block, and in plain decoding.

use super::rules::{AllowOnly, Ban, Bias, History, LogitRule, MinNewTokens, Penalties};
use super::{Noise, SamplingParams, log_sum_exp};
use crate::accept::{Acceptance, DraftedToken, Position};
use crate::{Proposal, Token, TokenLogprob};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A token a drafter picked, with the distribution it was drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposed {
    /// The token.
    pub token: Token,
    /// The distribution over the vocabulary, `[V]`; `None` when it was chosen, not drawn.
    pub q: Option<Vec<f32>>,
}

impl Proposed {
    /// Puts the picks of one row together.
    pub fn into_draft(picks: Vec<Self>) -> crate::RowDraft {
        let drawn = picks.iter().any(|p| p.q.is_some());
        let tokens: Vec<Token> = picks.iter().map(|p| p.token).collect();
        let proposal = if drawn {
            Proposal::Dense(picks.into_iter().map(|p| p.q.unwrap_or_default()).collect())
        } else {
            Proposal::Deterministic
        };
        crate::RowDraft { tokens, proposal }
    }
}

/// The rules, the noise and the acceptance rule of one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rules: Vec<Arc<dyn LogitRule>>,
    acceptance: Arc<dyn Acceptance>,
    noise: Noise,
}

impl Sampler {
    /// A sampler with the rules that `params` ask for, then `rules`.
    ///
    /// `seed` is used when `params.seed` is `None`.
    pub fn new(
        params: SamplingParams,
        rules: Vec<Arc<dyn LogitRule>>,
        acceptance: Arc<dyn Acceptance>,
        seed: u64,
    ) -> Self {
        let mut all: Vec<Arc<dyn LogitRule>> = Vec::new();
        let penalties = Penalties {
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
        };
        if penalties
            != (Penalties {
                repetition: 1.0,
                presence: 0.0,
                frequency: 0.0,
            })
        {
            all.push(Arc::new(penalties));
        }
        if !params.logit_bias.is_empty() {
            all.push(Arc::new(Bias(params.logit_bias.clone())));
        }
        if let Some(allowed) = &params.allowed {
            all.push(Arc::new(AllowOnly(allowed.iter().copied().collect())));
        }
        if !params.banned.is_empty() {
            all.push(Arc::new(Ban(params.banned.clone())));
        }
        all.extend(rules);
        let noise = Noise::new(params.seed.unwrap_or(seed), params.sample);
        Self {
            params,
            rules: all,
            acceptance,
            noise,
        }
    }

    /// Greedy, without rules.
    pub fn greedy() -> Self {
        Self::new(
            SamplingParams::greedy(),
            Vec::new(),
            Arc::new(crate::Greedy),
            0,
        )
    }

    /// Forbids `ends` until `min` tokens are emitted.
    pub fn with_minimum(mut self, min: usize, ends: BTreeSet<Token>) -> Self {
        if min > 0 && !ends.is_empty() {
            self.rules.push(Arc::new(MinNewTokens { min, ends }));
        }
        self
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Whether a token is simply the best of the target's logits, untouched.
    pub fn is_plain_argmax(&self) -> bool {
        self.rules.is_empty()
            && self.params.logprobs.is_none()
            && self.params.temperature == 0.0
            && self.acceptance.is_argmax_at_zero()
    }

    /// The token that follows `history`, given the target's logits `[V]` there (overwritten) and
    /// the token drafted for that place, if any. The draft is accepted iff it is what is returned.
    ///
    /// `None` when every token is forbidden.
    pub fn choose(
        &self,
        history: History<'_>,
        logits: &mut [f32],
        draft: Option<DraftedToken<'_>>,
    ) -> Option<Token> {
        self.acceptance
            .choose(self.position(history, logits), draft)
    }

    /// A drafter's pick from its own logits `[V]` (overwritten), as the acceptance rule likes it.
    pub fn propose(&self, history: History<'_>, logits: &mut [f32]) -> Option<Proposed> {
        self.acceptance.propose(self.position(history, logits))
    }

    fn position<'a>(&'a self, history: History<'_>, logits: &'a mut [f32]) -> Position<'a> {
        for rule in &self.rules {
            rule.apply(history, logits);
        }
        Position {
            noise: self.noise.at(history.tokens().len()),
            params: &self.params,
            logits,
        }
    }
}

/// Log-probability of `token` and the `top` best, from untouched logits `[V]`.
pub(crate) fn logprobs(logits: &[f32], token: Token, top: usize) -> (f32, Vec<TokenLogprob>) {
    let norm = log_sum_exp(logits);
    let of = |t: usize| (f64::from(logits[t]) - norm) as f32;
    let mut ids: Vec<usize> = (0..logits.len()).filter(|&i| !logits[i].is_nan()).collect();
    let best = |&a: &usize, &b: &usize| logits[b].total_cmp(&logits[a]).then(a.cmp(&b));
    if top < ids.len() {
        ids.select_nth_unstable_by(top, best);
        ids.truncate(top);
    }
    ids.sort_unstable_by(best);
    let top = ids
        .into_iter()
        .map(|t| TokenLogprob {
            token: t as Token,
            logprob: of(t),
        })
        .collect();
    (of(token as usize), top)
}
