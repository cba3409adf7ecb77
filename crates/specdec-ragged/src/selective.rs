//! Passes that attend to a part of what is cached.

use crate::model_shape::kernel;
use crate::{AlignedCache, BatchCache, SlotCache};
use specdec_core::{
    CacheError, Phase, Result, RowSpan, Selection, SelectiveAttend, SelectiveCache,
};
use specdec_kernels::AttentionPass;

/// The pass, with each row seeing what the selection leaves it.
pub(crate) fn see(
    mut pass: AttentionPass,
    selection: &Selection,
) -> Result<AttentionPass, CacheError> {
    for row in 0..selection.rows.len() {
        let Some(keys) = selection.row(row) else {
            continue;
        };
        for (layer, lists) in keys.lists() {
            let lists = lists.iter().map(|list| list.to_vec()).collect();
            pass = pass.head_keys(layer, row, lists).map_err(kernel)?;
        }
        pass = pass.tail(row, keys.tail()).map_err(kernel)?;
    }
    Ok(pass)
}

impl SelectiveCache for SlotCache {
    fn begin_selective<'a>(
        &'a mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<Box<dyn SelectiveAttend + 'a>> {
        Ok(Box::new(self.open(rows, phase, selection)?))
    }
}

impl SelectiveCache for AlignedCache {
    fn begin_selective<'a>(
        &'a mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<Box<dyn SelectiveAttend + 'a>> {
        Ok(Box::new(self.open(rows, phase, selection)?))
    }
}

impl SelectiveCache for BatchCache {
    fn begin_selective<'a>(
        &'a mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<Box<dyn SelectiveAttend + 'a>> {
        match self {
            Self::Slots(cache) => cache.begin_selective(rows, phase, selection),
            Self::Aligned(cache) => cache.begin_selective(rows, phase, selection),
        }
    }
}
