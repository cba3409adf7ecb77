//! The first half of a step: prompt tokens, all but each prompt's last.

use super::Decoder;
use super::live::Live;
use crate::{Block, Observation, ObservedRow, Phase, Result, RowSpan, SeqId};
use std::time::Instant;

impl Decoder {
    /// Runs one packed pass over the next prompt tokens of the rows that are not prefilled, in their
    /// order, at most `prefill_chunk` tokens in all. False when there was nothing to run.
    pub(super) fn prefill(&mut self, rows: &[SeqId]) -> Result<bool> {
        self.reuse(rows);
        let mut room = self.prefill_chunk;
        let mut spans = Vec::new();
        for seq in rows {
            let Some(live) = self.pool.get(seq) else {
                continue;
            };
            let missing = (live.content.len() - 1).saturating_sub(live.cached);
            let len = missing.min(room);
            room -= len;
            if len > 0 {
                spans.push(RowSpan {
                    seq: *seq,
                    start: live.cached,
                    len,
                });
            }
        }
        let mut block = Block::new(&self.target.spec().device);
        for RowSpan { seq, start, len } in self.with_room(spans) {
            block.push(seq, start, &self.pool[&seq].content[start..start + len]);
        }
        if block.is_empty() {
            return Ok(false);
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
        for row in block.rows() {
            if self.pool.get(&row.seq).is_some_and(Live::is_prefilled) {
                self.publish(row.seq);
            }
        }
        let Some(drafter) = &mut self.drafter else {
            return Ok(true);
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
        drafter.observe(&Observation::new(Phase::Prefill, &observed, &forward.taps))?;
        Ok(true)
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
