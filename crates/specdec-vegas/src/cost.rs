/// When drafting with less attention pays: the roofline of self-speculation in units of the time that
/// a plain step spends on weights.
///
/// A plain step takes `1 + x`; a round of gamma drafts `gamma (w + r x) + 1 + (v + g r) x` and gives
/// tau tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// x: time on keys and values in a plain step, over that on weights. Where memory is the limit
    /// that is their bytes; see [`kv_share`](Self::kv_share).
    pub kv: f64,
    /// r: share of keys and values that a draft step reads.
    pub kept: f64,
    /// v: what verification takes on keys and values, over a plain step; 1 when several queries cost
    /// no more than one, some hundredths more for collecting.
    pub verify: f64,
    /// g: times a round copies the kept keys and values; 0 where drafts read them in place, as ours
    /// do, 2 (read and write) where they are gathered first.
    pub gather: f64,
    /// w: a draft step's time on weights over that of a plain step; 1 for the target itself, less for
    /// a quantised copy.
    pub draft_weights: f64,
}

/// For which x a round beats plain decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BreakEven {
    /// For every x.
    Always,
    /// Above this one.
    Above(f64),
    /// Below this one: what is gained comes from cheap weights, and attention eats it up.
    Below(f64),
    /// For none.
    Never,
}

impl BreakEven {
    /// Whether it pays at `x`.
    pub fn pays(self, x: f64) -> bool {
        match self {
            Self::Always => true,
            Self::Above(from) => x > from,
            Self::Below(to) => x < to,
            Self::Never => false,
        }
    }
}

/// Mean acceptance length of drafts whose token j + 1 is accepted with probability `rates[j]` once
/// those before it are: `1 + sum_i prod_{j <= i} rates[j]`.
pub fn acceptance_length(rates: impl IntoIterator<Item = f64>) -> f64 {
    let mut reached = 1.0;
    let rates = rates.into_iter().map(|rate| {
        reached *= rate;
        reached
    });
    1.0 + rates.sum::<f64>()
}

impl CostModel {
    /// With v = 1, nothing gathered, and the target's own weights.
    pub fn new(kv: f64, kept: f64) -> Self {
        Self {
            kv,
            kept,
            verify: 1.0,
            gather: 0.0,
            draft_weights: 1.0,
        }
    }

    /// x by bytes: `positions` cached tokens of the whole batch, of `position_bytes` each, over the
    /// bytes of the weights.
    pub fn kv_share(positions: usize, position_bytes: usize, weight_bytes: usize) -> f64 {
        positions as f64 * position_bytes as f64 / weight_bytes as f64
    }

    /// A plain step's time.
    pub fn plain(&self) -> f64 {
        1.0 + self.kv
    }

    /// A round's time with drafts of `gamma` tokens.
    pub fn round(&self, gamma: usize) -> f64 {
        let draft = self.draft_weights + self.kept * self.kv;
        let verify = 1.0 + (self.verify + self.gather * self.kept) * self.kv;
        gamma as f64 * draft + verify
    }

    /// Tokens per time over those of plain decoding, for rounds of mean acceptance length `tau`.
    pub fn speedup(&self, gamma: usize, tau: f64) -> f64 {
        tau * self.plain() / self.round(gamma)
    }

    /// For which x, the other numbers being equal, a round pays.
    pub fn break_even(&self, gamma: usize, tau: f64) -> BreakEven {
        let gamma = gamma as f64;
        // It pays where slope * x > fixed.
        let fixed = gamma * self.draft_weights + 1.0 - tau;
        let slope = tau - gamma * self.kept - self.verify - self.gather * self.kept;
        match (fixed < 0.0, slope > 0.0) {
            (true, _) if slope >= 0.0 => BreakEven::Always,
            (true, _) => BreakEven::Below(fixed / slope),
            (false, true) => BreakEven::Above(fixed / slope),
            (false, false) => BreakEven::Never,
        }
    }

    /// The draft length up to `most` with the greatest speedup, and that, where each draft is accepted
    /// with probability `rate`; 0 and 1 where none pays.
    pub fn best(&self, rate: f64, most: usize) -> (usize, f64) {
        let mut best = (0, 1.0);
        for gamma in 1..=most {
            let tau = acceptance_length(std::iter::repeat_n(rate, gamma));
            let speedup = self.speedup(gamma, tau);
            if speedup > best.1 {
                best = (gamma, speedup);
            }
        }
        best
    }

    /// The same from measured times: a draft pass takes `draft` and a verify pass `verify` plain
    /// steps.
    pub fn measured(gamma: usize, tau: f64, draft: f64, verify: f64) -> f64 {
        tau / (gamma as f64 * draft + verify)
    }
}
