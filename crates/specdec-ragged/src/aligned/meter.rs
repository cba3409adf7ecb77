use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What keeping rows aligned has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AlignStats {
    /// Passes that began, of every phase.
    pub passes: u64,
    /// Passes before which something had to be moved.
    pub realignments: u64,
    /// Rows moved.
    pub moved_rows: u64,
    /// Bytes of keys and values that were moved: read once and written once.
    pub moved_bytes: u64,
    /// Padding columns of the rows of all passes. They take memory, and a kernel that computes
    /// whole rectangles attends to them; ours does not.
    pub padded_cells: u64,
    /// Time spent moving. On a GPU: until the work was queued.
    pub move_time: Duration,
}

/// A handle to the counts of a cache that belongs to a decoder. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AlignMeter(Arc<Mutex<AlignStats>>);

impl AlignMeter {
    /// The counts so far.
    pub fn read(&self) -> AlignStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, with: impl FnOnce(&mut AlignStats)) {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn pass(&self, padding: impl Iterator<Item = usize>) {
        self.change(|stats| {
            stats.passes += 1;
            stats.padded_cells += padding.sum::<usize>() as u64;
        });
    }

    pub(super) fn moved(&self, rows: usize, bytes: usize, time: Duration) {
        self.change(|stats| {
            stats.realignments += 1;
            stats.moved_rows += rows as u64;
            stats.moved_bytes += bytes as u64;
            stats.move_time += time;
        });
    }
}
