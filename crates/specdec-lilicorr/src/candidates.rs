//! The best tokens of each drafted slot.

/// The K best of one row of logits, best first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Candidates {
    /// Their columns; the lower one first where logits are equal.
    pub ids: Vec<u32>,
    /// `logit - ln(sum(exp(all logits)))`: over the whole row, not over the candidates.
    pub logprobs: Vec<f32>,
}

/// Log-probabilities below this count as this: features must stay finite.
const LEAST: f64 = -1e4;

/// The `k` best of a row of logits; NaN counts as minus infinity.
pub fn top_candidates(logits: &[f32], k: usize) -> Candidates {
    let value = |v: f32| if v.is_nan() { f32::NEG_INFINITY } else { v };
    let k = k.min(logits.len());
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(k + 1);
    for (id, &logit) in logits.iter().enumerate() {
        let logit = value(logit);
        if best.len() == k && best.last().is_none_or(|&(worst, _)| logit <= worst) {
            continue;
        }
        let at = best.partition_point(|&(other, _)| other >= logit);
        best.insert(at, (logit, id as u32));
        best.truncate(k);
    }
    let greatest = best.first().map_or(0.0, |&(logit, _)| f64::from(logit));
    let sum: f64 = logits
        .iter()
        .map(|&l| (f64::from(value(l)) - greatest).exp())
        .sum();
    let norm = greatest + sum.ln();
    let logprob = |logit: f32| (f64::from(logit) - norm).max(LEAST) as f32;
    Candidates {
        ids: best.iter().map(|&(_, id)| id).collect(),
        logprobs: best.iter().map(|&(logit, _)| logprob(logit)).collect(),
    }
}
