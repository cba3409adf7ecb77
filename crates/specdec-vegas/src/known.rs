use crate::collect::{CollectedRow, Weights};
use specdec_core::{RowKeys, RowSpan, SeqId};
use std::collections::HashMap;
use std::sync::Arc;

/// What is known of each sequence; nothing where drafts see everything.
#[derive(Default)]
pub(crate) struct Known {
    chosen: HashMap<SeqId, Arc<RowKeys>>,
    /// Passes from which nothing has been chosen yet.
    collected: Vec<(Vec<CollectedRow>, Weights)>,
    /// How many rankings in a row no draft of a sequence asked for.
    unused: HashMap<SeqId, u32>,
}

/// Doublings of the distance between rankings of a sequence that does not draft.
const MOST_DOUBLINGS: u32 = 6;

impl Known {
    /// Sequences that keys have been chosen for.
    pub(crate) fn len(&self) -> usize {
        self.chosen.len()
    }

    pub(crate) fn keys(&self, seq: SeqId) -> Option<&Arc<RowKeys>> {
        self.chosen.get(&seq)
    }

    pub(crate) fn choose(&mut self, seq: SeqId, keys: RowKeys) {
        self.unused.remove(&seq);
        self.chosen.insert(seq, Arc::new(keys));
    }

    /// Puts aside what a pass showed.
    pub(crate) fn collect(&mut self, rows: Vec<CollectedRow>, weights: Weights) {
        self.collected.push((rows, weights));
    }

    /// A pass that any of these rows waits for.
    pub(crate) fn waiting(&self, rows: &[RowSpan]) -> Option<usize> {
        let waits = |seq: SeqId| rows.iter().any(|row| row.seq == seq);
        let mut passes = self.collected.iter();
        passes.position(|(waiting, _)| waiting.iter().any(|row| waits(row.seq)))
    }

    pub(crate) fn weights(&self, pass: usize) -> &Weights {
        &self.collected[pass].1
    }

    pub(crate) fn take(&mut self, pass: usize) -> Vec<CollectedRow> {
        self.collected.remove(pass).0
    }

    /// Makes place for what a new pass of a sequence showed.
    pub(crate) fn replace(&mut self, seq: SeqId) {
        let waiting = self.waiting_row(seq).is_some();
        let unused = waiting.then(|| 1 + self.rankings_unused(seq));
        self.forget(seq);
        self.unused.extend(unused.map(|n| (seq, n)));
    }

    fn rankings_unused(&self, seq: SeqId) -> u32 {
        self.unused.get(&seq).copied().unwrap_or(0)
    }

    /// A sequence's part of a pass from which nothing has been chosen yet.
    fn waiting_row(&self, seq: SeqId) -> Option<&CollectedRow> {
        let mut waiting = self.collected.iter().flat_map(|(rows, _)| rows);
        waiting.find(|row| row.seq == seq)
    }

    /// Positions after which a plain pass of a sequence ranks again: `every`, where that is above 1 twice as many for
    /// each ranking in a row that no draft asked for.
    pub(crate) fn patience(&self, seq: SeqId, every: usize) -> usize {
        if every == 1 {
            return every;
        }
        every.saturating_mul(1 << self.rankings_unused(seq).min(MOST_DOUBLINGS))
    }

    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.chosen.remove(&seq);
        self.unused.remove(&seq);
        self.collected.retain_mut(|(rows, _)| {
            rows.retain(|row| row.seq != seq);
            !rows.is_empty()
        });
    }

    /// How many positions a sequence's ranking covers.
    pub(crate) fn covered(&self, seq: SeqId) -> Option<usize> {
        let waiting = self.waiting_row(seq).map(|row| row.count);
        waiting.or_else(|| self.chosen.get(&seq).map(|keys| keys.tail()))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let chosen = self.chosen.values().map(|keys| keys.memory_bytes());
        let waiting = self.collected.iter().map(|(_, w)| w.memory_bytes());
        chosen.chain(waiting).sum()
    }
}
