use specdec_core::{RowSpan, Selection};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a [`crate::Vegas`] collected, chose and saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VegasStats {
    /// Rows whose attention was collected: in passes that were committed, or in the first draft pass of
    /// a sequence of which nothing was known.
    pub collected_rows: u64,
    /// Key sets chosen, one for each row and layer, and key/value head where these have their own.
    pub sets: u64,
    /// Keys in them.
    pub chosen: u64,
    /// Candidates they were chosen from.
    pub candidates: u64,
    /// Rows of draft passes.
    pub draft_rows: u64,
    /// Those of them that had a key set.
    pub sparse_rows: u64,
    /// Entries that rows of draft passes attended to, over all layers, windows apart; the mean over
    /// heads where these have sets of their own.
    pub attended: u64,
    /// Entries there were.
    pub held: u64,
    /// Time spent reading collected weights and averaging them. What attention itself takes longer
    /// where it reports weights is part of the pass, and not in here.
    pub collect_time: Duration,
    /// Time spent choosing.
    pub select_time: Duration,
}

impl VegasStats {
    /// Share of the entries that draft passes attended to: the r of the [cost model](crate::CostModel).
    /// `None` before the first draft.
    pub fn attended_share(&self) -> Option<f64> {
        (self.held > 0).then(|| self.attended as f64 / self.held as f64)
    }

    /// Share of the candidates that was chosen; `None` before the first choice.
    pub fn chosen_share(&self) -> Option<f64> {
        (self.candidates > 0).then(|| self.chosen as f64 / self.candidates as f64)
    }
}

/// A handle to the counts of a cache that belongs to a decoder. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct VegasMeter(Arc<Mutex<VegasStats>>);

impl VegasMeter {
    /// The counts so far.
    pub fn read(&self) -> VegasStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what the rows of a draft pass attend to.
    pub(crate) fn drafted(&self, layers: usize, rows: &[RowSpan], selection: &Selection) {
        self.change(|stats| {
            for (number, row) in rows.iter().enumerate() {
                let held = (row.start + row.len) * layers;
                stats.draft_rows += 1;
                stats.held += held as u64;
                stats.attended += held as u64;
                let Some(keys) = selection.row(number) else {
                    continue;
                };
                stats.sparse_rows += u64::from(keys.lists().next().is_some());
                let left_out = keys.lists().map(|(_, lists)| {
                    let listed: usize = lists.iter().map(|list| list.len()).sum();
                    (lists.len() * keys.tail() - listed) / lists.len()
                });
                stats.attended -= left_out.sum::<usize>() as u64;
            }
        });
    }

    pub(crate) fn change(&self, with: impl FnOnce(&mut VegasStats)) {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
