//! The candidates of one block with their scores, on the host, and the paths through them.

use crate::calibration::Calibration;
use specdec_core::Token;
use specdec_core::sampling::probabilities;

/// S slots of K candidates, and how well each follows each.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lattice {
    /// Candidates of each slot, best first, `[S][K]`.
    pub ids: Vec<Vec<Token>>,
    /// Their log-probabilities by the drafter alone, `[S][K]`.
    pub logprobs: Vec<Vec<f32>>,
    /// Scores of the first slot's candidates, `[K]`.
    pub start: Vec<f32>,
    /// Scores from candidate i of slot s to candidate j of slot s + 1, `[S - 1][K (i)][K (j)]`. One
    /// row instead of K: the same for all i.
    pub pairs: Vec<Vec<Vec<f32>>>,
}

impl Lattice {
    /// The lattice of a drafter without head: scores are the log-probabilities, whatever precedes.
    pub fn independent(ids: Vec<Vec<Token>>, logprobs: Vec<Vec<f32>>) -> Self {
        Self {
            start: logprobs.first().cloned().unwrap_or_default(),
            pairs: logprobs
                .iter()
                .skip(1)
                .map(|row| vec![row.clone()])
                .collect(),
            ids,
            logprobs,
        }
    }

    /// Slots.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Scores of a slot's candidates after the candidate chosen before it, `[K]`.
    pub fn row(&self, slot: usize, previous: usize) -> &[f32] {
        let Some(before) = slot.checked_sub(1) else {
            return &self.start;
        };
        let rows = self.pairs.get(before).map_or(&[][..], Vec::as_slice);
        let row = rows.get(previous).or(rows.last());
        row.map_or(&[], Vec::as_slice)
    }

    /// The best candidate of each slot after the one before it; the first of equal ones.
    pub fn greedy(&self) -> Vec<usize> {
        let mut path = Vec::with_capacity(self.len());
        let mut previous = 0;
        for slot in 0..self.len() {
            previous = best(self.row(slot, previous));
            path.push(previous);
        }
        path
    }

    /// The path with the longest expected prefix and that length, by a calibrated model of the
    /// chances: `sum over s of the product of chances up to s`, maximised exactly from the last slot
    /// to the first. Fitted chances matter: with wrong ones it is worse than [`greedy`](Self::greedy).
    pub fn longest_expected(&self, calibration: &Calibration) -> (Vec<usize>, f64) {
        let slots = self.len();
        if slots == 0 {
            return (Vec::new(), 0.0);
        }
        let width = |slot: usize| self.ids[slot].len();
        // Value of standing at each candidate of a slot, and the best next one.
        let mut value = vec![0.0; width(slots - 1)];
        let mut choices: Vec<Vec<usize>> = Vec::new();
        for slot in (0..slots).rev() {
            let froms = if slot == 0 { 1 } else { width(slot - 1) };
            let mut values = Vec::with_capacity(froms);
            let mut nexts = Vec::with_capacity(froms);
            for from in 0..froms {
                let chances = calibration.chances(self, slot, from);
                let (next, gain) = chances
                    .iter()
                    .zip(&value)
                    .map(|(p, v)| p * (1.0 + v))
                    .enumerate()
                    .fold(
                        (0, f64::NEG_INFINITY),
                        |b, (j, g)| if g > b.1 { (j, g) } else { b },
                    );
                nexts.push(next);
                values.push(gain.max(0.0));
            }
            value = values;
            choices.push(nexts);
        }
        let mut path = Vec::with_capacity(slots);
        let mut previous = 0;
        for nexts in choices.iter().rev() {
            previous = nexts[previous];
            path.push(previous);
        }
        (path, value[0])
    }

    /// The tokens of a path.
    pub fn tokens(&self, path: &[usize]) -> Vec<Token> {
        let slots = self.ids.iter().zip(path);
        slots.filter_map(|(ids, &i)| ids.get(i).copied()).collect()
    }
}

/// The place of the greatest score; the first of equal ones, NaN passed over.
pub(crate) fn best(scores: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, &score) in scores.iter().enumerate() {
        if score > best.1 {
            best = (i, score);
        }
    }
    best.0
}

/// Probabilities of a row of scores times a sharpness, `[K]`.
pub(crate) fn softmax_row(scores: &[f32], sharpness: f64) -> Vec<f64> {
    let scaled: Vec<f32> = scores
        .iter()
        .map(|&s| (f64::from(s) * sharpness) as f32)
        .collect();
    probabilities(&scaled)
}
