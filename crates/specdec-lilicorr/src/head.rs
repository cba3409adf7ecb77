//! The LiLiCorr head (arXiv 2608.20530): a small transformer over the lattice of candidates whose
//! outgoing and incoming vectors score how well a candidate follows another.

use crate::config::{DraftConfig, HeadConfig};
use crate::layers::{LinearMap, Norm, affine, packed, zeros};
use burn::module::{Module, Param};
use burn::prelude::*;
use burn::tensor::activation::{silu, softmax};
use specdec_kernels::WeightMatrix;

#[derive(Module, Debug)]
struct FeatureNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Mlp {
    up_proj: LinearMap,
    down_proj: LinearMap,
}

#[derive(Module, Debug)]
struct LatticeAttention {
    in_proj_weight: Param<Tensor<2>>,
    in_proj_bias: Param<Tensor<1>>,
    out_proj: LinearMap,
    #[module(skip)]
    packed: Option<WeightMatrix>,
}

#[derive(Module, Debug)]
struct LatticeLayer {
    attn_norm: Norm,
    attn: LatticeAttention,
    mlp_norm: Norm,
    mlp: Mlp,
}

/// The head. Names of its parameters are those of public checkpoints, under `lilicorr.`.
#[derive(Module, Debug)]
pub struct LiLiCorrHead {
    /// Absent when the head is as wide as the drafter.
    token_proj: Option<LinearMap>,
    pass_hidden_proj: LinearMap,
    context_proj: LinearMap,
    feature_norm: FeatureNorm,
    feature_mlp: Mlp,
    slot_embedding: Param<Tensor<5>>,
    rank_embedding: Param<Tensor<5>>,
    relative_slot_bias: Param<Tensor<2>>,
    same_slot_bias: Param<Tensor<1>>,
    layers: Vec<LatticeLayer>,
    output_norm: Norm,
    anchor_norm: Norm,
    factor_input_proj: LinearMap,
    out_head: LinearMap,
    in_head: LinearMap,
    anchor_out_head: LinearMap,
    #[module(skip)]
    config: HeadConfig,
    #[module(skip)]
    rms_eps: f64,
    #[module(skip)]
    block_size: usize,
}

/// What the head sees of R blocks with S slots of K candidates.
#[derive(Debug, Clone)]
pub struct HeadInput {
    /// Log-probabilities of the candidates over the whole draft vocabulary, best first, `[R, S, K]`.
    pub logprobs: Tensor<3>,
    /// The target's input embeddings of the candidates, `[R * S * K, D]`, slot by slot.
    pub embeddings: Tensor<2>,
    /// Final hidden states of the drafted slots, `[R * S, D]`.
    pub hidden: Tensor<2>,
    /// Fused features of the position before each anchor, `[R, D]`.
    pub anchor: Tensor<2>,
    /// 1, or 0 where an anchor has no position before it, `[R, 1]`.
    pub valid: Tensor<2>,
}

/// How well candidates go together.
#[derive(Debug, Clone)]
pub struct HeadScores {
    /// Of each first candidate after the anchor, `[R, K]`.
    pub start: Tensor<2>,
    /// From candidate i of a slot to candidate j of the next one, `[R, S - 1, K (i), K (j)]`;
    /// `None` when there is one slot.
    pub pairs: Option<Tensor<4>>,
}

impl LiLiCorrHead {
    pub(crate) fn empty(config: &HeadConfig, drafter: &DraftConfig, device: &Device) -> Self {
        let d = drafter.hidden;
        let h = config.hidden.unwrap_or(d);
        let (slots, k) = (drafter.slots(), config.candidates);
        let linear = |from, to| LinearMap::new(from, to, true, device);
        let mlp = |from, inner| Mlp {
            up_proj: linear(from, inner),
            down_proj: linear(inner, h),
        };
        let layer = |_| LatticeLayer {
            attn_norm: Norm::new(h, device),
            attn: LatticeAttention {
                in_proj_weight: zeros([3 * h, h], device),
                in_proj_bias: zeros([3 * h], device),
                out_proj: linear(h, h),
                packed: None,
            },
            mlp_norm: Norm::new(h, device),
            mlp: mlp(h, config.inner(h)),
        };
        Self {
            token_proj: config.hidden.map(|h| linear(d, h)),
            pass_hidden_proj: linear(d, h),
            context_proj: linear(d, h),
            feature_norm: FeatureNorm {
                weight: zeros([5], device),
                bias: zeros([5], device),
            },
            feature_mlp: mlp(5, h),
            slot_embedding: zeros([1, 1, slots, 1, h], device),
            rank_embedding: zeros([1, 1, 1, k, h], device),
            relative_slot_bias: zeros([config.heads, 2 * drafter.block_size - 1], device),
            same_slot_bias: zeros([config.heads], device),
            layers: (0..config.layers).map(layer).collect(),
            output_norm: Norm::new(h, device),
            anchor_norm: Norm::new(h, device),
            factor_input_proj: linear(3 * h, h),
            out_head: linear(h, config.factor),
            in_head: linear(h, config.factor),
            anchor_out_head: linear(h, config.factor),
            config: config.clone(),
            rms_eps: drafter.rms_eps,
            block_size: drafter.block_size,
        }
    }

    pub(crate) fn prepare(&mut self) {
        let maps = self.token_proj.iter_mut().chain([
            &mut self.pass_hidden_proj,
            &mut self.context_proj,
            &mut self.feature_mlp.up_proj,
            &mut self.feature_mlp.down_proj,
            &mut self.factor_input_proj,
            &mut self.out_head,
            &mut self.in_head,
            &mut self.anchor_out_head,
        ]);
        maps.for_each(LinearMap::prepare);
        for layer in &mut self.layers {
            layer.attn.packed = packed(&mut layer.attn.in_proj_weight);
            layer.attn.out_proj.prepare();
            layer.mlp.up_proj.prepare();
            layer.mlp.down_proj.prepare();
        }
    }

    /// Its sizes.
    pub fn config(&self) -> &HeadConfig {
        &self.config
    }

    /// Scores of R lattices. Blocks may have fewer slots than the head was trained with.
    ///
    /// # Panics
    /// When the shapes do not fit the head and each other, as Burn's own operations do.
    pub fn forward(&self, input: HeadInput) -> HeadScores {
        let [r, s, k] = input.logprobs.dims();
        let nodes = s * k;
        let phi = self.features(input.logprobs);
        let h = phi.dims()[1];
        let token = match &self.token_proj {
            Some(map) => map.forward(input.embeddings),
            None => input.embeddings,
        };
        let pass = self
            .pass_hidden_proj
            .forward(input.hidden)
            .reshape([r, s, 1, h]);
        let slot = self.slot_embedding.val().narrow(2, 0, s);
        let x = (token + phi).reshape([r, s, k, h])
            + pass
            + slot.reshape([1, s, 1, h])
            + self.rank_embedding.val().reshape([1, 1, k, h]);
        let mut x = x.reshape([r * nodes, h]);
        let bias = self.bias(s, k);
        for layer in &self.layers {
            let normed = layer.attn_norm.forward(x.clone(), self.rms_eps);
            x = x + layer
                .attn
                .forward(normed, [r, nodes], self.config.heads, &bias);
            let normed = layer.mlp_norm.forward(x.clone(), self.rms_eps);
            x = x + layer.mlp.forward(normed);
        }
        let x = self.output_norm.forward(x, self.rms_eps);

        let a = self.context_proj.forward(input.anchor) * input.valid;
        let a = self.anchor_norm.forward(a, self.rms_eps);
        let spread = a
            .clone()
            .reshape([r, 1, h])
            .repeat_dim(1, nodes)
            .reshape([r * nodes, h]);
        let both = x.clone() * spread.clone();
        let z = silu(
            self.factor_input_proj
                .forward(Tensor::cat(vec![x, spread, both], 1)),
        );
        let f = self.config.factor;
        let scale = self.config.logit_scale;
        let out = self.unit(self.out_head.forward(z.clone()));
        let into = self.unit(self.in_head.forward(z)).reshape([r, s, k, f]);
        let from = self
            .unit(self.anchor_out_head.forward(a))
            .reshape([r, 1, f]);
        let first = into.clone().narrow(1, 0, 1).reshape([r, k, f]);
        let start = from.matmul(first.swap_dims(1, 2)).reshape([r, k]) * scale;
        let pairs = (s > 1).then(|| {
            let out = out.reshape([r, s, k, f]).narrow(1, 0, s - 1);
            let into = into.narrow(1, 1, s - 1);
            out.matmul(into.swap_dims(2, 3)) * scale
        });
        HeadScores { start, pairs }
    }

    /// The five numbers known of each candidate, as states `[R * S * K, h]`.
    fn features(&self, logprobs: Tensor<3>) -> Tensor<2> {
        let [r, s, k] = logprobs.dims();
        let device = logprobs.device();
        let best = logprobs.clone().narrow(2, 0, 1);
        let constant = |of: &dyn Fn(usize) -> f32| {
            let values: Vec<f32> = (0..k).map(of).collect();
            Tensor::<3>::from_data(TensorData::new(values, [1, 1, k]), &device).expand([r, s, k])
        };
        let most = (k.max(2) - 1) as f32;
        let columns = vec![
            logprobs.clone(),
            logprobs.clone().exp(),
            logprobs - best,
            constant(&|rank| rank as f32 / most),
            constant(&|rank| f32::from(u8::from(rank == 0))),
        ];
        let x: Tensor<4> = Tensor::stack(columns, 3);
        let x = x.reshape([r * s * k, 5]);
        let centred = x.clone() - x.mean_dim(1);
        let variance = centred.clone().square().mean_dim(1);
        let normed = centred / (variance + 1e-5).sqrt();
        let norm = &self.feature_norm;
        self.feature_mlp
            .forward(normed * norm.weight.val().unsqueeze() + norm.bias.val().unsqueeze())
    }

    /// What is added to the attention scores of S slots of K candidates, `[1, heads, S * K, S * K]`.
    fn bias(&self, s: usize, k: usize) -> Tensor<4> {
        let heads = self.config.heads;
        let device = self.same_slot_bias.val().device();
        let offset = self.block_size - 1;
        let index: Vec<i64> = (0..s * s)
            .map(|i| (i / s + offset) as i64 - (i % s) as i64)
            .collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [s * s]), &device);
        let same: Vec<f32> = (0..s * s)
            .map(|i| f32::from(u8::from(i / s == i % s)))
            .collect();
        let same = Tensor::<2>::from_data(TensorData::new(same, [1, s * s]), &device);
        let bias = self.relative_slot_bias.val().select(1, index)
            + self.same_slot_bias.val().reshape([heads, 1]) * same;
        bias.reshape([heads, s, 1, s, 1])
            .expand([heads, s, k, s, k])
            .reshape([1, heads, s * k, s * k])
    }

    /// Rows of length 1.
    fn unit(&self, v: Tensor<2>) -> Tensor<2> {
        // The summand keeps the slope of the root finite at zero.
        let norm = (v.clone().square().sum_dim(1) + 1e-24).sqrt();
        v / norm.clamp_min(self.config.vector_eps)
    }
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down_proj.forward(silu(self.up_proj.forward(x)))
    }
}

impl LatticeAttention {
    /// All nodes of a lattice see each other.
    fn forward(
        &self,
        x: Tensor<2>,
        [blocks, nodes]: [usize; 2],
        heads: usize,
        bias: &Tensor<4>,
    ) -> Tensor<2> {
        let h = x.dims()[1];
        let dim = h / heads;
        let all = affine(
            x,
            &self.in_proj_weight,
            Some(&self.in_proj_bias),
            self.packed.as_ref(),
        );
        let part = |which: usize| {
            all.clone()
                .narrow(1, which * h, h)
                .reshape([blocks, nodes, heads, dim])
                .swap_dims(1, 2)
        };
        let q = part(0) * (dim as f64).powf(-0.5);
        let scores = q.matmul(part(1).swap_dims(2, 3)) + bias.clone();
        let seen = softmax(scores, 3).matmul(part(2)).swap_dims(1, 2);
        self.out_proj.forward(seen.reshape([blocks * nodes, h]))
    }
}
