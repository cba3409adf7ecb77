use std::fmt;

/// What a controller did and how right it was. Times are seconds.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ControlReport {
    /// Rounds by draft length planned: `(length, rounds)`, in order of the menu.
    pub lengths: Vec<(usize, u64)>,
    /// Rounds spent on finding out (real, silent and plain probes).
    pub probes: u64,
    /// What they cost, in plain steps, by prediction.
    pub probe_steps: f64,
    /// Changes of a row's length or drafter.
    pub switches: u64,
    /// Alarms of the test for a change of topic.
    pub alarms: u64,
    /// Measured seconds of drafting and verifying.
    pub measured: f64,
    /// Predicted seconds of the same steps.
    pub predicted: f64,
    /// Sum of `|predicted - measured| / measured` over steps.
    pub error_sum: f64,
    /// Steps in these sums.
    pub steps: u64,
    /// Tokens emitted.
    pub tokens: u64,
    /// Predicted plain steps' worth of time spent, row by row.
    pub spent: f64,
    /// The same for the best fixed choice, at the acceptance estimated along the way.
    pub best_fixed: f64,
    /// The best fixed choice: drafter and length.
    pub best_choice: (usize, usize),
    /// Estimated acceptance by drafter, over ended sequences: first place, later places.
    pub acceptance: Vec<(String, [f64; 2])>,
    /// The factor by which steps take longer than the table says.
    pub slowdown: f64,
}

impl ControlReport {
    /// Mean of `|predicted - measured| / measured`; `None` before the first step.
    pub fn time_error(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.error_sum / self.steps as f64)
    }

    /// Time spent over that of the best fixed choice, less 1, by prediction; negative where changing
    /// was better than any fixed choice. `None` before the first round.
    pub fn regret(&self) -> Option<f64> {
        (self.best_fixed > 0.0).then(|| self.spent / self.best_fixed - 1.0)
    }

    /// Tokens per round.
    pub fn tokens_per_round(&self) -> Option<f64> {
        let rounds: u64 = self.lengths.iter().map(|(_, n)| n).sum();
        (rounds > 0).then(|| self.tokens as f64 / rounds as f64)
    }
}

impl fmt::Display for ControlReport {
    /// One line, for instance `k 0:91% 4:9%  acceptance ngram .41  probes 12  regret +0.3%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k")?;
        let rounds: u64 = self.lengths.iter().map(|(_, n)| n).sum();
        for (k, n) in self.lengths.iter().filter(|(_, n)| *n > 0) {
            write!(f, " {k}:{:.0}%", 100.0 * *n as f64 / rounds as f64)?;
        }
        write!(f, "  acceptance")?;
        for (name, [first, _]) in &self.acceptance {
            write!(f, " {name} {first:.2}")?;
        }
        write!(f, "  probes {}", self.probes)?;
        if let Some(regret) = self.regret() {
            write!(f, "  regret {:+.1}%", 100.0 * regret)?;
        }
        Ok(())
    }
}

/// How well decisions between drafting and not drafting agree with what was best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accuracy {
    /// Conditions where drafting was best: decided so, and all.
    pub drafting: (u64, u64),
    /// Conditions where plain decoding was best: decided so, and all.
    pub plain: (u64, u64),
}

impl Accuracy {
    /// Counts one condition.
    pub fn count(&mut self, best_drafts: bool, decided_drafts: bool) {
        let (right, all) = if best_drafts {
            (&mut self.drafting.0, &mut self.drafting.1)
        } else {
            (&mut self.plain.0, &mut self.plain.1)
        };
        *right += u64::from(best_drafts == decided_drafts);
        *all += 1;
    }

    /// The mean of the shares of right decisions in both classes. `None` when one class is empty: a
    /// constant answer would look perfect.
    pub fn balanced(&self) -> Option<f64> {
        let share = |(right, all): (u64, u64)| (all > 0).then(|| right as f64 / all as f64);
        Some((share(self.drafting)? + share(self.plain)?) / 2.0)
    }
}
