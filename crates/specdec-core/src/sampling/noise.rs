//! Random numbers that are a function of (seed, sample, position) and of nothing else: not of
//! row, batch, step or drafter, so that there is nothing to roll back and nothing to keep.

/// The noise of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    key: u64,
}

/// The noise at one position of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionNoise {
    key: u64,
}

/// A bijection of 64 bits in which every input bit flips about half of the output bits
/// (the finaliser of SplitMix64, Steele, Lea and Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn fold(key: u64, value: u64) -> u64 {
    mix(mix(key.wrapping_add(GOLDEN)) ^ value.wrapping_mul(GOLDEN))
}

/// Maps 64 bits to the middle of one of 2^53 cells of (0, 1): never 0, never 1.
fn unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

impl Noise {
    /// The noise of sample `sample` of a request with this seed.
    pub fn new(seed: u64, sample: u64) -> Self {
        Self {
            key: fold(fold(0, seed), sample),
        }
    }

    /// The noise for choosing the token at content index `position`.
    pub fn at(&self, position: usize) -> PositionNoise {
        PositionNoise {
            key: fold(self.key, position as u64),
        }
    }
}

impl PositionNoise {
    /// A uniform number in (0, 1); different `purpose`s give independent numbers.
    pub fn uniform(&self, purpose: u64) -> f64 {
        unit(fold(self.key ^ 0x5bd1_e995, purpose))
    }

    /// Standard Gumbel noise of a token: `-ln(-ln u)`.
    pub fn gumbel(&self, token: u32) -> f64 {
        gumbel_of(self.bits(token))
    }

    fn bits(&self, token: u32) -> u64 {
        mix(self.key ^ u64::from(token).wrapping_mul(GOLDEN))
    }

    /// The token with the largest `logit + gumbel` (lowest id on ties) among those whose logit is
    /// a number above minus infinity, where `logits` are divided by the temperature already.
    ///
    /// Exactly the plain arg max, but a token whose noise cannot reach the best sum so far is
    /// dismissed without computing logarithms: a Gumbel value above x needs `1 - u < e^-x`, and
    /// the leading ones of the random bits bound `1 - u` from below.
    pub fn argmax(&self, logits: &[f32]) -> Option<u32> {
        let first = super::argmax(logits)?;
        let mut best = (
            f64::from(logits[first as usize]) + self.gumbel(first),
            first,
        );
        for (token, &logit) in logits.iter().enumerate() {
            let token = token as u32;
            if logit.is_nan() || logit == f32::NEG_INFINITY || token == first {
                continue;
            }
            let need = best.0 - f64::from(logit);
            let bits = self.bits(token);
            if f64::from((!bits).leading_zeros() + 1) < need * std::f64::consts::LOG2_E {
                continue;
            }
            let sum = f64::from(logit) + gumbel_of(bits);
            if sum > best.0 || (sum == best.0 && token < best.1) {
                best = (sum, token);
            }
        }
        Some(best.1)
    }
}

fn gumbel_of(bits: u64) -> f64 {
    -(-unit(bits).ln()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dismissal_never_changes_the_winner() {
        for seed in 0..300 {
            let noise = Noise::new(seed, 1).at(7);
            let logits: Vec<f32> = (0..500)
                .map(|i| (unit(fold(seed, i)) * 12.0 - 6.0) as f32)
                .collect();
            let plain = (0..500u32)
                .map(|t| f64::from(logits[t as usize]) + noise.gumbel(t))
                .enumerate()
                .fold(
                    (f64::NEG_INFINITY, 0),
                    |b, (i, v)| if v > b.0 { (v, i) } else { b },
                )
                .1;
            assert_eq!(noise.argmax(&logits), Some(plain as u32), "seed {seed}");
        }
    }

    #[test]
    fn noise_differs_by_seed_sample_position_and_token() {
        let at = |s, n, p, t| Noise::new(s, n).at(p).gumbel(t);
        let base = at(1, 0, 0, 0);
        assert_eq!(base, at(1, 0, 0, 0));
        for other in [
            at(2, 0, 0, 0),
            at(1, 1, 0, 0),
            at(1, 0, 1, 0),
            at(1, 0, 0, 1),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn gumbel_argmax_draws_from_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let z: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let n = 40_000;
        let mut counts = [0usize; 4];
        for seed in 0..n {
            counts[Noise::new(seed, 0)
                .at(3)
                .argmax(&logits)
                .expect("finite logits") as usize] += 1;
        }
        let chi: f64 = (0..4)
            .map(|i| {
                let want = n as f64 * f64::from(logits[i]).exp() / z;
                (counts[i] as f64 - want).powi(2) / want
            })
            .sum();
        assert!(
            chi < 16.3,
            "chi-square {chi} with 3 degrees of freedom (p = 0.001 at 16.3)"
        );
    }
}
