use super::RowLengthsOptions;
use specdec_core::RowOutcome;

/// How much of a row's past a new round leaves.
const KEEP: f64 = 0.85;

/// What is thought of a row before anything is known: that many tokens, that many of them accepted.
const PRIOR: (f64, f64) = (2.0, 1.4);

/// How much better a longer draft must promise to be.
const GAIN: f64 = 1.05;

/// What is known of a row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// Drafted tokens that were judged, and accepted ones; the newer count more.
    judged: (f64, f64),
    level: usize,
    /// Plain rounds since the last draft.
    idle: u32,
    /// Plain rounds after which a draft is tried.
    wait: u32,
}

impl Row {
    pub(super) fn new(levels: &[usize], options: &RowLengthsOptions) -> Self {
        let below = levels.partition_point(|k| *k <= options.start);
        Self {
            judged: PRIOR,
            level: below.saturating_sub(1),
            idle: 0,
            wait: options.retry,
        }
    }

    /// The length of the next draft.
    pub(super) fn length(&self, levels: &[usize]) -> usize {
        match levels[self.level] {
            0 if self.idle >= self.wait => levels.get(1).copied().unwrap_or(0),
            k => k,
        }
    }

    pub(super) fn observe(
        &mut self,
        outcome: &RowOutcome,
        cost: f64,
        levels: &[usize],
        options: &RowLengthsOptions,
    ) {
        let plain = levels[self.level] == 0;
        if outcome.drafted == 0 {
            // Asked for and not given: nothing is learnt, and nothing was lost.
            let asked = outcome.planned > 0;
            self.idle = if asked || !plain { 0 } else { self.idle + 1 };
            return;
        }
        let accepted = outcome.accepted.min(outcome.drafted);
        let all = accepted == outcome.drafted;
        let judged = accepted + usize::from(!all);
        self.judged.0 = KEEP * self.judged.0 + judged as f64;
        self.judged.1 = KEEP * self.judged.1 + accepted as f64;
        self.level = self.choose(cost, levels);
        if levels[self.level] > 0 {
            (self.idle, self.wait) = (0, options.retry);
        } else if plain && all {
            // A try that went well is followed by another at once.
            self.idle = self.wait;
        } else {
            let longer = self.wait.saturating_mul(2).min(options.max_retry);
            (self.idle, self.wait) = (0, if plain { longer } else { options.retry });
        }
    }

    /// The best level, but at most one above the present one.
    fn choose(&self, cost: f64, levels: &[usize]) -> usize {
        let p = self.judged.1 / self.judged.0;
        let value = |level: usize| {
            let k = levels[level] as f64;
            let tokens = if p < 1.0 {
                (1.0 - p.powf(k + 1.0)) / (1.0 - p)
            } else {
                k + 1.0
            };
            tokens / (1.0 + k * cost)
        };
        let best = (0..levels.len()).fold(0, |best, level| {
            if value(level) > value(best) {
                level
            } else {
                best
            }
        });
        if best <= self.level {
            best
        } else if value(best) > GAIN * value(self.level) {
            self.level + 1
        } else {
            self.level
        }
    }
}
