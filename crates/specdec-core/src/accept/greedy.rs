use super::{Acceptance, DraftedToken, Position};
use crate::sampling::{Proposed, SamplingParams, argmax};
use crate::{RequestError, Token};

/// The best token always (lowest id where several are equal). Refuses a temperature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Greedy;

impl Acceptance for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn is_argmax_at_zero(&self) -> bool {
        true
    }

    fn check(&self, params: &SamplingParams) -> Result<(), RequestError> {
        if params.temperature > 0.0 {
            return Err(RequestError::OptionRefused {
                option: "temperature",
                rule: self.name(),
            });
        }
        Ok(())
    }

    fn choose(&self, at: Position<'_>, _: Option<DraftedToken<'_>>) -> Option<Token> {
        argmax(at.logits)
    }

    fn propose(&self, at: Position<'_>) -> Option<Proposed> {
        argmax(at.logits).map(|token| Proposed { token, q: None })
    }
}
