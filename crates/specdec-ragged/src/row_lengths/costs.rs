use specdec_core::Outcome;

/// How much of what was known a new round leaves.
const KEEP: f64 = 0.95;

/// What passes cost, measured.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Costs {
    /// Rounds with drafts, and the seconds of a draft step in them.
    drafts: (f64, f64),
    verify: Line,
}

impl Costs {
    pub(super) fn observe(&mut self, outcome: &Outcome) {
        // The drafter runs as many steps as the longest draft asked for.
        let steps = outcome.rows.iter().map(|row| row.planned).max();
        if let Some(steps) = steps.filter(|steps| *steps > 0) {
            let step = outcome.draft_time.as_secs_f64() / steps as f64;
            self.drafts = (KEEP * self.drafts.0 + 1.0, KEEP * self.drafts.1 + step);
        }
        if outcome.block > 0 {
            let seconds = outcome.verify_time.as_secs_f64();
            self.verify.add(outcome.block as f64, seconds);
        }
    }

    /// What one more drafted token costs a row in a batch of `rows`, in rounds of plain decoding: a
    /// draft step is shared by the rows as a round is; a verified token is the row's own.
    pub(super) fn of_token(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        let (fixed, token) = self.verify.fit();
        let step = self.drafts.1 / self.drafts.0.max(1.0);
        let plain = fixed + token * rows;
        let more = step + token * rows;
        if plain > 0.0 {
            more / plain
        } else if more > 0.0 {
            f64::MAX
        } else {
            0.0
        }
    }
}

/// A line through points of which the newer count more.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        for (sum, new) in [
            (&mut self.n, 1.0),
            (&mut self.x, x),
            (&mut self.y, y),
            (&mut self.xx, x * x),
            (&mut self.xy, x * y),
        ] {
            *sum = KEEP * *sum + new;
        }
    }

    /// Height at 0 and slope, neither negative. Flat as long as all points have one x.
    fn fit(&self) -> (f64, f64) {
        if self.n <= 0.0 {
            return (0.0, 0.0);
        }
        let (x, y) = (self.x / self.n, self.y / self.n);
        let spread = self.xx / self.n - x * x;
        let slope = if spread > 1e-6 * x * x {
            ((self.xy / self.n - x * y) / spread).max(0.0)
        } else {
            0.0
        };
        // No steeper than through the origin.
        let slope = slope.min(y / x);
        (y - slope * x, slope)
    }
}
