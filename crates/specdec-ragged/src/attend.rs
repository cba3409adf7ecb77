use crate::model_shape::{ModelShape, Passes, kernel};
use burn::prelude::*;
use specdec_core::{
    Attend, CacheError, HeadWeights, Result, Score, Selection, SelectiveAttend, Weighed,
};
use specdec_kernels::{Attended, AttentionPass, SlotStore};

/// How the layers of a pass attend.
pub(crate) struct Plan {
    passes: Passes,
    /// The same, with the scores of the queries asked for; empty when none are.
    weighed: Passes,
}

impl Plan {
    pub(crate) fn new(passes: Passes, selection: &Selection) -> Result<Self, CacheError> {
        let queries = &selection.queries;
        let report = match selection.score {
            Score::Logits => AttentionPass::scores_of,
            _ => AttentionPass::weights_of,
        };
        let average = selection.heads != HeadWeights::PerKvHead;
        let weighed = match queries.is_empty() {
            true => Ok(Passes::new()),
            false => passes
                .iter()
                .map(|(window, pass)| {
                    let pass = report(pass.clone(), queries.clone()).map_err(kernel)?;
                    Ok((*window, pass.average_heads(average)))
                })
                .collect::<Result<Passes, CacheError>>(),
        }?;
        Ok(Self { passes, weighed })
    }
}

/// Attention of one open pass.
pub(crate) struct PassAttend<'a> {
    pub(crate) store: &'a mut SlotStore,
    pub(crate) plan: Plan,
    pub(crate) shape: &'a ModelShape,
    /// Which layers have attended.
    pub(crate) seen: &'a mut [bool],
}

impl PassAttend<'_> {
    fn run(
        &mut self,
        layer: usize,
        [q, k, v]: [Tensor<3>; 3],
        weigh: bool,
    ) -> Result<Attended, CacheError> {
        let layers = self.shape.layers;
        let (got, [tokens, _, dim]) = (q.dims(), k.dims());
        if got[1] != self.shape.heads {
            let want = vec![tokens, self.shape.heads, dim];
            return Err(CacheError::Shape {
                what: "queries",
                got: got.to_vec(),
                want,
            });
        }
        let unknown = CacheError::Layer { layer, layers };
        let (Some(window), Some(seen)) = (self.shape.windows.get(layer), self.seen.get_mut(layer))
        else {
            return Err(unknown);
        };
        if std::mem::replace(seen, true) {
            return Err(CacheError::LayerTwice { layer });
        }
        let passes = match weigh && !self.plan.weighed.is_empty() {
            true => &self.plan.weighed,
            false => &self.plan.passes,
        };
        let Some((_, pass)) = passes.iter().find(|(w, _)| w == window) else {
            return Err(unknown);
        };
        self.store.attend(layer, q, k, v, pass).map_err(kernel)
    }
}

impl Attend for PassAttend<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        Ok(self.run(layer, [q, k, v], false)?.out)
    }
}

impl SelectiveAttend for PassAttend<'_> {
    fn attend_weighed(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Weighed> {
        let Attended { out, weights } = self.run(layer, [q, k, v], true)?;
        Ok(Weighed { out, weights })
    }
}
