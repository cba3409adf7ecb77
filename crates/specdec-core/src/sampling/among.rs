//! A pick among a few candidates.

use super::{History, Sampler};
use crate::Token;

/// A candidate a drafter picked, with the distribution over the candidates it was drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct PickedCandidate {
    /// Its place among the candidates.
    pub index: usize,
    /// The token.
    pub token: Token,
    /// Probabilities of the candidates, `[K]`; `None` when it was chosen, not drawn.
    pub probs: Option<Vec<f32>>,
}

impl Sampler {
    /// As [`propose`](Self::propose), for a drafter that has scores of a few candidates only: every
    /// other token has probability 0. The rules see a whole row of logits, minus infinity where
    /// there is no candidate, and noise belongs to the token, so that a pick agrees with the target's
    /// as often as the scores do.
    ///
    /// * `candidates` are different tokens below `vocab`, `scores` `[K]` theirs, as logits;
    /// * equal scores: the first candidate when greedy and without rules, else the lower token.
    ///
    /// `None` when no candidate is left, or when a rule wants a token that is none.
    pub fn propose_among(
        &self,
        history: History<'_>,
        vocab: usize,
        candidates: &[Token],
        scores: &[f32],
    ) -> Option<PickedCandidate> {
        if self.is_plain_argmax() {
            let index = super::argmax(scores)? as usize;
            let token = *candidates.get(index)?;
            return Some(PickedCandidate {
                index,
                token,
                probs: None,
            });
        }
        let mut logits = vec![f32::NEG_INFINITY; vocab];
        for (&token, &score) in candidates.iter().zip(scores) {
            *logits.get_mut(token as usize)? = score;
        }
        let pick = self.propose(history, &mut logits)?;
        let index = candidates.iter().position(|&c| c == pick.token)?;
        let probs = match pick.q {
            None => None,
            Some(q) => {
                let of = |&c: &Token| q.get(c as usize).copied().unwrap_or(0.0);
                let probs: Vec<f32> = candidates.iter().map(of).collect();
                // A rule may have given weight to a token that is no candidate.
                let sum: f64 = probs.iter().map(|&p| f64::from(p)).sum();
                ((sum - 1.0).abs() < 1e-4).then_some(Some(probs))?
            }
        };
        Some(PickedCandidate {
            index,
            token: pick.token,
            probs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coupled, LogitRule, Rejection, SamplingParams};
    use std::sync::Arc;

    fn sampler(rejection: bool, seed: u64, rules: Vec<Arc<dyn LogitRule>>) -> Sampler {
        let params = SamplingParams {
            seed: Some(seed),
            ..SamplingParams::sampled(1.0)
        };
        if rejection {
            Sampler::new(params, rules, Arc::new(Rejection), 0)
        } else {
            Sampler::new(params, rules, Arc::new(Coupled), 0)
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equal_scores() {
        let history = History::new(&[1], 1);
        let pick = Sampler::greedy().propose_among(history, 10, &[7, 3, 5], &[1.0, 2.0, 2.0]);
        let pick = pick.expect("a candidate");
        assert_eq!((pick.index, pick.token, pick.probs), (1, 3, None));
    }

    #[test]
    fn coupled_picks_what_the_target_would_when_the_others_are_impossible() {
        let candidates = [7, 3, 5];
        let scores = [0.5, 0.1, -0.3];
        for seed in 0..200 {
            let sampler = sampler(false, seed, Vec::new());
            let history = History::new(&[1, 2], 1);
            let mut logits = vec![-30.0; 10];
            for (&c, &s) in candidates.iter().zip(&scores) {
                logits[c as usize] = s;
            }
            let want = sampler.choose(history, &mut logits, None);
            let got = sampler.propose_among(history, 10, &candidates, &scores);
            assert_eq!(got.map(|p| p.token), want);
        }
    }

    #[test]
    fn a_drawn_candidate_states_the_softmax_of_its_row() {
        let sampler = sampler(true, 3, Vec::new());
        let pick = sampler.propose_among(History::new(&[1], 1), 10, &[7, 3], &[0.0, 1.0]);
        let probs = pick.and_then(|p| p.probs).expect("drawn");
        let e = 1f32.exp();
        assert!(
            (probs[0] - 1.0 / (1.0 + e)).abs() < 1e-6 && (probs[1] - e / (1.0 + e)).abs() < 1e-6
        );
    }

    #[test]
    fn a_rule_that_wants_another_token_ends_the_draft() {
        #[derive(Debug)]
        struct Force;
        impl LogitRule for Force {
            fn apply(&self, _: History<'_>, logits: &mut [f32]) {
                logits[9] = 50.0;
            }
        }
        let sampler = sampler(true, 3, vec![Arc::new(Force)]);
        let history = History::new(&[1], 1);
        assert_eq!(
            sampler.propose_among(history, 10, &[7, 3], &[0.0, 1.0]),
            None
        );
    }
}
