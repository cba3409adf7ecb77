//! One layer.

use super::{Transformer, projections::Projections};
use burn::prelude::*;
use specdec_core::{Attend, Result};
use specdec_kernels::{rms_norm, rotary, swiglu};

#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) attention_norm: Tensor<1>,
    /// Queries, keys, values.
    pub(super) qkv: Projections<3>,
    /// Norms of each query and each key head, `[D]`.
    pub(super) head_norms: Option<(Tensor<1>, Tensor<1>)>,
    pub(super) output: Projections<1>,
    pub(super) mlp_norm: Tensor<1>,
    /// Gate, up.
    pub(super) gate_up: Projections<2>,
    pub(super) down: Projections<1>,
}

impl Layer {
    /// `x` `[T, hidden]` to the residual stream after this layer; `(cos, sin)` `[T, pairs]` each.
    pub(super) fn forward(
        &self,
        model: &Transformer,
        index: usize,
        x: Tensor<2>,
        (cos, sin): (&Tensor<2>, &Tensor<2>),
        attend: &mut dyn Attend,
    ) -> Result<Tensor<2>> {
        let spec = &model.spec;
        let [tokens, _] = x.dims();
        let dim = spec.head_dim;
        let normed = rms_norm(x.clone(), self.attention_norm.clone(), model.rms_eps);
        let [mut q, mut k, v] = self.qkv.apply(normed);
        if let Some((q_norm, k_norm)) = &self.head_norms {
            let each = |heads: Tensor<2>, count: usize, weight: &Tensor<1>| {
                let heads = heads.reshape([tokens * count, dim]);
                rms_norm(heads, weight.clone(), model.rms_eps).reshape([tokens, count * dim])
            };
            q = each(q, spec.heads, q_norm);
            k = each(k, spec.kv_heads, k_norm);
        }
        let turn = |heads: Tensor<2>, count: usize| {
            let heads = heads.reshape([tokens, count, dim]);
            rotary(heads, cos.clone(), sin.clone(), model.pairing)
        };
        let q = turn(q, spec.heads);
        let k = turn(k, spec.kv_heads);
        let v = v.reshape([tokens, spec.kv_heads, dim]);
        let seen = attend.attend(index, q, k, v)?;
        let [seen] = self.output.apply(seen.reshape([tokens, spec.heads * dim]));
        let x = x + seen;
        let normed = rms_norm(x.clone(), self.mlp_norm.clone(), model.rms_eps);
        let [gate, up] = self.gate_up.apply(normed);
        let [wide] = self.down.apply(swiglu(gate, up));
        Ok(x + wide)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.qkv.memory_bytes()
            + self.output.memory_bytes()
            + self.gate_up.memory_bytes()
            + self.down.memory_bytes()
    }
}
