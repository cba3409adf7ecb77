//! Reproducible numbers: the same on every platform and in every release.

/// A bijection of 64 bits that spreads every input bit (the finaliser of SplitMix64).
fn spread(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One number from several.
pub(crate) fn digest(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(STEP, |key, part| {
        spread(spread(key.wrapping_add(STEP)) ^ part.wrapping_mul(STEP))
    })
}

/// Whether an event of probability `p` happens at these coordinates.
pub(crate) fn happens(p: f64, parts: impl IntoIterator<Item = u64>) -> bool {
    ((digest(parts) >> 11) as f64) < p * (1u64 << 53) as f64
}

/// A stream of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(digest([seed]))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        spread(self.0)
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n.saturating_sub(1))
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Uniform in `[-1, 1)`, with few enough bits that products stay well-behaved in f32.
    pub(crate) fn signed(&mut self) -> f32 {
        ((self.bits() >> 48) as f32) / 32768.0 - 1.0
    }

    /// Near a standard normal: the sum of twelve uniform numbers less 6. No library function is
    /// involved, so every platform gives the same bits.
    pub(crate) fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.unit()).sum::<f64>() - 6.0) as f32
    }
}
