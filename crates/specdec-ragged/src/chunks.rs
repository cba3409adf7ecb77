//! Who owns which chunk of the store.

use specdec_core::CacheError;

/// Hands out chunk numbers `0..total` and takes them back.
#[derive(Debug)]
pub(crate) struct Chunks {
    total: usize,
    free: Vec<u32>,
    limit: usize,
}

impl Chunks {
    /// No chunks yet, at most `limit` ever.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            total: 0,
            free: Vec::new(),
            limit,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Chunks that could still be handed out.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.limit.saturating_sub(self.total)
    }

    /// How many chunks the store needs so that `wanted` can be taken: today's total, or more.
    /// Growth is at least by half, so that copying the store costs a constant share of filling it.
    pub(crate) fn grown_for(&self, wanted: usize) -> Result<usize, CacheError> {
        let missing = wanted.saturating_sub(self.free.len());
        if missing == 0 {
            return Ok(self.total);
        }
        let needed = self.total + missing;
        if needed > self.limit {
            return Err(CacheError::Full {
                needed: wanted,
                available: self.available(),
            });
        }
        Ok(needed.max(self.total + self.total / 2).min(self.limit))
    }

    /// Takes note that the store has grown.
    pub(crate) fn grow(&mut self, total: usize) {
        // Low numbers are handed out first.
        let new = (self.total..total).rev().map(|c| c as u32);
        self.free.splice(0..0, new);
        self.total = self.total.max(total);
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, chunk: u32) {
        self.free.push(chunk);
    }
}
