//! From scores to chances, and when to stop drafting.

use crate::lattice::{Lattice, softmax_row};
use specdec_core::{BuildError, Token};

/// How chances of being accepted are read from a lattice: softmax of a row of scores times
/// `sharpness`, times the chance that the right token is among the candidates.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// What scores are multiplied by before the softmax; positive. One that was fitted to the
    /// temperature at which the target is sampled.
    pub sharpness: f64,
    /// The chance of each slot that the right token is a candidate, in 0..=1; slots beyond the
    /// list, and all of them when it is empty, take the sum of the candidates' probabilities.
    pub coverage: Vec<f64>,
}

impl Default for Calibration {
    fn default() -> Self {
        Self {
            sharpness: 1.0,
            coverage: Vec::new(),
        }
    }
}

impl Calibration {
    /// The sharpness under which what was true is likeliest, from rows of scores and the place of
    /// the true candidate in each; coverage stays with the candidates' own probabilities.
    /// Rows in which the truth was no candidate do not belong here.
    pub fn fit(rows: &[(Vec<f32>, usize)]) -> Self {
        let loss = |log_sharpness: f64| -> f64 {
            let sharpness = log_sharpness.exp();
            let of = |(scores, truth): &(Vec<f32>, usize)| {
                let p = softmax_row(scores, sharpness);
                -p.get(*truth).copied().unwrap_or(1.0).max(1e-300).ln()
            };
            rows.iter().map(of).sum()
        };
        // The loss is convex in the sharpness, so it has one valley on the logarithm too.
        let (mut low, mut high) = (-4.0f64, 4.0f64);
        for _ in 0..60 {
            let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            if loss(a) <= loss(b) {
                high = b;
            } else {
                low = a;
            }
        }
        Self {
            sharpness: ((low + high) / 2.0).exp(),
            coverage: Vec::new(),
        }
    }

    /// The chance that each candidate of a slot is right, given that everything before it was and
    /// that `previous` was chosen there, `[K]`.
    pub fn chances(&self, lattice: &Lattice, slot: usize, previous: usize) -> Vec<f64> {
        let covered = || {
            let logprobs = lattice.logprobs.get(slot).map_or(&[][..], Vec::as_slice);
            let sum: f64 = logprobs.iter().map(|&l| f64::from(l).exp()).sum();
            sum.min(1.0)
        };
        let coverage = self.coverage.get(slot).copied().unwrap_or_else(covered);
        softmax_row(lattice.row(slot, previous), self.sharpness)
            .into_iter()
            .map(|p| p * coverage)
            .collect()
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if self.sharpness.is_finite() && self.sharpness > 0.0 {
            return Ok(());
        }
        Err(BuildError::Setting {
            setting: "sharpness",
            value: self.sharpness.to_string(),
            allowed: "a positive number",
        })
    }
}

/// Ends a draft where the chance that all of it is accepted has become small.
///
/// The decision at a slot looks at the lattice and at what was chosen before, never at the token
/// drawn there: a draft that was shortened after a look at its own last token would change the
/// distribution of the output under rejection sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStop {
    /// The least chance that the draft up to and including a slot is accepted.
    pub least: f64,
    /// How chances are read from scores.
    pub calibration: Calibration,
}

impl EarlyStop {
    /// Whether to draft `slot` after `previous`, when what precedes has the chance `so_far`; the
    /// chance with it.
    pub(crate) fn goes_on(
        &self,
        lattice: &Lattice,
        slot: usize,
        previous: usize,
        so_far: f64,
    ) -> Option<f64> {
        let chances = self.calibration.chances(lattice, slot, previous);
        let chance = so_far * chances.iter().copied().fold(0.0, f64::max);
        (chance >= self.least).then_some(chance)
    }
}

/// The longest prefix of `truth` that keeps to a rule, at most `slots`.
pub(crate) fn prefix(truth: &[Token], slots: usize, right: impl Fn(usize, Token) -> bool) -> usize {
    let places = truth.iter().take(slots).enumerate();
    places
        .take_while(|&(slot, &token)| right(slot, token))
        .count()
}
