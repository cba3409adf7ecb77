use specdec_core::{PoolView, Scheduler, SeqId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a scheduler chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BatchStats {
    /// Steps for which rows were chosen.
    pub rounds: u64,
    /// Rows chosen, over all rounds.
    pub rows: u64,
    /// Rounds in which all rows had the same content length and were all prefilled or all not:
    /// nothing to align. A round of one row is one.
    pub grouped: u64,
    /// Most steps from one run of a sequence to its next.
    pub longest_wait: u64,
}

impl BatchStats {
    /// Rounds whose rows had different lengths.
    pub fn fallback(&self) -> u64 {
        self.rounds - self.grouped
    }

    /// Mean number of rows in a round; `None` before the first.
    pub fn rows_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.rows as f64 / self.rounds as f64)
    }

    /// Share of the rounds that were grouped; `None` before the first.
    pub fn grouping_rate(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.grouped as f64 / self.rounds as f64)
    }
}

/// A handle to the counts of a [`Metered`] scheduler. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct BatchMeter(Arc<Mutex<BatchStats>>);

impl BatchMeter {
    /// The counts so far.
    pub fn read(&self) -> BatchStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A scheduler that counts what it chooses and is otherwise the one inside.
pub struct Metered {
    inner: Box<dyn Scheduler>,
    meter: BatchMeter,
    last_run: HashMap<SeqId, u64>,
}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered")
            .field("stats", &self.meter.read())
            .finish_non_exhaustive()
    }
}

impl Metered {
    /// Counts what this scheduler chooses.
    pub fn new(inner: impl Scheduler + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            meter: BatchMeter::default(),
            last_run: HashMap::new(),
        }
    }

    /// The counts, to be kept when the scheduler is given away.
    pub fn meter(&self) -> BatchMeter {
        self.meter.clone()
    }
}

impl Scheduler for Metered {
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId> {
        let chosen = self.inner.select(pool);
        if chosen.is_empty() {
            return chosen;
        }
        let views: HashMap<SeqId, _> = pool.rows.iter().map(|row| (row.seq, row)).collect();
        self.last_run.retain(|seq, _| views.contains_key(seq));
        let mut stats = self.meter.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lengths = chosen.iter().filter_map(|seq| views.get(seq));
        let mut lengths = lengths.map(|row| (row.content, row.is_prefilled()));
        let first = lengths.next();
        stats.rounds += 1;
        stats.rows += chosen.len() as u64;
        stats.grouped += u64::from(lengths.all(|other| Some(other) == first));
        for &seq in &chosen {
            if let Some(before) = self.last_run.insert(seq, pool.step) {
                let wait = pool.step.saturating_sub(before);
                stats.longest_wait = stats.longest_wait.max(wait);
            }
        }
        drop(stats);
        chosen
    }
}
