use super::{Acceptance, DraftedToken, Position};
use crate::Token;
use crate::sampling::{Proposed, argmax, probabilities, warp};

/// Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192, appendix A.1; Chen et al. 2023,
/// arXiv 2302.01318): a draft d drawn from q is accepted with probability `min(1, p(d)/q(d))`;
/// otherwise the token is drawn from the normalised `max(0, p - q)`.
///
/// Every token has exactly the target's distribution p, and the acceptance probability is the
/// highest possible. Unlike [`crate::Coupled`], which tokens a seed gives depends on the drafts. At
/// temperature 0 it is greedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rejection;

/// Purposes of a position's uniform numbers.
const ACCEPT: u64 = 1;
const DRAW: u64 = 2;
const DRAFT: u64 = 3;

/// The probability with which a token drawn from q is accepted: `min(1, p/q)`, and 0 where the
/// target gives it none.
pub fn accept_probability(p: f64, q: f64) -> f64 {
    if p <= 0.0 {
        0.0
    } else if p >= q {
        1.0
    } else {
        p / q
    }
}

/// The distribution a token is drawn from after a rejection: `max(0, p - q)` normalised, `[V]`.
/// Where nothing is left (p equals q up to rounding: a rejection then has probability 0), p itself.
pub fn residual(p: &[f64], q: impl Fn(Token) -> f64) -> Vec<f64> {
    let mut left: Vec<f64> = p
        .iter()
        .enumerate()
        .map(|(t, &p)| (p - q(t as Token)).max(0.0))
        .collect();
    let sum: f64 = left.iter().sum();
    if sum <= 0.0 {
        return p.to_vec();
    }
    left.iter_mut().for_each(|x| *x /= sum);
    left
}

/// The token at which the running sum of the distribution passes u.
fn draw(distribution: &[f64], u: f64) -> Option<Token> {
    let mut sum = 0.0;
    let mut last = None;
    for (t, &p) in distribution.iter().enumerate().filter(|(_, p)| **p > 0.0) {
        sum += p;
        last = Some(t as Token);
        if u < sum {
            break;
        }
    }
    last
}

impl Acceptance for Rejection {
    fn name(&self) -> &'static str {
        "rejection"
    }

    fn is_argmax_at_zero(&self) -> bool {
        true
    }

    fn choose(&self, at: Position<'_>, draft: Option<DraftedToken<'_>>) -> Option<Token> {
        if at.params.temperature == 0.0 {
            return argmax(at.logits);
        }
        warp(at.params, at.logits);
        let p = probabilities(at.logits);
        let Some(draft) = draft else {
            return draw(&p, at.noise.uniform(DRAW));
        };
        let q = dense_q(&draft, p.len());
        let of = |t: Token| q.get(t as usize).copied().unwrap_or(0.0);
        let p_draft = p.get(draft.token as usize).copied().unwrap_or(0.0);
        if at.noise.uniform(ACCEPT) < accept_probability(p_draft, of(draft.token)) {
            return Some(draft.token);
        }
        let mut left = residual(&p, of);
        // A rejected token has p < q, so nothing of it is left but rounding.
        if let Some(x) = left.get_mut(draft.token as usize) {
            *x = 0.0;
        }
        draw(&left, at.noise.uniform(DRAW)).or_else(|| draw(&p, at.noise.uniform(DRAW)))
    }

    fn propose(&self, at: Position<'_>) -> Option<Proposed> {
        if at.params.temperature == 0.0 {
            return argmax(at.logits).map(|token| Proposed { token, q: None });
        }
        warp(at.params, at.logits);
        let q = probabilities(at.logits);
        let token = draw(&q, at.noise.uniform(DRAFT))?;
        Some(Proposed {
            token,
            q: Some(q.iter().map(|&x| x as f32).collect()),
        })
    }
}

/// The stated q over the whole vocabulary, `[V]`.
fn dense_q(draft: &DraftedToken<'_>, vocab: usize) -> Vec<f64> {
    use super::DraftedFrom::{Dense, Deterministic, Sparse};
    let mut q = vec![0.0; vocab];
    match draft.q {
        Deterministic => {
            if let Some(x) = q.get_mut(draft.token as usize) {
                *x = 1.0;
            }
        }
        Sparse(ids, probs) => {
            for (&id, &p) in ids.iter().zip(probs) {
                if let Some(x) = q.get_mut(id as usize) {
                    *x += f64::from(p);
                }
            }
        }
        Dense(probs) => {
            for (x, &p) in q.iter_mut().zip(probs) {
                *x = f64::from(p);
            }
        }
    }
    q
}
