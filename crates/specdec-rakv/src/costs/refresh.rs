//! Costs that follow the machine: what a table's cells are off by, learnt from every step.

use super::table::{MAX_MENU, MAX_SOURCES};

/// Samples whose median is the common factor.
const WINDOW: usize = 9;
/// A difference (of logarithms) that is not believed at once.
const SURPRISE: f64 = 0.22;
/// Surprises of one cell in a row before they are believed; more than a common change needs to get
/// through the window.
const PATIENCE: u32 = 12;
/// How much of a believed difference a sample corrects.
const RATE: f64 = 0.02;
/// The same while a cell is being corrected after a surprise.
const FAST: f64 = 0.25;
/// No cell is off by more than this factor (its logarithm).
const MOST: f64 = 1.6;
/// First samples of a cell, in which kernels are compiled and memory is touched.
const WARM_UP: u32 = 2;

/// What a cell is off by, as a logarithm, beside what all are off by.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cell {
    log: f64,
    seen: u32,
    surprises: u32,
}

/// Factors on a table's cells.
///
/// All cells share a factor, the median of the last samples: a machine that slows down as a whole
/// changes no decision, and one stalled step changes nothing at all. A cell that keeps disagreeing
/// with it gets a factor of its own. While the last samples are all of one cell there is nothing to
/// disagree with: times have a long tail, and a cell that learnt the mean beside the median of the
/// same samples would drift away from those that are not played.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refresh {
    recent: [f64; WINDOW],
    /// The cells of these samples.
    played: [usize; WINDOW],
    samples: u64,
    common: f64,
    verify: [Cell; MAX_MENU],
    draft: [Cell; MAX_SOURCES],
}

/// A refresh's factors, to be kept beyond the process.
pub(crate) type Factors = (f64, Vec<f64>, Vec<f64>);

impl Refresh {
    /// A verify pass of the menu's length `i` took `seconds`, `predicted` by the table alone.
    pub(crate) fn verify(&mut self, i: usize, seconds: f64, predicted: f64) {
        if let Some(log) = log_ratio(seconds, predicted) {
            let cell = &mut self.verify[i];
            cell.seen += 1;
            if cell.seen > WARM_UP {
                let own = cell.log;
                let others = self.share(i, log - own);
                if others {
                    let common = self.common;
                    self.verify[i].learn(log - common);
                }
            }
        }
    }

    /// A draft of a source took `seconds`.
    pub(crate) fn draft(&mut self, source: usize, seconds: f64, predicted: f64) {
        if let Some(log) = log_ratio(seconds, predicted) {
            let cell = &mut self.draft[source];
            cell.seen += 1;
            if cell.seen > WARM_UP {
                cell.learn(log - self.common);
            }
        }
    }

    /// The factor of a verify cell relative to that of plain steps.
    pub(crate) fn of_verify(&self, i: usize) -> f64 {
        self.verify[i].log.exp()
    }

    /// The factor of a source's drafts, on the same scale.
    pub(crate) fn of_draft(&self, source: usize) -> f64 {
        self.draft[source].log.exp()
    }

    /// What all cells are off by.
    pub(crate) fn common(&self) -> f64 {
        self.common.exp()
    }

    pub(crate) fn factors(&self) -> Factors {
        let logs = |cells: &[Cell]| cells.iter().map(|c| c.log).collect();
        (self.common, logs(&self.verify), logs(&self.draft))
    }

    pub(crate) fn restored((common, verify, draft): &Factors) -> Self {
        let sane = |x: f64| {
            if x.is_finite() {
                x.clamp(-MOST, MOST)
            } else {
                0.0
            }
        };
        let mut refresh = Self {
            common: if common.is_finite() { *common } else { 0.0 },
            ..Self::default()
        };
        for (cell, log) in refresh.verify.iter_mut().zip(verify) {
            cell.log = sane(*log);
        }
        for (cell, log) in refresh.draft.iter_mut().zip(draft) {
            cell.log = sane(*log);
        }
        refresh
    }

    /// Whether other cells are among the last samples.
    fn share(&mut self, i: usize, log: f64) -> bool {
        let place = (self.samples % WINDOW as u64) as usize;
        (self.recent[place], self.played[place]) = (log, i);
        self.samples += 1;
        let n = (self.samples as usize).min(WINDOW);
        let mut sorted = self.recent;
        sorted[..n].sort_unstable_by(f64::total_cmp);
        self.common = sorted[n / 2];
        self.played[..n].iter().any(|cell| *cell != i)
    }
}

impl Cell {
    fn learn(&mut self, log: f64) {
        let off = log - self.log;
        if off.abs() > SURPRISE {
            self.surprises = self.surprises.saturating_add(1);
            if self.surprises > PATIENCE {
                self.log += FAST * off;
            }
        } else {
            self.surprises = 0;
            self.log += RATE * off;
        }
        self.log = self.log.clamp(-MOST, MOST);
    }
}

fn log_ratio(seconds: f64, predicted: f64) -> Option<f64> {
    (seconds > 0.0 && predicted > 0.0 && seconds.is_finite()).then(|| (seconds / predicted).ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times with a long tail: the mean of their logarithms lies above the median.
    fn skewed(i: u64) -> f64 {
        let x = (i * 7919 % 101) as f64 / 101.0;
        1.0 + 0.2 * x * x * x
    }

    #[test]
    fn one_cell_played_for_long_does_not_drift_from_the_others() {
        let mut refresh = Refresh::default();
        for i in 0..20_000 {
            refresh.verify(0, skewed(i), 1.0);
        }
        let apart = (refresh.of_verify(0) / refresh.of_verify(1)).ln();
        assert!(apart.abs() < 0.01, "{apart}");
        assert!((refresh.common() - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_cell_that_costs_more_beside_others_is_found_out() {
        let mut refresh = Refresh::default();
        for i in 0..2_000 {
            let dear = i % 3 == 0;
            refresh.verify(usize::from(dear), if dear { 1.5 } else { 1.0 }, 1.0);
        }
        let apart = refresh.of_verify(1) / refresh.of_verify(0);
        assert!((1.4..1.6).contains(&apart), "{apart}");
    }
}
