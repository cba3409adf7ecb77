use super::{Acceptance, DraftedToken, Position};
use crate::Token;
use crate::sampling::{Proposed, argmax, warp};

/// Sampling whose result is a function of seed and target alone (Daliri et al. 2024,
/// arXiv 2408.07978): the token is the arg max of `logits / T + g`, where the Gumbel noise g
/// depends on (seed, position, token) only. A draft is accepted iff it is that token, so the
/// output is the same whatever was drafted; drafters that share the noise agree more often.
///
/// At temperature 0 it is greedy. The default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coupled;

impl Coupled {
    fn token(at: Position<'_>) -> Option<Token> {
        if at.params.temperature == 0.0 {
            return argmax(at.logits);
        }
        warp(at.params, at.logits);
        at.noise.argmax(at.logits)
    }
}

impl Acceptance for Coupled {
    fn name(&self) -> &'static str {
        "coupled"
    }

    fn is_argmax_at_zero(&self) -> bool {
        true
    }

    fn choose(&self, at: Position<'_>, _: Option<DraftedToken<'_>>) -> Option<Token> {
        Self::token(at)
    }

    fn propose(&self, at: Position<'_>) -> Option<Proposed> {
        Self::token(at).map(|token| Proposed { token, q: None })
    }
}
