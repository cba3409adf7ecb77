use super::kernel;
use burn::prelude::*;
use specdec_core::{Attend, CacheError, Result};
use specdec_kernels::{AttentionPass, SlotStore};

/// Attention of one open pass.
pub(super) struct SlotAttend<'a> {
    pub(super) store: &'a mut SlotStore,
    /// One pass for each window that some layer has.
    pub(super) passes: Vec<(Option<usize>, AttentionPass)>,
    /// Query heads of the model.
    pub(super) heads: usize,
    pub(super) windows: &'a [Option<usize>],
    /// Which layers have attended.
    pub(super) seen: &'a mut [bool],
}

impl Attend for SlotAttend<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        let layers = self.windows.len();
        let (got, [tokens, _, dim]) = (q.dims(), k.dims());
        if got[1] != self.heads {
            let want = vec![tokens, self.heads, dim];
            return Err(CacheError::Shape {
                what: "queries",
                got: got.to_vec(),
                want,
            }
            .into());
        }
        let unknown = CacheError::Layer { layer, layers };
        let (Some(window), Some(seen)) = (self.windows.get(layer), self.seen.get_mut(layer)) else {
            return Err(unknown.into());
        };
        if std::mem::replace(seen, true) {
            return Err(CacheError::LayerTwice { layer }.into());
        }
        let Some((_, pass)) = self.passes.iter().find(|(w, _)| w == window) else {
            return Err(unknown.into());
        };
        Ok(self.store.attend(layer, q, k, v, pass).map_err(kernel)?.out)
    }
}
