use super::{Candidates, Select};
use crate::CheckedConfig;
use specdec_core::Score;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

/// The rule of Vegas: the candidates that weighed most (lowest position on ties), first positions
/// and last candidates apart, which are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// First positions kept.
    pub sinks: usize,
    /// Last candidates kept, as far as the budget allows after `sinks`.
    pub recent: usize,
    /// Keeps as few as reach this share of the weight, in the bounds of the candidates.
    pub coverage: Option<f64>,
    /// Positions that are kept or left out together, counted from position 0; 1 (and 0) is each by
    /// itself. A page ranks by the sum of its weights, or the mean of its logits. Sinks and recent positions take whole pages; of
    /// a budget below the number of candidates whole pages are used, at least one.
    pub page: usize,
}

impl Default for Ranked {
    /// Nothing reserved, single positions.
    fn default() -> Self {
        Self {
            sinks: 0,
            recent: 0,
            coverage: None,
            page: 1,
        }
    }
}

/// Candidates in pages.
struct Pages<'a> {
    size: usize,
    /// What each page weighs.
    weights: Cow<'a, [f32]>,
    /// Most pages to keep.
    budget: usize,
    /// Fewest.
    least: usize,
    /// The pages that are ranked; those around them are kept.
    ranked: Range<usize>,
    /// All of them.
    count: usize,
}

impl Ranked {
    /// The rule that a configuration asks for.
    pub fn new(config: &CheckedConfig) -> Self {
        let options = config.options();
        Self {
            sinks: options.sinks,
            recent: options.recent,
            coverage: options.coverage,
            page: options.page,
        }
    }

    fn pages<'a>(&self, from: &Candidates<'a>) -> Pages<'a> {
        let size = self.page.max(1);
        let all = from.count.div_ceil(size);
        let budget = match from.budget < from.count {
            true => (from.budget / size).max(from.budget.min(1)),
            false => all,
        };
        let sinks = self.sinks.div_ceil(size).min(budget);
        let last = from.count.saturating_sub(self.recent) / size;
        let recent = match self.recent {
            0 => 0,
            _ => (all - last).min(budget - sinks),
        };
        let weights = match size {
            1 => Cow::Borrowed(from.weights),
            _ => {
                let pages = from.weights.chunks(size).map(|page| {
                    let sum: f32 = page.iter().sum();
                    match from.score {
                        Score::Logits => sum / page.len() as f32,
                        _ => sum,
                    }
                });
                pages.collect()
            }
        };
        Pages {
            size,
            weights,
            budget,
            least: from.least.div_ceil(size).min(budget),
            ranked: sinks..all - recent,
            count: all,
        }
    }
}

impl Pages<'_> {
    /// Pages that are kept in any case.
    fn reserved(&self) -> usize {
        self.count - self.ranked.len()
    }

    /// A page's weight; one that is missing or not a number weighs less than any.
    fn weight(&self, page: u32) -> f32 {
        let weight = self.weights.get(page as usize).copied();
        weight.filter(|w| !w.is_nan()).unwrap_or(f32::NEG_INFINITY)
    }

    /// Larger weight first, then the lower position.
    fn better(&self, a: u32, b: u32) -> Ordering {
        self.weight(b).total_cmp(&self.weight(a)).then(a.cmp(&b))
    }

    /// How many of the ranked pages reach this share of the weight, best first in `order`.
    fn enough(&self, share: f64, order: &[u32]) -> usize {
        let weight = |page: u32| f64::from(self.weight(page)).max(0.0);
        let all: f64 = (0..self.count as u32).map(weight).sum();
        let ranked: f64 = order.iter().map(|&page| weight(page)).sum();
        let mut sum = all - ranked;
        // All of them when everything is wanted, whatever the sums round to.
        let mut taken = if share >= 1.0 { order.len() } else { 0 };
        while taken < order.len() && sum < share * all {
            sum += weight(order[taken]);
            taken += 1;
        }
        let most = self.budget - self.reserved();
        let least = self.least.saturating_sub(self.reserved());
        taken.clamp(least, most)
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
        let pages = self.pages(from);
        let mut order: Vec<u32> = pages.ranked.clone().map(|page| page as u32).collect();
        let best_first = |&a: &u32, &b: &u32| pages.better(a, b);
        let take = match self.coverage {
            Some(share) => {
                order.sort_unstable_by(best_first);
                pages.enough(share, &order)
            }
            None => pages.budget - pages.reserved(),
        };
        if pages.reserved() + take == pages.count {
            return None;
        }
        if take < order.len() && take > 0 {
            order.select_nth_unstable_by(take - 1, best_first);
        }
        order.truncate(take);
        order.sort_unstable();
        let before = 0..pages.ranked.start;
        let after = pages.ranked.end..pages.count;
        let kept = before
            .chain(order.iter().map(|&page| page as usize))
            .chain(after);
        let positions = kept.flat_map(|page| {
            let end = ((page + 1) * pages.size).min(from.count);
            (page * pages.size) as u32..end as u32
        });
        Some(positions.collect())
    }
}
