//! From logits to the distribution that is sampled from.

use super::SamplingParams;
use crate::Token;
use std::cmp::Ordering;

/// The token with the largest logit, the lowest id where several are equal; NaN is never chosen,
/// nor minus infinity. `None` when nothing is left.
pub fn argmax(logits: &[f32]) -> Option<Token> {
    let mut best = f32::NEG_INFINITY;
    for &l in logits {
        // NaN compares false and is passed over.
        best = if l > best { l } else { best };
    }
    if best == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&l| l == best).map(|i| i as Token)
}

/// Divides by the temperature (which must not be 0) and removes, by setting them to minus
/// infinity, the tokens that top-k, top-p and min-p leave out, in that order. The largest logit
/// becomes 0 before the division, so that no temperature makes an infinity of it.
pub fn warp(params: &SamplingParams, logits: &mut [f32]) {
    let top = max(logits);
    for l in logits.iter_mut() {
        *l = if *l == top {
            0.0
        } else if l.is_nan() {
            f32::NEG_INFINITY
        } else {
            (*l - top) / params.temperature
        };
    }
    if top == f32::NEG_INFINITY {
        logits.fill(top);
        return;
    }
    if let Some(k) = params.top_k.filter(|&k| k < logits.len()) {
        top_k(k, logits);
    }
    if let Some(p) = params.top_p.filter(|&p| p < 1.0) {
        top_p(f64::from(p), logits);
    }
    if let Some(p) = params.min_p.filter(|&p| p > 0.0) {
        let floor = max(logits) + p.ln();
        for l in logits.iter_mut().filter(|l| **l < floor) {
            *l = f32::NEG_INFINITY;
        }
    }
}

/// Softmax in f64, `[V]`, summing to 1; all zero when nothing is left.
pub fn probabilities(logits: &[f32]) -> Vec<f64> {
    let max = max(logits);
    if max == f32::NEG_INFINITY {
        return vec![0.0; logits.len()];
    }
    let mut p: Vec<f64> = logits
        .iter()
        .map(|&l| {
            if l.is_nan() {
                0.0
            } else {
                (f64::from(l) - f64::from(max)).exp()
            }
        })
        .collect();
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|x| *x /= sum);
    p
}

/// `ln(sum(exp(logits)))`, NaN passed over.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(max(logits));
    if max == f64::NEG_INFINITY {
        return max;
    }
    let sum: f64 = logits
        .iter()
        .filter(|l| !l.is_nan())
        .map(|&l| (f64::from(l) - max).exp())
        .sum();
    max + sum.ln()
}

fn max(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Best first: larger logit, then lower id.
fn order(logits: &[f32], a: usize, b: usize) -> Ordering {
    logits[b].total_cmp(&logits[a]).then(a.cmp(&b))
}

fn top_k(k: usize, logits: &mut [f32]) {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.select_nth_unstable_by(k, |&a, &b| order(logits, a, b));
    for &id in &ids[k..] {
        logits[id] = f32::NEG_INFINITY;
    }
}

fn top_p(p: f64, logits: &mut [f32]) {
    let probs = probabilities(logits);
    let best = probs.iter().copied().fold(0.0, f64::max);
    // Only tokens that can be in the set are sorted: first those within a factor, and all of them
    // only when these do not reach the sum.
    let mut ids: Vec<usize> = (0..probs.len())
        .filter(|&i| probs[i] > best * 1e-4)
        .collect();
    if ids.iter().map(|&i| probs[i]).sum::<f64>() < p {
        ids = (0..probs.len()).filter(|&i| probs[i] > 0.0).collect();
    }
    ids.sort_unstable_by(|&a, &b| order(logits, a, b));
    let mut sum = 0.0;
    let reached = ids.iter().position(|&i| {
        sum += probs[i];
        sum >= p
    });
    let keep = reached.map_or(ids.len(), |at| at + 1);
    let kept: Vec<(usize, f32)> = ids[..keep].iter().map(|&i| (i, logits[i])).collect();
    logits.fill(f32::NEG_INFINITY);
    for (id, l) in kept {
        logits[id] = l;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits and temperatures at the ends of what f32 holds: the distribution stays one.
    #[test]
    fn no_temperature_or_bias_makes_a_distribution_of_nan() {
        for temperature in [1e-45, 1e-38, 1e-3, 1.0, 3e38] {
            for largest in [12.0, 3e38, f32::INFINITY] {
                let mut logits = [1.0, largest, f32::NAN, -3e38, f32::NEG_INFINITY];
                warp(&SamplingParams::sampled(temperature), &mut logits);
                let p = probabilities(&logits);
                assert!(
                    (p.iter().sum::<f64>() - 1.0).abs() < 1e-9,
                    "{temperature} {largest}"
                );
                let most = p.iter().copied().fold(0.0, f64::max);
                assert_eq!(p[1], most, "{temperature} {largest}: {p:?}");
                assert_eq!((p[2], p[4]), (0.0, 0.0));
            }
        }
        let mut none = [f32::NAN, f32::NEG_INFINITY];
        warp(&SamplingParams::sampled(1.0), &mut none);
        assert_eq!(probabilities(&none), [0.0, 0.0]);
    }

    #[test]
    fn argmax_takes_the_lowest_id_and_passes_over_nan() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, f32::NAN, 3.0]), Some(1));
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(argmax(&[f32::INFINITY, 0.0]), Some(0));
    }

    fn left(params: SamplingParams, logits: &[f32]) -> Vec<usize> {
        let mut l = logits.to_vec();
        warp(&params, &mut l);
        (0..l.len()).filter(|&i| l[i] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [
            0.7f32.ln(),
            0.1f32.ln(),
            0.1f32.ln(),
            0.06f32.ln(),
            0.04f32.ln(),
        ];
        let base = SamplingParams::sampled(1.0);
        assert_eq!(
            left(
                SamplingParams {
                    top_k: Some(2),
                    ..base.clone()
                },
                &logits
            ),
            [0, 1]
        );
        assert_eq!(
            left(
                SamplingParams {
                    top_p: Some(0.75),
                    ..base.clone()
                },
                &logits
            ),
            [0, 1]
        );
        assert_eq!(
            left(
                SamplingParams {
                    top_p: Some(0.85),
                    ..base.clone()
                },
                &logits
            ),
            [0, 1, 2]
        );
        assert_eq!(
            left(
                SamplingParams {
                    top_p: Some(1e-6),
                    ..base.clone()
                },
                &logits
            ),
            [0]
        );
        assert_eq!(
            left(
                SamplingParams {
                    min_p: Some(0.1),
                    ..base.clone()
                },
                &logits
            ),
            [0, 1, 2]
        );
        assert_eq!(
            left(
                SamplingParams {
                    min_p: Some(1.0),
                    ..base.clone()
                },
                &logits
            ),
            [0]
        );
        let both = SamplingParams {
            top_k: Some(3),
            top_p: Some(0.8),
            ..base
        };
        // After top-k the rest is 0.7/0.9 = 0.78: below 0.8, so one more.
        assert_eq!(left(both, &logits), [0, 1]);
    }
}
