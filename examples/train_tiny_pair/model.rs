//! The Llama architecture in plain tensor operations, for training. Two sizes of it.

use anyhow::{Result, anyhow};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::prelude::*;
use burn::tensor::activation::{silu, softmax};
use half::f16;
use serde_json::{Value, json};

pub const CONTEXT: usize = 512;
const THETA: f64 = 10_000.0;
const EPSILON: f64 = 1e-5;

/// Sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub wide: usize,
}

pub const TARGET: Sizes = Sizes {
    vocab: 768,
    hidden: 128,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    wide: 384,
};
pub const DRAFT: Sizes = Sizes {
    vocab: 768,
    hidden: 64,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    wide: 128,
};

impl Sizes {
    /// The `config.json` of a model of these sizes.
    pub fn config(&self, begin: u32, end: u32) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.wide,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPSILON,
            "rope_theta": THETA,
            "attention_bias": false,
            "mlp_bias": false,
            "tie_word_embeddings": true,
            "torch_dtype": "float16",
            "bos_token_id": begin,
            "eos_token_id": end,
        })
    }
}

#[derive(Module, Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

/// Name, shape and values of a tensor.
pub type Named = (String, Vec<usize>, Vec<f32>);

/// A decoder with tied embeddings.
#[derive(Module, Debug)]
pub struct TinyLm {
    embed: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    #[module(skip)]
    sizes: Sizes,
}

/// What depends on the length of a text only: angles `[T, D/2]` and the causal mask `[G * T, T]`.
#[derive(Debug, Clone)]
pub struct Positions {
    cos: Tensor<4>,
    sin: Tensor<4>,
    hide: Tensor<4>,
}

impl Positions {
    pub fn new(len: usize, sizes: &Sizes, device: &Device) -> Self {
        let half = sizes.head_dim / 2;
        let angle = |i: usize| (i / half) as f64 * THETA.powf(-((i % half) as f64) / half as f64);
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = (0..len * half).map(|i| f(angle(i)) as f32).collect();
            Tensor::from_data(TensorData::new(values, [1, 1, len, half]), device)
        };
        let rows = sizes.heads / sizes.kv_heads * len;
        let seen = |i: usize| i % len <= i / len % len;
        let hide: Vec<f32> = (0..rows * len)
            .map(|i| if seen(i) { 0.0 } else { -1e9 })
            .collect();
        Self {
            cos: table(f64::cos),
            sin: table(f64::sin),
            hide: Tensor::from_data(TensorData::new(hide, [1, 1, rows, len]), device),
        }
    }

    /// Rotates heads `[B, H, T, D]`, the first half of D against the second.
    fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let (cos, sin) = (&self.cos, &self.sin);
        let turned = a.clone() * cos.clone() - b.clone() * sin.clone();
        Tensor::cat(vec![turned, b * cos.clone() + a * sin.clone()], 3)
    }
}

impl Layer {
    fn new(s: &Sizes, device: &Device) -> Self {
        let linear = |from: usize, to: usize, part: f64| {
            let std = part / (from as f64).sqrt();
            let initializer = Initializer::Normal { mean: 0.0, std };
            LinearConfig::new(from, to)
                .with_bias(false)
                .with_initializer(initializer)
                .init(device)
        };
        let norm = || {
            RmsNormConfig::new(s.hidden)
                .with_epsilon(EPSILON)
                .init(device)
        };
        let residual = 1.0 / (2.0 * s.layers as f64).sqrt();
        Self {
            input_layernorm: norm(),
            q_proj: linear(s.hidden, s.heads * s.head_dim, 1.0),
            k_proj: linear(s.hidden, s.kv_heads * s.head_dim, 1.0),
            v_proj: linear(s.hidden, s.kv_heads * s.head_dim, 1.0),
            o_proj: linear(s.heads * s.head_dim, s.hidden, residual),
            post_attention_layernorm: norm(),
            gate_proj: linear(s.hidden, s.wide, 1.0),
            up_proj: linear(s.hidden, s.wide, 1.0),
            down_proj: linear(s.wide, s.hidden, residual),
        }
    }

    /// `x` `[B * T, hidden]` of `batch` texts.
    fn forward(&self, x: Tensor<2>, batch: usize, s: &Sizes, at: &Positions) -> Tensor<2> {
        let tokens = x.dims()[0];
        let (len, d) = (tokens / batch, s.head_dim);
        let split = |x: Tensor<2>, heads| x.reshape([batch, len, heads, d]).swap_dims(1, 2);
        let normed = self.input_layernorm.forward(x.clone());
        let q = at.rotate(split(self.q_proj.forward(normed.clone()), s.heads));
        let k = at.rotate(split(self.k_proj.forward(normed.clone()), s.kv_heads));
        let v = split(self.v_proj.forward(normed), s.kv_heads);
        // The queries that share a key head lie below each other.
        let group = s.heads / s.kv_heads;
        let q = (q * (d as f64).powf(-0.5)).reshape([batch, s.kv_heads, group * len, d]);
        let weights = softmax(q.matmul(k.swap_dims(2, 3)) + at.hide.clone(), 3);
        let seen = weights
            .matmul(v)
            .reshape([batch, s.heads, len, d])
            .swap_dims(1, 2);
        let x = x + self.o_proj.forward(seen.reshape([tokens, s.heads * d]));
        let normed = self.post_attention_layernorm.forward(x.clone());
        let wide = silu(self.gate_proj.forward(normed.clone())) * self.up_proj.forward(normed);
        x + self.down_proj.forward(wide)
    }
}

impl TinyLm {
    pub fn new(sizes: Sizes, device: &Device) -> Self {
        let initializer = Initializer::Normal {
            mean: 0.0,
            std: 0.05,
        };
        Self {
            embed: EmbeddingConfig::new(sizes.vocab, sizes.hidden)
                .with_initializer(initializer)
                .init(device),
            layers: (0..sizes.layers)
                .map(|_| Layer::new(&sizes, device))
                .collect(),
            norm: RmsNormConfig::new(sizes.hidden)
                .with_epsilon(EPSILON)
                .init(device),
            sizes,
        }
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Logits `[B * T, V]` of tokens `[B, T]`.
    pub fn forward(&self, tokens: Tensor<2, Int>, at: &Positions) -> Tensor<2> {
        let [batch, len] = tokens.dims();
        let mut x = self
            .embed
            .forward(tokens)
            .reshape([batch * len, self.sizes.hidden]);
        for layer in &self.layers {
            x = layer.forward(x, batch, &self.sizes, at);
        }
        self.norm
            .forward(x)
            .matmul(self.embed.weight.val().transpose())
    }

    /// The model with every weight rounded to what 16 bits can hold.
    pub fn rounded(self) -> Self {
        self.map(&mut Rounding)
    }

    /// Name, shape and values of every tensor, as Hugging Face checkpoints have them.
    pub fn tensors(&self) -> Result<Vec<Named>> {
        let mut all = vec![
            named("model.embed_tokens".into(), self.embed.weight.val())?,
            named("model.norm".into(), self.norm.gamma.val())?,
        ];
        for (i, l) in self.layers.iter().enumerate() {
            let name = |part: &str| format!("model.layers.{i}.{part}");
            all.push(named(
                name("input_layernorm"),
                l.input_layernorm.gamma.val(),
            )?);
            all.push(named(
                name("post_attention_layernorm"),
                l.post_attention_layernorm.gamma.val(),
            )?);
            for (part, linear) in [
                ("self_attn.q_proj", &l.q_proj),
                ("self_attn.k_proj", &l.k_proj),
                ("self_attn.v_proj", &l.v_proj),
                ("self_attn.o_proj", &l.o_proj),
                ("mlp.gate_proj", &l.gate_proj),
                ("mlp.up_proj", &l.up_proj),
                ("mlp.down_proj", &l.down_proj),
            ] {
                all.push(named(name(part), linear.weight.val().transpose())?);
            }
        }
        Ok(all)
    }
}

fn named<const D: usize>(name: String, tensor: Tensor<D>) -> Result<Named> {
    let shape = tensor.dims().to_vec();
    Ok((format!("{name}.weight"), shape, values(tensor)?))
}

/// The values of a tensor, row by row.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    tensor
        .into_data()
        .try_into_vec_as::<f32>()
        .map_err(|error| anyhow!("{error:?}"))
}

struct Rounding;

impl ModuleMapper for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let device = tensor.device();
            let (shape, data) = (tensor.shape(), tensor.into_data());
            let rounded: Vec<f32> = data
                .iter::<f32>()
                .map(|v| f16::from_f32(v).to_f32())
                .collect();
            Tensor::from_data(TensorData::new(rounded, shape), &device)
        })
    }
}
