//! What Vegas is compared with, at an equal budget.

use super::{Candidates, Select};

/// StreamingLLM (arXiv 2309.17453) as a drafter, as MagicDec (arXiv 2408.11049) has it: the first
/// positions and the last ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streaming {
    /// First positions kept; the rest of the budget is the window.
    pub sinks: usize,
}

impl Default for Streaming {
    /// 4 sinks.
    fn default() -> Self {
        Self { sinks: 4 }
    }
}

impl Select for Streaming {
    fn name(&self) -> &'static str {
        "streaming"
    }

    fn needs_weights(&self) -> bool {
        false
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        if from.budget >= from.count {
            return None;
        }
        let sinks = self.sinks.min(from.budget);
        let window = from.count - (from.budget - sinks)..from.count;
        let keys = (0..sinks).chain(window);
        Some(keys.map(|key| key as u32).collect())
    }
}

/// Keys drawn at random, another set for each sequence, layer (and head, where heads have sets of their
/// own) and number of candidates: what a ranking is worth shows against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Random {
    /// The same seed draws the same keys.
    pub seed: u64,
}

impl Select for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn needs_weights(&self) -> bool {
        false
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        if from.budget >= from.count {
            return None;
        }
        let places = [from.seq.0, from.layer as u64, from.count as u64];
        let set = places
            .into_iter()
            .chain(from.head.map(|head| head as u64))
            .fold(mix(self.seed), |key, n| mix(key ^ mix(n)));
        let mut keys: Vec<u32> = (0..from.count as u32).collect();
        if from.budget > 0 {
            keys.select_nth_unstable_by_key(from.budget - 1, |&key| {
                (mix(set ^ u64::from(key)), key)
            });
        }
        keys.truncate(from.budget);
        Some(keys)
    }
}

/// SplitMix64's step: spreads every bit of its input.
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Every key: drafts equal the target's own tokens, at the price of a plain step each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Everything;

impl Select for Everything {
    fn name(&self) -> &'static str {
        "everything"
    }

    fn needs_weights(&self) -> bool {
        false
    }

    fn select(&self, _: &Candidates<'_>) -> Option<Vec<u32>> {
        None
    }
}
