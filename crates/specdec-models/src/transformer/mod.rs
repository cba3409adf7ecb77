//! The one model: a decoder of the Llama kind, whose variants the configuration switches.

mod assemble;
mod layer;
mod plan;
mod projections;

pub use assemble::WeightDtype;
pub(crate) use assemble::{Assembled, Assembly};

use crate::{LoadOptions, ModelConfig, Rope, TensorSource, error::Result};
use burn::prelude::*;
use layer::Layer;
use specdec_core::{Attend, Block, Error, Forward, ModelSpec, TargetModel, Token};
use specdec_kernels::{RotaryPairing, WeightMatrix, rms_norm};
use std::fmt;

/// A causal decoder of the Llama, Qwen2 or Qwen3 family.
///
/// Each layer is `x + attention(norm(x))`, then `x + down(silu(gate(norm(x))) * up(norm(x)))`, with
/// root-mean-square norms and rotary positions. The model keeps nothing between passes; cloning it
/// shares the weights, and one may serve many threads.
#[derive(Clone)]
pub struct Transformer {
    spec: ModelSpec,
    rope: Rope,
    pairing: RotaryPairing,
    rms_eps: f64,
    embedding: WeightMatrix,
    /// `None`: the embedding is the output map.
    output: Option<WeightMatrix>,
    norm: Tensor<1>,
    layers: Vec<Layer>,
}

impl fmt::Debug for Transformer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transformer")
            .field("spec", &self.spec)
            .field("pairing", &self.pairing)
            .field("tied", &self.output.is_none())
            .field("memory_bytes", &self.memory_bytes())
            .finish_non_exhaustive()
    }
}

/// Why a block cannot be computed; carried by [`specdec_core::Error::Target`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// There is nothing to compute.
    #[error("the block has no tokens")]
    Empty,
    /// A token without a row in the embedding table.
    #[error("token {token} at block index {index} is outside the vocabulary of {vocab}")]
    Token {
        /// Index in the block.
        index: usize,
        /// The id.
        token: Token,
        /// Ids are below this.
        vocab: usize,
    },
    /// A tap on a layer that does not exist.
    #[error("tap {tap} of a model with {layers} layers")]
    Tap {
        /// The tap.
        tap: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The block's tensors are on another device than the weights.
    #[error("the block is on {block}, the model on {model}")]
    Device {
        /// The block's device.
        block: String,
        /// The model's device.
        model: String,
    },
}

impl Transformer {
    /// A model of the tensors in `source`, computed on `device`.
    ///
    /// The source names tensors as Hugging Face does. Every tensor's presence, type and shape is
    /// checked before the first one is loaded.
    ///
    /// # Errors
    /// [`crate::LoadError::InvalidKey`] for a configuration that does not fit itself,
    /// [`crate::LoadError::TensorMissing`], [`crate::LoadError::ShapeMismatch`],
    /// [`crate::LoadError::UnsupportedTensorType`], [`crate::LoadError::Kernel`].
    pub fn from_tensors(
        config: &ModelConfig,
        source: &dyn TensorSource,
        device: &Device,
    ) -> Result<Self> {
        Self::from_tensors_with(config, source, &LoadOptions::default(), device)
    }

    /// [`from_tensors`](Self::from_tensors) with options.
    ///
    /// # Errors
    /// As [`from_tensors`](Self::from_tensors), and [`crate::LoadError::Aborted`].
    pub fn from_tensors_with(
        config: &ModelConfig,
        source: &dyn TensorSource,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<Self> {
        Ok(Assembly::new(config, source, options, device)?.run()?.model)
    }

    /// Narrows the usable token ids to `0..vocab`: for a tokenizer that knows fewer tokens than the
    /// configuration says. Embedding tables are often padded, and an id without text must never be
    /// drafted or emitted. A larger `vocab` than now changes nothing.
    #[must_use]
    pub fn with_vocab(mut self, vocab: usize) -> Self {
        self.spec.vocab = self.spec.vocab.min(vocab);
        self
    }

    /// The rotary frequencies.
    pub fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Bytes the weight matrices occupy on the device.
    pub fn memory_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::memory_bytes).sum();
        let output = self.output.as_ref().map_or(0, WeightMatrix::memory_bytes);
        layers + self.embedding.memory_bytes() + output
    }

    fn check(&self, block: &Block, taps: &[usize]) -> Result<(), ForwardError> {
        if block.is_empty() {
            return Err(ForwardError::Empty);
        }
        if block.device() != &self.spec.device {
            return Err(ForwardError::Device {
                block: format!("{:?}", block.device()),
                model: format!("{:?}", self.spec.device),
            });
        }
        let [rows, _] = self.embedding.dims();
        let outside = |&(_, &token): &(usize, &Token)| token as usize >= rows;
        if let Some((index, &token)) = block.tokens().iter().enumerate().find(outside) {
            let vocab = rows;
            return Err(ForwardError::Token {
                index,
                token,
                vocab,
            });
        }
        let layers = self.layers.len();
        match taps.iter().find(|&&tap| tap >= layers) {
            Some(&tap) => Err(ForwardError::Tap { tap, layers }),
            None => Ok(()),
        }
    }
}

impl TargetModel for Transformer {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(
        &self,
        block: &Block,
        attend: &mut dyn Attend,
        taps: &[usize],
    ) -> specdec_core::Result<Forward> {
        self.check(block, taps)
            .map_err(|error| Error::Target(Box::new(error)))?;
        let (cos, sin) = self.rope.angles(block.positions(), block.device());
        let mut x = self.embed(block.token_tensor());
        let mut tapped = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(self, index, x, (&cos, &sin), attend)?;
            if taps.contains(&index) {
                tapped.push((index, x.clone()));
            }
        }
        let taps = taps.iter().filter_map(|tap| {
            let found = tapped.iter().find(|(index, _)| index == tap);
            found.map(|(_, state)| state.clone())
        });
        Ok(Forward {
            taps: taps.collect(),
            hidden: rms_norm(x, self.norm.clone(), self.rms_eps),
        })
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.output
            .as_ref()
            .unwrap_or(&self.embedding)
            .matmul(hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.embedding.rows(tokens)
    }
}
