//! The network of the drafter: DFlash (arXiv 2602.06036), with or without the LiLiCorr head
//! (arXiv 2608.20530).

use crate::attention::Projected;
use crate::config::DraftConfig;
use crate::error::Result;
use crate::head::LiLiCorrHead;
use crate::layers::{LinearMap, Norm};
use crate::named;
use crate::positions::Angles;
use burn::module::Module;
use burn::prelude::*;
use specdec_kernels::{RotaryPairing, rotary, swiglu};

#[derive(Module, Debug)]
struct SelfAttention {
    q_proj: LinearMap,
    k_proj: LinearMap,
    v_proj: LinearMap,
    o_proj: LinearMap,
    q_norm: Norm,
    k_norm: Norm,
}

#[derive(Module, Debug)]
struct GatedMlp {
    gate_proj: LinearMap,
    up_proj: LinearMap,
    down_proj: LinearMap,
}

#[derive(Module, Debug)]
struct DraftLayer {
    input_layernorm: Norm,
    self_attn: SelfAttention,
    post_attention_layernorm: Norm,
    mlp: GatedMlp,
}

/// A draft network. Embeddings and output map are the target's own and no part of it.
///
/// The names of its parameters are those of public checkpoints: `fc`, `hidden_norm`, `layers.N`,
/// `norm`, and under `lilicorr` the head.
#[derive(Module, Debug)]
pub struct DraftModel {
    fc: LinearMap,
    hidden_norm: Norm,
    layers: Vec<DraftLayer>,
    norm: Norm,
    pub(crate) lilicorr: Option<LiLiCorrHead>,
    #[module(skip)]
    config: DraftConfig,
}

impl DraftLayer {
    fn new(c: &DraftConfig, device: &Device) -> Self {
        let linear = |from, to| LinearMap::new(from, to, false, device);
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        Self {
            input_layernorm: Norm::new(c.hidden, device),
            self_attn: SelfAttention {
                q_proj: linear(c.hidden, q),
                k_proj: linear(c.hidden, kv),
                v_proj: linear(c.hidden, kv),
                o_proj: linear(q, c.hidden),
                q_norm: Norm::new(c.head_dim, device),
                k_norm: Norm::new(c.head_dim, device),
            },
            post_attention_layernorm: Norm::new(c.hidden, device),
            mlp: GatedMlp {
                gate_proj: linear(c.hidden, c.intermediate),
                up_proj: linear(c.hidden, c.intermediate),
                down_proj: linear(c.intermediate, c.hidden),
            },
        }
    }

    fn prepare(&mut self) {
        let a = &mut self.self_attn;
        for map in [&mut a.q_proj, &mut a.k_proj, &mut a.v_proj, &mut a.o_proj] {
            map.prepare();
        }
        let m = &mut self.mlp;
        for map in [&mut m.gate_proj, &mut m.up_proj, &mut m.down_proj] {
            map.prepare();
        }
    }

    /// Keys and values `[T, Hkv, D]` of rows: normalised block rows, or fused features as they are.
    fn keys_values(&self, x: Tensor<2>, at: &Angles, c: &DraftConfig) -> (Tensor<3>, Tensor<3>) {
        let a = &self.self_attn;
        let k = heads(a.k_proj.forward(x.clone()), c.kv_heads, Some(&a.k_norm), c);
        let k = rotary(k, at.cos.clone(), at.sin.clone(), RotaryPairing::HalfSplit);
        (k, heads(a.v_proj.forward(x), c.kv_heads, None, c))
    }

    fn forward(
        &self,
        x: Tensor<2>,
        at: &Angles,
        c: &DraftConfig,
        attend: impl FnOnce(Projected) -> Tensor<2>,
    ) -> Tensor<2> {
        let a = &self.self_attn;
        let normed = self.input_layernorm.forward(x.clone(), c.rms_eps);
        let q = heads(
            a.q_proj.forward(normed.clone()),
            c.heads,
            Some(&a.q_norm),
            c,
        );
        let q = rotary(q, at.cos.clone(), at.sin.clone(), RotaryPairing::HalfSplit);
        let (k, v) = self.keys_values(normed, at, c);
        let x = x + a.o_proj.forward(attend(Projected { q, k, v }));
        let normed = self.post_attention_layernorm.forward(x.clone(), c.rms_eps);
        let m = &self.mlp;
        let wide = swiglu(
            m.gate_proj.forward(normed.clone()),
            m.up_proj.forward(normed),
        );
        x + m.down_proj.forward(wide)
    }
}

/// `[T, heads * D]` to `[T, heads, D]`, each head normalised.
fn heads(x: Tensor<2>, heads: usize, norm: Option<&Norm>, c: &DraftConfig) -> Tensor<3> {
    let [tokens, _] = x.dims();
    let x = match norm {
        Some(norm) => norm.forward(x.reshape([tokens * heads, c.head_dim]), c.rms_eps),
        None => x,
    };
    x.reshape([tokens, heads, c.head_dim])
}

impl DraftModel {
    /// A network with starting weights that are a function of the seed: normal with deviation
    /// 0.02, norms 1, biases and embeddings of the head 0. All of them can be trained.
    ///
    /// # Errors
    /// As [`DraftConfig::check`].
    pub fn new(config: &DraftConfig, seed: u64, device: &Device) -> Result<Self> {
        Self::with_deviation(config, seed, 0.02, device)
    }

    /// The same with normal weights of another deviation; narrow networks learn faster with more.
    ///
    /// # Errors
    /// As [`DraftConfig::check`].
    pub fn with_deviation(
        config: &DraftConfig,
        seed: u64,
        deviation: f64,
        device: &Device,
    ) -> Result<Self> {
        let empty = Self::empty(config, device)?;
        Ok(named::filled(empty, &mut |name, shape| {
            Some(named::initial(name, shape, seed, Some(deviation)))
        }))
    }

    /// A network of zeros, to be filled.
    pub(crate) fn empty(config: &DraftConfig, device: &Device) -> Result<Self> {
        config.check()?;
        let c = config;
        let head = |h| LiLiCorrHead::empty(h, c, device);
        Ok(Self {
            fc: LinearMap::new(c.taps.len() * c.hidden, c.hidden, false, device),
            hidden_norm: Norm::new(c.hidden, device),
            layers: c
                .layers
                .iter()
                .map(|_| DraftLayer::new(c, device))
                .collect(),
            norm: Norm::new(c.hidden, device),
            lilicorr: c.head.as_ref().map(head),
            config: config.clone(),
        })
    }

    /// What it is made of.
    pub fn config(&self) -> &DraftConfig {
        &self.config
    }

    /// The head, if there is one.
    pub fn head(&self) -> Option<&LiLiCorrHead> {
        self.lilicorr.as_ref()
    }

    /// Where it computes.
    pub fn device(&self) -> Device {
        self.fc.weight.val().device()
    }

    /// Name and shape of every parameter.
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        named::names(self)
    }

    /// Number of trained numbers.
    pub fn len(&self) -> usize {
        let shapes = self.parameters();
        shapes
            .iter()
            .map(|(_, s)| s.iter().product::<usize>())
            .sum()
    }

    /// Whether there are none; never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Without its head: DFlash alone.
    #[must_use]
    pub fn without_head(mut self) -> Self {
        self.lilicorr = None;
        self.config.head = None;
        self
    }

    /// Packs all weights for decoding. The result can be neither trained nor saved.
    pub(crate) fn prepared(mut self) -> Self {
        self.fc.prepare();
        self.layers.iter_mut().for_each(DraftLayer::prepare);
        if let Some(head) = &mut self.lilicorr {
            head.prepare();
        }
        self
    }

    /// The features of committed positions: their taps `[T, taps * D]`, one after the other in
    /// each row, fused and normalised to `[T, D]`. A row depends on its own position only.
    pub fn fuse(&self, taps: Tensor<2>) -> Tensor<2> {
        self.hidden_norm
            .forward(self.fc.forward(taps), self.config.rms_eps)
    }

    /// Keys and values `[T, Hkv, D]` that a layer sees of features `[T, D]` at these positions.
    pub(crate) fn context(
        &self,
        layer: usize,
        features: Tensor<2>,
        at: &Angles,
    ) -> (Tensor<3>, Tensor<3>) {
        self.layers[layer].keys_values(features, at, &self.config)
    }

    /// Final hidden states of block rows from their embeddings, `[T, D]` both. `attend` gives for
    /// a layer's projections the attended values `[T, H * D]`.
    pub(crate) fn forward(
        &self,
        embedded: Tensor<2>,
        at: &Angles,
        attend: &mut dyn FnMut(usize, Projected) -> Tensor<2>,
    ) -> Tensor<2> {
        let mut x = embedded;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x, at, &self.config, |projected| attend(index, projected));
        }
        self.norm.forward(x, self.config.rms_eps)
    }
}
