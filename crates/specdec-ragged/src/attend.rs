use crate::model_shape::{ModelShape, Passes, kernel};
use burn::prelude::*;
use specdec_core::{Attend, CacheError, Result};
use specdec_kernels::SlotStore;

/// Attention of one open pass.
pub(crate) struct PassAttend<'a> {
    pub(crate) store: &'a mut SlotStore,
    pub(crate) passes: Passes,
    pub(crate) shape: &'a ModelShape,
    /// Which layers have attended.
    pub(crate) seen: &'a mut [bool],
}

impl Attend for PassAttend<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        let layers = self.shape.layers;
        let (got, [tokens, _, dim]) = (q.dims(), k.dims());
        if got[1] != self.shape.heads {
            let want = vec![tokens, self.shape.heads, dim];
            return Err(CacheError::Shape {
                what: "queries",
                got: got.to_vec(),
                want,
            }
            .into());
        }
        let unknown = CacheError::Layer { layer, layers };
        let (Some(window), Some(seen)) = (self.shape.windows.get(layer), self.seen.get_mut(layer))
        else {
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
