//! When the cache is full: younger rows wait, and give their memory back where an older one needs
//! it. What they emitted stays; they are prefilled again, so their output is the same.

use super::Decoder;
use crate::{CacheError, RowSpan, SeqId};
use std::collections::BTreeSet;

impl Decoder {
    /// The rows that can run in this pass, in their order: all of them if there is room; else the
    /// oldest ones. Where even the oldest has no room, sequences younger than it are preempted, the
    /// youngest first. It fails when it has the cache to itself and still does not fit.
    pub(super) fn with_room(&mut self, spans: Vec<RowSpan>) -> Vec<RowSpan> {
        let mut fitting = spans.clone();
        fitting.sort_by_key(|span| span.seq);
        while !fitting.is_empty() && !self.cache.fits(&fitting) {
            if fitting.len() > 1 {
                fitting.pop();
                continue;
            }
            let row = fitting[0];
            let holders = self.pool.values().rev().filter(|live| live.cached > 0);
            let mut others = holders
                .map(|live| live.seq)
                .filter(|seq| *seq != row.seq)
                .peekable();
            match others.peek() {
                Some(&youngest) if youngest > row.seq => self.preempt(youngest),
                // Older ones hold the memory: this row waits for them.
                Some(_) => fitting.clear(),
                None => {
                    fitting.clear();
                    let needed = row.start + row.len;
                    let available = self.cache.capacity().unwrap_or(row.start);
                    self.fail(row.seq, CacheError::Full { needed, available }.into());
                }
            }
        }
        let kept: BTreeSet<SeqId> = fitting.into_iter().map(|span| span.seq).collect();
        spans
            .into_iter()
            .filter(|span| kept.contains(&span.seq))
            .collect()
    }

    /// Takes a sequence's memory; its content stays and will be prefilled again.
    fn preempt(&mut self, seq: SeqId) {
        self.publish(seq);
        self.cache.evict(seq);
        if let Some(drafter) = &mut self.drafter {
            drafter.evict(seq);
        }
        if let Some(live) = self.pool.get_mut(&seq) {
            live.cached = 0;
            live.asked = false;
            live.stats.preempted += 1;
            self.total.preempted += 1;
        }
    }
}
