use crate::acceptance::Forgetting;
use crate::error::{RakvError, Result};

/// Settings of the controller.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `hysteresis` | 0.01 | how much better (share of the rate) another length must promise to be |
/// | `exploration` | 0.003 | share of the time that may be spent on finding out; 0 to 1 |
/// | `memory` | 0.995 | what a comparison leaves of a row's earlier ones; above 0, below 1 |
/// | `slow_memory` | 0.999 | the same for what is known over sequences |
/// | `prior` | 2 | weight of what is known over sequences in a row's estimate, in comparisons |
/// | `start` | 0.8 | acceptance before anything is known |
/// | `start_weight` | 20 | weight of that, in comparisons |
/// | `drift_slack`, `drift_limit` | 0.1, 8 | test for a change of topic (CUSUM) |
/// | `carry_over` | true | sequences begin with what ended ones have taught; else each begins anew |
/// | `refresh` | true | costs follow measured times; else the table stands |
///
/// The defaults are those of the least mean regret in simulation over five cost tables and six
/// acceptance processes.
#[derive(Debug, Clone, PartialEq)]
pub struct AdaptiveOptions {
    /// How much better another length must promise to be.
    pub hysteresis: f64,
    /// Share of the time that may be spent on finding out.
    pub exploration: f64,
    /// What a comparison leaves of a row's earlier ones.
    pub memory: f64,
    /// The same over sequences.
    pub slow_memory: f64,
    /// Weight of what is known over sequences.
    pub prior: f64,
    /// Acceptance before anything is known.
    pub start: f64,
    /// Weight of that.
    pub start_weight: f64,
    /// Drift that is not counted.
    pub drift_slack: f64,
    /// Summed drift at which the past is given up.
    pub drift_limit: f64,
    /// Whether sequences begin with what ended ones have taught.
    pub carry_over: bool,
    /// Whether costs follow measured times.
    pub refresh: bool,
}

impl Default for AdaptiveOptions {
    fn default() -> Self {
        Self {
            hysteresis: 0.01,
            exploration: 0.003,
            memory: 0.995,
            slow_memory: 0.999,
            prior: 2.0,
            start: 0.8,
            start_weight: 20.0,
            drift_slack: 0.1,
            drift_limit: 8.0,
            carry_over: true,
            refresh: true,
        }
    }
}

impl AdaptiveOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let open = |x: f64| x > 0.0 && x < 1.0;
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let checks = [
            (
                "hysteresis",
                self.hysteresis,
                (0.0..1.0).contains(&self.hysteresis),
                "0 or more, below 1",
            ),
            (
                "exploration",
                self.exploration,
                (0.0..=1.0).contains(&self.exploration),
                "0 to 1",
            ),
            ("memory", self.memory, open(self.memory), "above 0, below 1"),
            (
                "slow_memory",
                self.slow_memory,
                open(self.slow_memory),
                "above 0, below 1",
            ),
            ("prior", self.prior, positive(self.prior), "above 0"),
            (
                "start",
                self.start,
                (0.0..=1.0).contains(&self.start),
                "0 to 1",
            ),
            (
                "start_weight",
                self.start_weight,
                positive(self.start_weight),
                "above 0",
            ),
            (
                "drift_slack",
                self.drift_slack,
                (0.0..1.0).contains(&self.drift_slack),
                "0 or more, below 1",
            ),
            (
                "drift_limit",
                self.drift_limit,
                positive(self.drift_limit),
                "above 0",
            ),
        ];
        match checks.into_iter().find(|(_, _, good, _)| !good) {
            None => Ok(()),
            Some((setting, value, _, allowed)) => Err(RakvError::Setting {
                setting,
                value: value.to_string(),
                allowed,
            }),
        }
    }

    pub(crate) fn forgetting(&self) -> Forgetting {
        Forgetting {
            row: self.memory,
            slow: self.slow_memory,
            prior: self.prior,
            slack: self.drift_slack,
            limit: self.drift_limit,
            start: self.start,
        }
    }
}
