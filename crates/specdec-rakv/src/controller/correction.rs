use super::arms::Arm;
use crate::costs::{MAX_MENU, MAX_SOURCES};
use std::fmt::Debug;

/// Numbers in [`Features`].
pub const FEATURES: usize = 11;

/// What is known of a row when it is planned for, scaled to about 1: a constant; logarithms of
/// prompt, context and tokens left; the share of reused tokens; acceptance at the first and at later
/// places; the deviation of the first; the share accepted in the last round; logarithms of the
/// drafter's lag and of the rows.
pub type Features = [f64; FEATURES];

/// A learnt correction of the predicted cost of a token.
pub trait Correction: Send + Debug + 'static {
    /// The logarithm of the factor on an arm's predicted seconds per token.
    fn log_factor(&self, arm: Arm, x: &Features) -> f64;

    /// Rounds of an arm took seconds per token of which the logarithm exceeds the corrected
    /// prediction by `error`.
    fn learn(&mut self, arm: Arm, x: &Features, error: f64);
}

/// No correction: acceptance estimates and measured costs alone decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Analytic;

impl Correction for Analytic {
    fn log_factor(&self, _: Arm, _: &Features) -> f64 {
        0.0
    }

    fn learn(&mut self, _: Arm, _: &Features, _: f64) {}
}

/// Most an error counts, as a logarithm.
const MOST: f64 = 0.5;
/// What an observation leaves of the earlier ones.
const KEEP: f64 = 0.995;
/// Uncertainty (trace of the inverse covariance) at which forgetting starts anew.
const TRACE: f64 = 1e3;
/// The usual penalty on weights.
const LAMBDA: f64 = 30.0;

/// Ridge regression of the logarithm of seconds per token on the [`Features`], one for each arm,
/// with the analytic prediction as offset: untrained it changes nothing. It learns while decoding,
/// from the arm played, by recursive least squares.
#[derive(Debug, Clone)]
pub struct Ridge {
    lambda: f64,
    arms: Vec<Option<Box<Regression>>>,
}

#[derive(Debug, Clone)]
struct Regression {
    weights: Features,
    /// The inverse of the (decayed) sum of x x' + lambda.
    inverse: [Features; FEATURES],
}

impl Default for Ridge {
    /// With lambda 30.
    fn default() -> Self {
        Self::new(LAMBDA)
    }
}

impl Ridge {
    /// Untrained, with this penalty on weights (30 where it is not above 0, or not finite).
    pub fn new(lambda: f64) -> Self {
        Self {
            lambda: if lambda > 0.0 && lambda.is_finite() {
                lambda
            } else {
                LAMBDA
            },
            arms: vec![None; MAX_SOURCES * MAX_MENU],
        }
    }

    /// Trains on recorded rounds: arm, features, and the logarithm of measured over predicted
    /// seconds per token. All count the same.
    pub fn fit(mut self, records: impl IntoIterator<Item = (Arm, Features, f64)>) -> Self {
        for (arm, x, y) in records {
            let lambda = self.lambda;
            if let Some(slot) = self.slot(arm) {
                let of = slot.get_or_insert_with(|| Box::new(Regression::new(lambda)));
                let error = y - of.predict(&x);
                of.update(&x, error, 1.0);
            }
        }
        self
    }

    fn slot(&mut self, arm: Arm) -> Option<&mut Option<Box<Regression>>> {
        if arm.level >= MAX_MENU {
            return None;
        }
        self.arms.get_mut(index(arm))
    }
}

/// Plain decoding is one arm, whoever does not draft.
fn index(arm: Arm) -> usize {
    if arm.level == 0 {
        0
    } else {
        arm.source * MAX_MENU + arm.level
    }
}

impl Correction for Ridge {
    fn log_factor(&self, arm: Arm, x: &Features) -> f64 {
        match self.arms.get(index(arm)) {
            Some(Some(of)) => of.predict(x).clamp(-4.0 * MOST, 4.0 * MOST),
            _ => 0.0,
        }
    }

    fn learn(&mut self, arm: Arm, x: &Features, error: f64) {
        let lambda = self.lambda;
        if let (true, Some(slot)) = (error.is_finite(), self.slot(arm)) {
            let of = slot.get_or_insert_with(|| Box::new(Regression::new(lambda)));
            of.update(x, error.clamp(-MOST, MOST), KEEP);
            let trace: f64 = (0..FEATURES).map(|i| of.inverse[i][i]).sum();
            if trace > TRACE {
                of.inverse = Regression::new(lambda).inverse;
            }
        }
    }
}

impl Regression {
    fn new(lambda: f64) -> Self {
        let mut inverse = [[0.0; FEATURES]; FEATURES];
        for (i, row) in inverse.iter_mut().enumerate() {
            row[i] = 1.0 / lambda;
        }
        Self {
            weights: [0.0; FEATURES],
            inverse,
        }
    }

    fn predict(&self, x: &Features) -> f64 {
        self.weights.iter().zip(x).map(|(w, x)| w * x).sum()
    }

    /// Recursive least squares: gain `P x / (f + x'P x)`, `P = (P - gain x'P) / f`.
    fn update(&mut self, x: &Features, error: f64, keep: f64) {
        let mut px = [0.0; FEATURES];
        for (p, row) in px.iter_mut().zip(&self.inverse) {
            *p = row.iter().zip(x).map(|(a, b)| a * b).sum();
        }
        let scale = keep + px.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
        for (i, row) in self.inverse.iter_mut().enumerate() {
            let gain = px[i] / scale;
            self.weights[i] += gain * error;
            for (p, other) in row.iter_mut().zip(&px) {
                *p = (*p - gain * other) / keep;
            }
        }
    }
}

/// What features are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) prompt: usize,
    pub(crate) reused: usize,
    pub(crate) context: usize,
    pub(crate) left: usize,
    pub(crate) acceptance: [f64; 2],
    pub(crate) deviation: f64,
    pub(crate) last: f64,
    pub(crate) lag: usize,
    pub(crate) rows: usize,
}

impl Known {
    pub(crate) fn features(&self) -> Features {
        let log = |n: usize| ((n.min(1 << 30) + 1) as f64).log2() / 10.0;
        [
            1.0,
            log(self.prompt),
            self.reused.min(self.prompt) as f64 / self.prompt.max(1) as f64,
            log(self.context),
            log(self.left),
            self.acceptance[0],
            self.acceptance[1],
            self.deviation,
            self.last,
            log(self.lag),
            log(self.rows),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(i: usize) -> Features {
        let mut x = [0.0; FEATURES];
        for (j, x) in x.iter_mut().enumerate() {
            *x = (((i * 31 + j * 17) % 23) as f64) / 23.0;
        }
        x[0] = 1.0;
        x
    }

    /// The batch solution `(X'X + lambda) w = X'y` by elimination is what the recursion finds.
    #[test]
    fn recursive_least_squares_is_ridge_regression() {
        let arm = Arm {
            source: 1,
            level: 2,
        };
        let truth = |x: &Features| 0.3 * x[0] - 0.2 * x[5] + 0.1 * x[9];
        let records: Vec<_> = (0..60)
            .map(|i| (arm, features(i), truth(&features(i))))
            .collect();
        let ridge = Ridge::new(0.5).fit(records.clone());
        let mut a = vec![vec![0.0; FEATURES + 1]; FEATURES];
        for (_, x, y) in &records {
            for i in 0..FEATURES {
                for j in 0..FEATURES {
                    a[i][j] += x[i] * x[j];
                }
                a[i][FEATURES] += x[i] * y;
            }
        }
        for (i, row) in a.iter_mut().enumerate() {
            row[i] += 0.5;
        }
        for i in 0..FEATURES {
            let pivot = a[i].clone();
            for (_, row) in a.iter_mut().enumerate().filter(|(j, _)| *j != i) {
                let f = row[i] / pivot[i];
                for (x, p) in row.iter_mut().zip(&pivot) {
                    *x -= f * p;
                }
            }
        }
        let x = features(7);
        let want: f64 = (0..FEATURES).map(|i| a[i][FEATURES] / a[i][i] * x[i]).sum();
        let got = ridge.log_factor(arm, &x);
        assert!((got - want).abs() < 1e-9, "{got} {want}");
        assert_eq!(
            ridge.log_factor(
                Arm {
                    source: 0,
                    level: 2
                },
                &x
            ),
            0.0,
            "another arm"
        );
    }

    #[test]
    fn penalties_out_of_range_are_the_usual_one() {
        let arm = Arm {
            source: 0,
            level: 1,
        };
        let trained = |ridge: Ridge| {
            let records = (0..20).map(|i| (arm, features(i), 0.1 * i as f64));
            ridge.fit(records).log_factor(arm, &features(3))
        };
        let usual = trained(Ridge::default());
        for lambda in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(trained(Ridge::new(lambda)), usual, "{lambda}");
        }
        assert_ne!(trained(Ridge::new(1.0)), usual);
    }

    #[test]
    fn untrained_it_changes_nothing_and_wild_errors_are_clipped() {
        let mut ridge = Ridge::default();
        let arm = Arm {
            source: 0,
            level: 1,
        };
        assert_eq!(ridge.log_factor(arm, &features(1)), 0.0);
        for i in 0..5_000 {
            ridge.learn(arm, &features(i), if i % 2 == 0 { 1e30 } else { f64::NAN });
        }
        let got = ridge.log_factor(arm, &features(1));
        assert!(got.is_finite() && got.abs() <= 4.0 * MOST, "{got}");
    }
}
