//! Seconds of drafts that may come back shorter than asked.

use super::samples::Samples;

/// The passes of one draft cell.
#[derive(Debug, Clone, Default)]
pub(super) struct Drafted {
    passes: usize,
    /// Seconds of each pass.
    timed: Samples,
    /// Seconds of the passes that drafted something, as if they had drafted all that was asked.
    whole: Samples,
}

/// What a cell's passes say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Price {
    /// Median seconds of the passes, whatever they drafted.
    pub(super) timed: f64,
    /// Median seconds of a whole draft, where at least half of the passes drafted something.
    pub(super) whole: Option<f64>,
    /// Passes that were left out.
    pub(super) dropped: usize,
}

impl Drafted {
    /// A pass that took `seconds` and drafted `drafted` of `asked` tokens.
    pub(super) fn add(&mut self, seconds: f64, drafted: usize, asked: usize) {
        self.passes += 1;
        self.timed.add(seconds);
        if drafted > 0 {
            let short = asked.max(drafted) as f64 / drafted as f64;
            self.whole.add(seconds * short);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.passes
    }

    pub(super) fn price(&self) -> Price {
        let (timed, dropped) = self.timed.median();
        if 2 * self.whole.len() < self.passes || self.whole.len() == 0 {
            return Price {
                timed,
                whole: None,
                dropped,
            };
        }
        let (whole, dropped) = self.whole.median();
        Price {
            timed,
            whole: Some(whole),
            dropped,
        }
    }
}

/// Seconds of each cell of one drafter at some rows and context, by draft length. Where hardly
/// anything was drafted: the dearest drafted token of the other lengths, for each token of this one;
/// without any the verify pass of this length; and what the passes took, if that is more.
pub(super) fn seconds(lengths: &[usize], verify: &[f64], prices: &[Price]) -> Vec<f64> {
    let cells = || {
        lengths
            .iter()
            .zip(prices)
            .filter(|(length, _)| **length > 0)
    };
    let token = cells()
        .filter_map(|(&length, price)| Some(price.whole? / length as f64))
        .max_by(f64::total_cmp);
    let charge = |((&length, &verify), price): ((&usize, &f64), &Price)| {
        if length == 0 {
            return 0.0;
        }
        let unknown = || token.map_or(verify, |token| token * length as f64);
        price.whole.unwrap_or_else(|| unknown().max(price.timed))
    };
    lengths.iter().zip(verify).zip(prices).map(charge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(passes: &[(f64, usize)], asked: usize) -> Price {
        let mut cell = Drafted::default();
        for &(seconds, drafted) in passes {
            cell.add(seconds, drafted, asked);
        }
        assert_eq!(cell.len(), passes.len());
        cell.price()
    }

    #[test]
    fn short_drafts_count_as_if_they_had_gone_on() {
        let whole = |passes: &[(f64, usize)]| cell(passes, 4).whole;
        assert_eq!(whole(&[(1.0, 4), (1.0, 4), (1.0, 4)]), Some(1.0));
        assert_eq!(whole(&[(1.0, 2), (1.0, 2), (1.0, 4)]), Some(2.0));
        // Empty drafts are fast, and say nothing.
        assert_eq!(whole(&[(1.0, 4), (1.0, 4), (1e-6, 0)]), Some(1.0));
        assert_eq!(whole(&[(1.0, 4), (1e-6, 0), (1e-6, 0)]), None);
        assert_eq!(whole(&[]), None);
    }

    #[test]
    fn cells_without_drafts_are_not_free() {
        let (lengths, verify) = ([0, 1, 4], [1.0, 1.5, 3.0]);
        let empty = |n| cell(&[(1e-6, 0); 3], n);
        let of = |one, four| seconds(&lengths, &verify, &[empty(0), one, four]);
        assert_eq!(of(empty(1), empty(4)), [0.0, 1.5, 3.0]);
        let slow = cell(&[(7.0, 0); 3], 4);
        assert_eq!(of(empty(1), slow), [0.0, 1.5, 7.0]);
        let one = cell(&[(0.5, 1); 3], 1);
        assert_eq!(of(one, empty(4)), [0.0, 0.5, 2.0]);
        let four = cell(&[(0.8, 4); 3], 4);
        assert_eq!(of(empty(1), four), [0.0, 0.2, 0.8]);
    }
}
