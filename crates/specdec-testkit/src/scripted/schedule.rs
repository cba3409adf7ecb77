use crate::seeded::{Seeded, digest};
use specdec_core::{Controller, Plan, PoolView, Scheduler, SeqId};
use std::fmt;

/// Draft lengths by sequence and round: `length(seq, round)`, rounds counted from 0 per sequence,
/// cut to what the row can use.
pub struct Lengths<F> {
    length: F,
    rounds: std::collections::BTreeMap<SeqId, usize>,
}

impl<F> fmt::Debug for Lengths<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lengths")
            .field("rounds", &self.rounds)
            .finish_non_exhaustive()
    }
}

impl<F: Fn(SeqId, usize) -> usize + Send> Lengths<F> {
    /// Lengths from a function.
    pub fn new(length: F) -> Self {
        Self {
            length,
            rounds: std::collections::BTreeMap::new(),
        }
    }
}

impl<F: Fn(SeqId, usize) -> usize + Send> Controller for Lengths<F> {
    fn plan(&mut self, view: &PoolView) -> Plan {
        let lengths = view
            .rows
            .iter()
            .map(|row| {
                let round = self.rounds.entry(row.seq).or_insert(0);
                *round += 1;
                (self.length)(row.seq, *round - 1).min(row.max_draft)
            })
            .collect();
        Plan { lengths }
    }

    fn evict(&mut self, seq: SeqId) {
        self.rounds.remove(&seq);
    }
}

/// Another length for every row and step, 0 included, and now and then a plan that is too short
/// or asks for too much: all of which a decoder must take.
#[derive(Debug, Clone)]
pub struct RandomController {
    seed: u64,
    max: usize,
}

impl RandomController {
    /// Lengths up to `max`.
    pub fn new(seed: u64, max: usize) -> Self {
        Self { seed, max }
    }
}

impl Controller for RandomController {
    fn plan(&mut self, view: &PoolView) -> Plan {
        let mut draws = Seeded::new(digest([self.seed, view.step]));
        let mut lengths: Vec<usize> = view
            .rows
            .iter()
            .map(|_| draws.below(self.max + 1))
            .collect();
        if draws.chance(0.1) {
            lengths.pop();
        }
        if draws.chance(0.1) {
            lengths.iter_mut().for_each(|k| *k += 100);
        }
        Plan { lengths }
    }
}

/// A random part of the pool in random order, now and then with a name twice, a name nobody has, or
/// nobody at all: all of which a decoder must take.
#[derive(Debug, Clone)]
pub struct RandomScheduler {
    draws: Seeded,
}

impl RandomScheduler {
    /// Choices from this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            draws: Seeded::new(seed),
        }
    }
}

impl Scheduler for RandomScheduler {
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId> {
        let mut rows: Vec<SeqId> = Vec::new();
        for row in &pool.rows {
            if self.draws.chance(0.6) {
                let at = self.draws.below(rows.len() + 1);
                rows.insert(at, row.seq);
            }
        }
        if self.draws.chance(0.1) {
            rows.extend(rows.first().copied());
            rows.push(SeqId(u64::MAX));
        }
        rows
    }
}
