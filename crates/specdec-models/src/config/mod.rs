//! What a model is made of, apart from its weights.

mod gguf;
mod json;
mod scaling;

pub use scaling::RopeScaling;

use crate::{LoadError, error::Result};

/// Model families, all computed by [`crate::Transformer`]. They differ in what
/// [`ModelConfig`] says, not in code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 1 to 3, Mistral, SmolLM and the many others that keep to it.
    Llama,
    /// Qwen 1.5, 2 and 2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen 3 (dense): normalised queries and keys.
    Qwen3,
}

impl Architecture {
    /// The family that ggml's `general.architecture` or Hugging Face's `model_type` names.
    ///
    /// # Errors
    /// [`LoadError::UnsupportedArchitecture`] for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "llama" | "mistral" => Ok(Self::Llama),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            other => Err(LoadError::UnsupportedArchitecture {
                name: other.to_owned(),
            }),
        }
    }
}

/// The sizes and settings of a model.
///
/// Read from a GGUF file ([`from_gguf`](Self::from_gguf)) or a `config.json`
/// ([`from_json`](Self::from_json)), or made with [`new`](Self::new) and its public fields. It is
/// checked when a model is made of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding table that stand for tokens. The table may have more (padding).
    pub vocab: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads H.
    pub heads: usize,
    /// Key/value heads Hkv; divides `heads`.
    pub kv_heads: usize,
    /// Head dimension D; need not be `hidden / heads`.
    pub head_dim: usize,
    /// Width of the feed-forward layers.
    pub intermediate: usize,
    /// Added to the mean square in every normalisation.
    pub rms_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How many of the D dimensions rotate; even.
    pub rope_dim: usize,
    /// How the rotary frequencies are stretched for long contexts.
    pub rope_scaling: RopeScaling,
    /// Whether the output map is the embedding table.
    pub tied: bool,
    /// Biases on queries, keys and values.
    pub qkv_bias: bool,
    /// A bias on the attention output.
    pub output_bias: bool,
    /// Biases in the feed-forward layers.
    pub mlp_bias: bool,
    /// Normalisation of each query and key head before rotation.
    pub qk_norm: bool,
    /// Sliding window of each layer: a query at p sees p-w+1..=p. Empty when no layer has one.
    pub windows: Vec<Option<usize>>,
    /// Longest content the model was trained for, in tokens.
    pub context: usize,
}

/// Sizes above this are no model's; it keeps products of two sizes far from overflow.
const MAX_SIZE: usize = 1 << 28;
/// More layers than this are no model's.
const MAX_LAYERS: usize = 1 << 14;

impl ModelConfig {
    /// A model with one head, full attention, a feed-forward width of four times `hidden`, tied
    /// embeddings and the family's own biases and normalisations; set the public fields for what
    /// differs.
    pub fn new(architecture: Architecture, vocab: usize, hidden: usize, layers: usize) -> Self {
        Self {
            architecture,
            vocab,
            hidden,
            layers,
            heads: 1,
            kv_heads: 1,
            head_dim: hidden,
            intermediate: hidden.saturating_mul(4),
            rms_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_dim: hidden,
            rope_scaling: RopeScaling::None,
            tied: true,
            qkv_bias: architecture == Architecture::Qwen2,
            output_bias: false,
            mlp_bias: false,
            qk_norm: architecture == Architecture::Qwen3,
            windows: Vec::new(),
            context: 2048,
        }
    }

    /// Sets query heads H, key/value heads Hkv and head dimension D (all of it rotating).
    pub fn with_heads(mut self, heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        self.heads = heads;
        self.kv_heads = kv_heads;
        self.head_dim = head_dim;
        self.rope_dim = head_dim;
        self
    }

    /// Sets the feed-forward width.
    pub fn with_intermediate(mut self, intermediate: usize) -> Self {
        self.intermediate = intermediate;
        self
    }

    /// Checks that the settings fit each other.
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] naming the field.
    pub fn check(&self) -> Result<()> {
        self.check_sizes()?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(LoadError::invalid(
                "kv_heads",
                self.kv_heads,
                "it must divide the number of heads",
            ));
        }
        if !self.rope_dim.is_multiple_of(2) || self.rope_dim > self.head_dim {
            return Err(LoadError::invalid(
                "rope_dim",
                self.rope_dim,
                "an even number up to the head dimension is needed",
            ));
        }
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return Err(LoadError::invalid(
                "rms_eps",
                self.rms_eps,
                "a finite number of at least 0 is needed",
            ));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            return Err(LoadError::invalid(
                "rope_theta",
                self.rope_theta,
                "a positive number is needed",
            ));
        }
        if !self.windows.is_empty() && self.windows.len() != self.layers {
            return Err(LoadError::invalid(
                "windows",
                self.windows.len(),
                "either no entry or one for each layer is needed",
            ));
        }
        if self.windows.contains(&Some(0)) {
            return Err(LoadError::invalid(
                "windows",
                0,
                "a window has at least one token",
            ));
        }
        self.rope_scaling.check(self.rope_dim)
    }

    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("vocab", self.vocab, MAX_SIZE),
            ("hidden", self.hidden, MAX_SIZE),
            ("layers", self.layers, MAX_LAYERS),
            ("heads", self.heads, MAX_SIZE),
            ("kv_heads", self.kv_heads, MAX_SIZE),
            ("head_dim", self.head_dim, MAX_SIZE),
            ("intermediate", self.intermediate, MAX_SIZE),
            ("context", self.context, usize::MAX),
        ];
        for (name, size, most) in sizes {
            if size == 0 || size > most {
                return Err(LoadError::invalid(
                    name,
                    size,
                    "a size between 1 and what any model has is needed",
                ));
            }
        }
        Ok(())
    }
}
