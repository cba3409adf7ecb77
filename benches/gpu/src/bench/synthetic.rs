//! Models of real shapes with made-up weights. Speed does not depend on the numbers.

use burn::prelude::*;
use half::bf16;
use specdec::kernels::BlockFormat;
use specdec::models::{LoadError, ModelConfig, StoredTensor, TensorSource, Transformer};
use std::borrow::Cow;

/// The sizes of a Qwen3-like model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// What it is called in the table.
    pub name: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    inner: usize,
    vocab: usize,
    tied: bool,
}

/// Of Qwen3 0.6B.
pub const SMALL: Shape = Shape {
    name: "Qwen3-0.6B shape",
    hidden: 1024,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    inner: 3072,
    vocab: 151_936,
    tied: true,
};

/// Of Qwen3 8B.
pub const LARGE: Shape = Shape {
    name: "Qwen3-8B shape",
    hidden: 4096,
    layers: 36,
    heads: 32,
    inner: 12_288,
    tied: false,
    ..SMALL
};

/// Of nothing: to see that everything runs.
pub const TINY: Shape = Shape {
    name: "tiny shape",
    hidden: 64,
    layers: 3,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    inner: 160,
    vocab: 503,
    tied: true,
};

impl Shape {
    /// Bytes of keys and values of one position, at this many bytes a number.
    pub fn position_bytes(&self, number: usize) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * number
    }

    /// Numbers in all matrices.
    pub fn parameters(&self) -> usize {
        let attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads);
        let tables = if self.tied { 1 } else { 2 };
        self.layers * (attention + 3 * self.hidden * self.inner) + tables * self.vocab * self.hidden
    }

    fn config(&self) -> String {
        let Self {
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            inner,
            vocab,
            tied,
            ..
        } = self;
        format!(
            r#"{{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": {vocab},
                "hidden_size": {hidden}, "intermediate_size": {inner}, "num_hidden_layers": {layers},
                "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": {head_dim},
                "hidden_act": "silu", "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
                "rope_theta": 1000000.0, "attention_bias": false, "tie_word_embeddings": {tied}}}"#
        )
    }

    fn of(&self, name: &str) -> Option<Vec<usize>> {
        let part = name.strip_suffix(".weight")?.rsplit('.').next()?;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        Some(match part {
            "embed_tokens" => vec![self.vocab, self.hidden],
            "lm_head" if !self.tied => vec![self.vocab, self.hidden],
            "q_proj" => vec![q, self.hidden],
            "k_proj" | "v_proj" => vec![kv, self.hidden],
            "o_proj" => vec![self.hidden, q],
            "gate_proj" | "up_proj" => vec![self.inner, self.hidden],
            "down_proj" => vec![self.hidden, self.inner],
            "q_norm" | "k_norm" => vec![self.head_dim],
            "input_layernorm" | "post_attention_layernorm" | "norm" => vec![self.hidden],
            _ => return None,
        })
    }

    /// The model on a device.
    ///
    /// # Errors
    /// As [`Transformer::from_tensors`].
    pub fn model(&self, device: &Device) -> Result<Transformer, LoadError> {
        let config = ModelConfig::from_json(&self.config())?;
        Transformer::from_tensors(&config, &Weights::new(*self), device)
    }
}

/// Values of one cycle: a prime, so that no two rows of a matrix are alike.
const CYCLE: usize = 1_048_573;

/// Matrices are the beginning of one long list of small numbers; norms are ones.
struct Weights {
    shape: Shape,
    matrix: Vec<u8>,
    ones: Vec<u8>,
}

impl Weights {
    fn new(shape: Shape) -> Self {
        let longest = shape.hidden
            * shape
                .vocab
                .max(shape.inner)
                .max(shape.heads * shape.head_dim);
        let mut state = 1u64;
        let cycle: Vec<u8> = (0..CYCLE)
            .flat_map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
                bf16::from_f32(unit * 0.05).to_le_bytes()
            })
            .collect();
        let mut matrix = Vec::with_capacity(2 * longest);
        while matrix.len() < 2 * longest {
            let missing = 2 * longest - matrix.len();
            matrix.extend_from_slice(&cycle[..missing.min(cycle.len())]);
        }
        let ones = (0..shape.hidden.max(shape.head_dim))
            .flat_map(|_| 1f32.to_le_bytes())
            .collect();
        Self {
            shape,
            matrix,
            ones,
        }
    }
}

impl TensorSource for Weights {
    fn tensor(&self, name: &str) -> Result<Option<StoredTensor<'_>>, LoadError> {
        Ok(self.shape.of(name).map(|shape| {
            let values: usize = shape.iter().product();
            let (format, bytes) = match shape.len() {
                1 => (BlockFormat::F32, &self.ones[..4 * values]),
                _ => (BlockFormat::BF16, &self.matrix[..2 * values]),
            };
            StoredTensor {
                format,
                shape,
                bytes: Cow::Borrowed(bytes),
            }
        }))
    }
}
