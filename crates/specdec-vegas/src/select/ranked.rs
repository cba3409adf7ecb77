use super::{Candidates, Select};
use crate::CheckedConfig;
use std::cmp::Ordering;
use std::ops::Range;

/// The rule of Vegas: the candidates that weighed most (lowest position on ties), first positions
/// and last candidates apart, which are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Ranked {
    /// First positions kept.
    pub sinks: usize,
    /// Last candidates kept, as far as the budget allows after `sinks`.
    pub recent: usize,
    /// Keeps as few as reach this share of the weight, in the bounds of the candidates.
    pub coverage: Option<f64>,
}

impl Ranked {
    /// The rule that a configuration asks for.
    pub fn new(config: &CheckedConfig) -> Self {
        let options = config.options();
        Self {
            sinks: options.sinks,
            recent: options.recent,
            coverage: options.coverage,
        }
    }

    /// The candidates that are ranked, when those around them are kept.
    fn ranked(&self, from: &Candidates<'_>) -> Range<usize> {
        let sinks = self.sinks.min(from.budget);
        let recent = self.recent.min(from.budget - sinks);
        sinks..from.count - recent
    }

    /// How many of the ranked ones to take, which lie in `order` best first.
    fn enough(&self, share: f64, from: &Candidates<'_>, order: &[u32], reserved: usize) -> usize {
        let weight = |key: u32| f64::from(rank(from.weights, key)).max(0.0);
        let all: f64 = (0..from.count as u32).map(weight).sum();
        let missing = share * all;
        let ranked: f64 = order.iter().map(|&key| weight(key)).sum();
        let mut sum = all - ranked;
        // All of them when everything is wanted, whatever the sums round to.
        let mut taken = if share >= 1.0 { order.len() } else { 0 };
        while taken < order.len() && sum < missing {
            sum += weight(order[taken]);
            taken += 1;
        }
        let bounds = from.least.saturating_sub(reserved)..from.budget - reserved;
        taken.clamp(bounds.start.min(bounds.end), bounds.end)
    }
}

impl Select for Ranked {
    fn name(&self) -> &'static str {
        "ranked"
    }

    fn needs_weights(&self) -> bool {
        true
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        let from = &Candidates {
            budget: from.budget.min(from.count),
            ..*from
        };
        let ranked = self.ranked(from);
        let reserved = from.count - ranked.len();
        let mut order: Vec<u32> = ranked.clone().map(|key| key as u32).collect();
        let best_first = |&a: &u32, &b: &u32| better(from.weights, a, b);
        let take = match self.coverage {
            Some(share) => {
                order.sort_unstable_by(best_first);
                self.enough(share, from, &order, reserved)
            }
            None => from.budget - reserved,
        };
        if reserved + take == from.count {
            return None;
        }
        if take < order.len() && take > 0 {
            order.select_nth_unstable_by(take - 1, best_first);
        }
        order.truncate(take);
        order.sort_unstable();
        let kept = |range: Range<usize>| range.map(|key| key as u32);
        let mut keys: Vec<u32> = kept(0..ranked.start).collect();
        keys.extend(order);
        keys.extend(kept(ranked.end..from.count));
        Some(keys)
    }
}

/// A key's weight; one that is missing or not a number weighs less than any.
fn rank(weights: &[f32], key: u32) -> f32 {
    let weight = weights.get(key as usize).copied().unwrap_or(f32::NAN);
    if weight.is_nan() {
        f32::NEG_INFINITY
    } else {
        weight
    }
}

/// Larger weight first, then the lower position.
fn better(weights: &[f32], a: u32, b: u32) -> Ordering {
    let order = rank(weights, b).total_cmp(&rank(weights, a));
    order.then(a.cmp(&b))
}
