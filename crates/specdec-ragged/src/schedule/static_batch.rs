use specdec_core::{PoolView, Scheduler, SeqId};
use std::collections::HashSet;

/// The batches of EQSPEC: the oldest sequences form a batch, which runs until all of them have
/// ended; then the next ones do. A row that ends early leaves its place empty.
///
/// [With refill](Self::with_refill) its place goes to the next sequence at once. Most of what a pool
/// gains over static batches comes from that and not from its grouping, so compare with both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticBatch {
    rows: usize,
    refill: bool,
    batch: Vec<SeqId>,
}

impl StaticBatch {
    /// Batches of this many rows (at least 1).
    pub fn new(rows: usize) -> Self {
        Self {
            rows: rows.max(1),
            refill: false,
            batch: Vec::new(),
        }
    }

    /// The place of a row that has ended goes to the next sequence.
    pub fn with_refill(mut self) -> Self {
        self.refill = true;
        self
    }
}

impl Scheduler for StaticBatch {
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId> {
        let live: HashSet<SeqId> = pool.rows.iter().map(|row| row.seq).collect();
        self.batch.retain(|seq| live.contains(seq));
        if self.refill || self.batch.is_empty() {
            let running: HashSet<SeqId> = self.batch.iter().copied().collect();
            let waiting = pool.rows.iter().map(|row| row.seq);
            let waiting = waiting.filter(|seq| !running.contains(seq));
            self.batch.extend(waiting.take(self.rows - running.len()));
        }
        self.batch.clone()
    }
}
