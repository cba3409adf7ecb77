//! What a drafter is made of, apart from its weights.

use crate::error::{DraftModelError, Result};
use specdec_core::Token;

/// Which committed positions a draft layer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayerKind {
    /// All of them.
    Full,
    /// Of a query at position t those above `t - w`. The block itself is seen whole.
    Sliding(usize),
}

/// The sizes of a LiLiCorr head. `logit_scale` and `vector_eps` change what is computed without
/// changing a shape, so none of the fields has a default when a checkpoint is read.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadConfig {
    /// Candidates K of each slot.
    pub candidates: usize,
    /// Width h of the head; `None` is the drafter's own width, without a projection of tokens.
    pub hidden: Option<usize>,
    /// Width F of the vectors whose products are the scores.
    pub factor: usize,
    /// Transformer layers over the lattice.
    pub layers: usize,
    /// Their attention heads; divides h.
    pub heads: usize,
    /// Inner width of the feed-forward maps, in units of h.
    pub mlp_ratio: f64,
    /// What cosines are multiplied by.
    pub logit_scale: f64,
    /// Smallest norm a vector is divided by.
    pub vector_eps: f64,
}

impl HeadConfig {
    /// A head of the paper's proportions: 8 candidates, two layers of eight heads, ratio 2,
    /// scale 8 and least norm 1e-4.
    pub fn new(hidden: usize, factor: usize) -> Self {
        Self {
            candidates: 8,
            hidden: Some(hidden),
            factor,
            layers: 2,
            heads: 8,
            mlp_ratio: 2.0,
            logit_scale: 8.0,
            vector_eps: 1e-4,
        }
    }

    /// Inner width of the feed-forward maps for a head of width `h`.
    pub(crate) fn inner(&self, h: usize) -> usize {
        (h as f64 * self.mlp_ratio) as usize
    }
}

/// The sizes and settings of a drafter.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftConfig {
    /// Width D, the target's own.
    pub hidden: usize,
    /// Draft layers.
    pub layers: Vec<LayerKind>,
    /// Query heads H.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Feed-forward width.
    pub intermediate: usize,
    /// Epsilon of all root-mean-square norms.
    pub rms_eps: f64,
    /// Rotary base; the target's own.
    pub rope_theta: f64,
    /// Tokens of the target's vocabulary.
    pub vocab: usize,
    /// Layers of the target.
    pub target_layers: usize,
    /// Tapped layers of the target: the residual stream after each of them.
    pub taps: Vec<usize>,
    /// The token that stands at a place to be drafted.
    pub mask_token: Token,
    /// Rows of a block: the anchor and the drafted slots; 2 or more.
    pub block_size: usize,
    /// The target's tokens among which is drafted, ascending; `None` is all of them.
    pub draft_vocab: Option<Vec<Token>>,
    /// The head; `None` is DFlash alone.
    pub head: Option<HeadConfig>,
}

/// More layers than this are no drafter's.
const MAX_LAYERS: usize = 4096;

impl DraftConfig {
    /// Slots S of a block.
    pub fn slots(&self) -> usize {
        self.block_size.saturating_sub(1)
    }

    /// Half of what all matrices hold: a network of these sizes cannot have fewer numbers, also if a
    /// tensor or two are missing.
    pub(crate) fn least_parameters(&self) -> u128 {
        let wide = |a: usize, b: usize| a as u128 * b as u128;
        let layer = 3 * wide(self.hidden, self.intermediate)
            + 2 * wide(self.hidden, self.heads * self.head_dim)
            + 2 * wide(self.hidden, self.kv_heads * self.head_dim);
        let head = self.head.as_ref().map_or(0, |head| {
            let h = head.hidden.unwrap_or(self.hidden);
            head.layers as u128 * (4 * wide(h, h) + 2 * wide(h, head.inner(h)))
                + 3 * (wide(self.hidden, h) + wide(h, h) + wide(h, head.factor))
                + wide(h, head.candidates + self.slots())
                + 2 * wide(head.heads, self.slots())
        });
        (self.layers.len() as u128 * layer
            + wide(self.taps.len() * self.hidden, self.hidden)
            + head)
            / 2
    }

    /// Tokens among which is drafted.
    pub fn draft_vocab_len(&self) -> usize {
        self.draft_vocab.as_ref().map_or(self.vocab, Vec::len)
    }

    /// The usual tapped layers: `count` of a target of `layers`, from the second to the third
    /// last, evenly spread; the middle one when there is one only (DFlash, arXiv 2602.06036).
    pub fn usual_taps(layers: usize, count: usize) -> Vec<usize> {
        if count <= 1 {
            return vec![layers / 2];
        }
        let start = 1.min(layers.saturating_sub(1));
        let end = layers.saturating_sub(3).max(start);
        let step = (end - start) as f64 / (count - 1) as f64;
        let mut taps: Vec<usize> = (0..count)
            .map(|i| (start as f64 + i as f64 * step).round_ties_even() as usize)
            .collect();
        taps.dedup();
        taps
    }

    /// Checks that the settings fit each other.
    ///
    /// # Errors
    /// [`DraftModelError::InvalidKey`] naming the key, [`DraftModelError::Tap`],
    /// [`DraftModelError::DraftVocabulary`].
    pub fn check(&self) -> Result<()> {
        let invalid =
            |key: &str, value: usize, wanted| Err(DraftModelError::invalid(key, value, wanted));
        let positive = [
            ("hidden_size", self.hidden),
            ("num_hidden_layers", self.layers.len()),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.intermediate),
            ("vocab_size", self.vocab),
            ("num_target_layers", self.target_layers),
            ("dflash_config.target_layer_ids", self.taps.len()),
        ];
        for (key, value) in positive {
            if value == 0 || value > 1 << 24 {
                return invalid(key, value, "a size between 1 and 2^24 is needed");
            }
        }
        if self.layers.len() > MAX_LAYERS {
            let wanted = "at most 4096 layers are needed";
            return invalid("num_hidden_layers", self.layers.len(), wanted);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let wanted = "it must divide num_attention_heads";
            return invalid("num_key_value_heads", self.kv_heads, wanted);
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid("head_dim", self.head_dim, "an even number is needed");
        }
        if !(2..=4096).contains(&self.block_size) {
            return invalid("block_size", self.block_size, "2 to 4096 rows are needed");
        }
        for (key, value) in [
            ("rms_norm_eps", self.rms_eps),
            ("rope_theta", self.rope_theta),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(DraftModelError::invalid(
                    key,
                    value,
                    "a positive number is needed",
                ));
            }
        }
        if self.layers.contains(&LayerKind::Sliding(0)) {
            return invalid("sliding_window", 0, "a window has at least one token");
        }
        let layers = self.target_layers;
        if let Some(&tap) = self.taps.iter().find(|tap| **tap >= layers) {
            return Err(DraftModelError::Tap { tap, layers });
        }
        if let Some(kept) = &self.draft_vocab {
            let ascending = kept.windows(2).all(|pair| pair[0] < pair[1]);
            let inside = kept
                .last()
                .is_some_and(|&last| (last as usize) < self.vocab);
            if !ascending || !inside {
                let what = format!(
                    "its {} tokens are not ascending below {}",
                    kept.len(),
                    self.vocab
                );
                return Err(DraftModelError::DraftVocabulary(what));
            }
        }
        self.head
            .as_ref()
            .map_or(Ok(()), |head| self.check_head(head))
    }

    fn check_head(&self, head: &HeadConfig) -> Result<()> {
        let name = |key: &str| format!("dflash_config.lilicorr_{key}");
        let h = head.hidden.unwrap_or(self.hidden);
        for (key, value) in [
            ("hidden_size", h),
            ("factor_dim", head.factor),
            ("num_layers", head.layers),
            ("num_heads", head.heads),
            ("mlp_ratio", head.inner(h)),
        ] {
            if value == 0 || value > 1 << 20 {
                let wanted = "a size between 1 and 2^20 is needed";
                return Err(DraftModelError::invalid(name(key), value, wanted));
            }
        }
        if head.layers > MAX_LAYERS {
            let wanted = "at most 4096 layers are needed";
            return Err(DraftModelError::invalid(
                name("num_layers"),
                head.layers,
                wanted,
            ));
        }
        if head.candidates == 0 || head.candidates > self.draft_vocab_len() {
            return Err(DraftModelError::invalid(
                name("candidate_topk"),
                head.candidates,
                "1 to the number of tokens among which is drafted",
            ));
        }
        if !h.is_multiple_of(head.heads) {
            let wanted = "it must divide the head's width";
            return Err(DraftModelError::invalid(
                name("num_heads"),
                head.heads,
                wanted,
            ));
        }
        if head.hidden == Some(self.hidden) {
            let wanted = "0 stands for the drafter's own width";
            return Err(DraftModelError::invalid(name("hidden_size"), h, wanted));
        }
        for (key, value) in [
            ("logit_scale", head.logit_scale),
            ("vector_eps", head.vector_eps),
        ] {
            if !(value.is_finite() && value > 0.0) {
                let wanted = "a positive number is needed";
                return Err(DraftModelError::invalid(name(key), value, wanted));
            }
        }
        Ok(())
    }
}
