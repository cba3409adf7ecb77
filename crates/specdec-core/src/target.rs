//! The seam to a model: a causal language model that knows nothing of caches, masks or drafts.

use crate::{Attend, Block, Result};
use burn::prelude::*;

/// What everything else has to know of a target or draft model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelSpec {
    /// Usable token ids are `0..vocab`; logits may have more columns (padded tables), which are
    /// never chosen.
    pub vocab: usize,
    /// Attention layers, each of which calls [`Attend::attend`] once a pass.
    pub layers: usize,
    /// Query heads H.
    pub heads: usize,
    /// Key/value heads Hkv; divides `heads`.
    pub kv_heads: usize,
    /// Head dimension D.
    pub head_dim: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Longest content (prompt and emitted tokens) the model was made for.
    pub context: usize,
    /// Sliding window of each layer in tokens (a query at p sees p-w+1..=p); `None` sees all.
    /// Either empty (no layer has one) or one entry a layer.
    pub windows: Vec<Option<usize>>,
    /// Attention scale; `None` is 1/sqrt(D).
    pub scale: Option<f32>,
    /// Where the model computes.
    pub device: Device,
    /// Identity of weights and configuration: equal for two models only if a key/value pair of one
    /// may stand in for the other's.
    pub fingerprint: u64,
}

impl ModelSpec {
    /// A specification with full attention, the usual scale and fingerprint 0; set the public
    /// fields for what differs.
    pub fn new(vocab: usize, layers: usize, hidden: usize, device: &Device) -> Self {
        Self {
            vocab,
            layers,
            heads: 1,
            kv_heads: 1,
            head_dim: hidden,
            hidden,
            context: usize::MAX,
            windows: Vec::new(),
            scale: None,
            device: device.clone(),
            fingerprint: 0,
        }
    }

    /// Sets query heads H, key/value heads Hkv and head dimension D.
    pub fn with_heads(mut self, heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        self.heads = heads;
        self.kv_heads = kv_heads;
        self.head_dim = head_dim;
        self
    }

    /// Sets the longest content in tokens.
    pub fn with_context(mut self, context: usize) -> Self {
        self.context = context;
        self
    }

    /// The sliding window of a layer.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}

/// What a pass over a block gives.
#[derive(Debug, Clone)]
pub struct Forward {
    /// Final hidden states after the last norm, ready for [`TargetModel::logits`], `[T, hidden]`.
    pub hidden: Tensor<2>,
    /// The taps asked for, in the order asked, `[T, hidden]` each.
    pub taps: Vec<Tensor<2>>,
}

/// A causal language model in Burn.
///
/// An implementation computes embeddings, projections, rotary or learned positions and feed-forward
/// layers for the packed tokens of a block, and calls `attend` once per layer with that layer's
/// queries, keys and values. It keeps nothing between passes.
///
/// For the promise of identical tokens, a token's hidden state must not depend on which other rows
/// are in the block (up to the documented margin of the backend).
pub trait TargetModel: Send + Sync {
    /// What the model is.
    fn spec(&self) -> &ModelSpec;

    /// Computes one block: `block.tokens()` `[T]` at `block.positions()` `[T]`.
    ///
    /// `taps` names hidden states to return beside the final one: tap `i` is the residual stream
    /// after layer `i` (0-based), before any final norm.
    ///
    /// # Errors
    /// Whatever `attend` returns, or [`crate::Error::Target`].
    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward>;

    /// Output logits of some tokens: `[N, hidden]` to `[N, V']`, `V' >= spec().vocab`.
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2>;

    /// Input embeddings: `[N]` to `[N, hidden]`. Ids are below `spec().vocab`.
    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2>;
}
