//! The first half of a step: prompt tokens, all but each prompt's last.

use super::Decoder;
use crate::{Block, Observation, ObservedRow, Phase, Result, SeqId};
use std::time::Instant;

impl Decoder {
    /// Runs one packed pass over the next prompt tokens of the rows that are not prefilled, oldest
    /// first, at most `prefill_chunk` tokens in all.
    pub(super) fn prefill(&mut self, rows: &[SeqId]) -> Result<()> {
        let mut block = Block::new(&self.target.spec().device);
        for seq in rows {
            let Some(live) = self.pool.get(seq) else {
                continue;
            };
            let room = self.prefill_chunk - block.len();
            let want = (live.content.len() - 1)
                .saturating_sub(live.cached)
                .min(room);
            if want > 0 {
                block.push(
                    *seq,
                    live.cached,
                    &live.content[live.cached..live.cached + want],
                );
            }
        }
        if block.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let forward = self.forward(&block, Phase::Prefill)?;
        let keep: Vec<usize> = block.rows().iter().map(|row| row.len).collect();
        self.cache.commit(&keep)?;
        let time = started.elapsed();
        for row in block.rows() {
            if let Some(live) = self.pool.get_mut(&row.seq) {
                live.cached += row.len;
                live.stats.prefilled += row.len as u64;
                live.stats.prefill_time += time;
            }
        }
        self.total.prefilled += block.len() as u64;
        self.total.prefill_time += time;
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        let observed: Vec<ObservedRow<'_>> = block
            .rows()
            .iter()
            .zip(block.ranges())
            .filter_map(|(row, range)| {
                let live = self.pool.get(&row.seq)?;
                Some(ObservedRow::new(row.seq, &live.content, row.start, range))
            })
            .collect();
        drafter.observe(&Observation::new(Phase::Prefill, &observed, &forward.taps))
    }

    /// One pass through the target inside a cache transaction, which is left open on success and
    /// rolled back on failure.
    pub(super) fn forward(&mut self, block: &Block, phase: Phase) -> Result<crate::Forward> {
        let mut attend = self.cache.begin(block.rows(), phase)?;
        let forward = self.target.forward(block, &mut *attend, &self.taps);
        drop(attend);
        if forward.is_err() {
            self.cache.rollback();
        }
        forward
    }
}
