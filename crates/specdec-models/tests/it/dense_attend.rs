//! A small exact cache: every sequence's keys and values, attended to by the formula in f64.

use crate::tiny::device;
use burn::prelude::*;
use specdec_core::{Attend, Block, Forward, ModelSpec, RowSpan, SeqId, TargetModel};
use specdec_models::Transformer;
use std::collections::HashMap;

type KeysValues = (Vec<f32>, Vec<f32>);

pub(crate) struct DenseAttend {
    spec: ModelSpec,
    rows: Vec<RowSpan>,
    store: HashMap<(SeqId, usize), KeysValues>,
    /// Layers in the order they were called in this pass.
    pub(crate) called: Vec<usize>,
}

impl DenseAttend {
    pub(crate) fn new(model: &Transformer) -> Self {
        Self {
            spec: model.spec().clone(),
            rows: Vec::new(),
            store: HashMap::new(),
            called: Vec::new(),
        }
    }

    /// Computes a block and keeps everything it staged. Returns the logits of every token, `T`
    /// rows, and the taps.
    pub(crate) fn pass(
        &mut self,
        model: &Transformer,
        block: &Block,
        taps: &[usize],
    ) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let forward = self.forward(model, block, taps);
        let logits = model.logits(forward.hidden);
        let [_, width] = logits.dims();
        let logits = values(logits);
        let taps = forward.taps.into_iter().map(values).collect();
        (logits.chunks(width).map(<[f32]>::to_vec).collect(), taps)
    }

    /// The final hidden states of a block, `[T, hidden]`; everything staged is kept.
    pub(crate) fn hidden(&mut self, model: &Transformer, block: &Block) -> Tensor<2> {
        self.forward(model, block, &[]).hidden
    }

    fn forward(&mut self, model: &Transformer, block: &Block, taps: &[usize]) -> Forward {
        self.rows = block.rows().to_vec();
        self.called.clear();
        model.forward(block, self, taps).unwrap()
    }
}

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().unwrap()
}

/// The logits of every token of one sequence, computed in one pass.
pub(crate) fn logits_of(model: &Transformer, tokens: &[u32]) -> Vec<Vec<f32>> {
    let block = Block::single(SeqId(1), 0, tokens, &device());
    DenseAttend::new(model).pass(model, &block, &[]).0
}

impl Attend for DenseAttend {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> specdec_core::Result<Tensor<3>> {
        self.called.push(layer);
        let (heads, kv_heads, dim) = (self.spec.heads, self.spec.kv_heads, self.spec.head_dim);
        let [tokens, _, _] = q.dims();
        assert_eq!(q.dims(), [tokens, heads, dim]);
        assert_eq!(k.dims(), [tokens, kv_heads, dim]);
        assert_eq!(v.dims(), [tokens, kv_heads, dim]);
        let (q, k, v) = (values(q), values(k), values(v));
        let (wide, narrow) = (heads * dim, kv_heads * dim);
        let mut out = vec![0.0; tokens * wide];
        let mut at = 0;
        for row in &self.rows {
            let (keys, vals) = self.store.entry((row.seq, layer)).or_default();
            assert_eq!(keys.len(), row.start * narrow);
            keys.extend_from_slice(&k[at * narrow..(at + row.len) * narrow]);
            vals.extend_from_slice(&v[at * narrow..(at + row.len) * narrow]);
            for token in 0..row.len {
                let position = row.start + token;
                let first = match self.spec.window(layer) {
                    Some(window) => (position + 1).saturating_sub(window),
                    None => 0,
                };
                for head in 0..heads {
                    let query = &q[(at + token) * wide + head * dim..][..dim];
                    let column = head * kv_heads / heads * dim;
                    let scores: Vec<f64> = (first..=position)
                        .map(|p| dot(query, &keys[p * narrow + column..][..dim]))
                        .map(|s| s / (dim as f64).sqrt())
                        .collect();
                    let most = scores.iter().fold(f64::MIN, |m, &s| m.max(s));
                    let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    let mut mean = vec![0.0f64; dim];
                    for (p, weight) in (first..=position).zip(&weights) {
                        let value = &vals[p * narrow + column..][..dim];
                        for (m, &v) in mean.iter_mut().zip(value) {
                            *m += weight * f64::from(v);
                        }
                    }
                    let place = &mut out[(at + token) * wide + head * dim..][..dim];
                    for (place, m) in place.iter_mut().zip(&mean) {
                        *place = (m / sum) as f32;
                    }
                }
            }
            at += row.len;
        }
        let shape = [tokens, heads, dim];
        Ok(Tensor::from_data(TensorData::new(out, shape), &device()))
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}
