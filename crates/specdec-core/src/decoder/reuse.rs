//! Stored prefixes: taken in before a sequence is prefilled, given out when it has entries to give.

use super::Decoder;
use crate::{PrefixQuery, RowSpan, SeqId};

impl Decoder {
    /// Starts rows that have no entries yet with what is stored of their content, where there is
    /// room for it. A failed import costs a row nothing but the time: it is prefilled as any other.
    pub(super) fn reuse(&mut self, rows: &[SeqId]) {
        let Some(prefixes) = &mut self.prefixes else {
            return;
        };
        for &seq in rows {
            let Some(live) = self.pool.get_mut(&seq) else {
                continue;
            };
            let limit = live.content.len() - 1;
            let Some(scope) = live.reuse.scope() else {
                continue;
            };
            if live.asked || live.cached > 0 || limit == 0 {
                continue;
            }
            let span = RowSpan {
                seq,
                start: 0,
                len: limit,
            };
            // Where memory is short, older rows come first: it may be asked again later.
            if !self.cache.fits(&[span]) {
                continue;
            }
            live.asked = true;
            let query = PrefixQuery::new(seq, &live.content).within(scope);
            match prefixes.load(&mut *self.cache, &query) {
                None => {}
                Some(Ok(import)) => {
                    live.cached = import.tokens;
                    for stats in [&mut live.stats, &mut self.total] {
                        stats.reused += import.tokens as u64;
                        stats.reuse_time += import.time;
                    }
                }
                Some(Err(_)) => {
                    live.stats.reuse_failures += 1;
                    self.total.reuse_failures += 1;
                }
            }
        }
    }

    /// Gives the committed entries of a sequence to the prefix cache.
    pub(super) fn publish(&mut self, seq: SeqId) {
        let (Some(prefixes), Some(live)) = (&mut self.prefixes, self.pool.get(&seq)) else {
            return;
        };
        if let (Some(scope), true) = (live.reuse.scope(), live.cached > 0) {
            let query = PrefixQuery::new(seq, &live.content[..live.cached]).within(scope);
            prefixes.save(&*self.cache, &query);
        }
    }
}
