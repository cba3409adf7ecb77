use super::Decoder;
use crate::accept::Acceptance;
use crate::{
    BuildError, Controller, Coupled, Drafter, FirstCome, FixedLength, KvCache, PrefixCache, Result,
    Scheduler, Stats, TargetModel, Token,
};
use burn::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Builds a [`Decoder`]; every part has a default but the cache.
///
/// | part | default |
/// |---|---|
/// | drafter | none: plain decoding |
/// | prefixes | none: every prompt is prefilled from its first token |
/// | controller | [`FixedLength`] 4 |
/// | scheduler | [`FirstCome`], 16 rows |
/// | acceptance | [`Coupled`] (greedy at temperature 0) |
/// | prefill chunk | 256 tokens a step |
/// | sequences | any number, waiting ones included |
/// | suppressed tokens | none |
/// | tie margin | none: ties are not counted |
pub struct DecoderBuilder {
    target: Arc<dyn TargetModel>,
    cache: Option<Box<dyn KvCache>>,
    drafter: Option<Box<dyn Drafter>>,
    prefixes: Option<Box<dyn PrefixCache>>,
    controller: Box<dyn Controller>,
    scheduler: Box<dyn Scheduler>,
    acceptance: Arc<dyn Acceptance>,
    prefill_chunk: usize,
    max_sequences: Option<usize>,
    tie_margin: Option<f32>,
    suppressed: Vec<Token>,
}

impl std::fmt::Debug for DecoderBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecoderBuilder")
            .field("drafter", &self.drafter.as_ref().map(|d| d.name()))
            .field("acceptance", &self.acceptance.name())
            .finish_non_exhaustive()
    }
}

impl DecoderBuilder {
    pub(super) fn new(target: Arc<dyn TargetModel>) -> Self {
        Self {
            target,
            cache: None,
            drafter: None,
            prefixes: None,
            controller: Box::new(FixedLength(4)),
            scheduler: Box::new(FirstCome::default()),
            acceptance: Arc::new(Coupled),
            prefill_chunk: 256,
            max_sequences: None,
            tie_margin: None,
            suppressed: Vec::new(),
        }
    }

    /// Where keys and values are kept.
    pub fn cache(mut self, cache: impl KvCache + 'static) -> Self {
        self.cache = Some(Box::new(cache));
        self
    }

    /// The same for choices made at run time.
    pub fn cache_boxed(mut self, cache: Box<dyn KvCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Who drafts.
    pub fn drafter(mut self, drafter: impl Drafter + 'static) -> Self {
        self.drafter = Some(Box::new(drafter));
        self
    }

    /// Who drafts, if anybody; for choices made at run time.
    pub fn drafter_boxed(mut self, drafter: Option<Box<dyn Drafter>>) -> Self {
        self.drafter = drafter;
        self
    }

    /// Keys and values of earlier sequences, for those with the same beginning.
    pub fn prefixes(mut self, prefixes: impl PrefixCache + 'static) -> Self {
        self.prefixes = Some(Box::new(prefixes));
        self
    }

    /// The same, if any; for choices made at run time.
    pub fn prefixes_boxed(mut self, prefixes: Option<Box<dyn PrefixCache>>) -> Self {
        self.prefixes = prefixes;
        self
    }

    /// Who plans draft lengths.
    pub fn controller(mut self, controller: impl Controller + 'static) -> Self {
        self.controller = Box::new(controller);
        self
    }

    /// The same for choices made at run time.
    pub fn controller_boxed(mut self, controller: Box<dyn Controller>) -> Self {
        self.controller = controller;
        self
    }

    /// Who chooses the rows of a step.
    pub fn scheduler(mut self, scheduler: impl Scheduler + 'static) -> Self {
        self.scheduler = Box::new(scheduler);
        self
    }

    /// How tokens are chosen and drafts judged.
    pub fn acceptance(mut self, acceptance: impl Acceptance + 'static) -> Self {
        self.acceptance = Arc::new(acceptance);
        self
    }

    /// The same for choices made at run time.
    pub fn acceptance_shared(mut self, acceptance: Arc<dyn Acceptance>) -> Self {
        self.acceptance = acceptance;
        self
    }

    /// Most prompt tokens to prefill in a step, over all rows; 1 or more. The result does not
    /// depend on it.
    pub fn prefill_chunk(mut self, tokens: usize) -> Self {
        self.prefill_chunk = tokens;
        self
    }

    /// Most sequences at a time, waiting ones included; more requests are refused with
    /// [`crate::RequestError::Busy`].
    pub fn max_sequences(mut self, sequences: usize) -> Self {
        self.max_sequences = Some(sequences);
        self
    }

    /// Tokens that are never emitted nor drafted, such as ids without text.
    pub fn suppress(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.suppressed = tokens.into_iter().collect();
        self
    }

    /// Counts tokens whose two best logits are closer than this, in [`Stats::ties`]: where the
    /// backend rounds differently by shape, only these may differ from plain decoding.
    pub fn tie_margin(mut self, margin: f32) -> Self {
        self.tie_margin = Some(margin);
        self
    }

    /// Puts the parts together.
    ///
    /// # Errors
    /// [`BuildError`]: no cache, a cache that cannot rewind with a drafter, a drafter that does not
    /// fit the target, a setting out of range.
    pub fn build(self) -> Result<Decoder> {
        let spec = self.target.spec();
        let cache = self.cache.ok_or(BuildError::NoCache)?;
        if self.prefill_chunk == 0 {
            return Err(BuildError::Setting {
                setting: "prefill_chunk",
                value: "0".into(),
                allowed: "1 or more",
            }
            .into());
        }
        let mut taps = Vec::new();
        if let Some(drafter) = &self.drafter {
            if !cache.can_rewind() {
                return Err(BuildError::CannotRewind.into());
            }
            if let Some(&tap) = drafter.taps().iter().find(|t| **t >= spec.layers) {
                return Err(BuildError::Tap {
                    tap,
                    layers: spec.layers,
                }
                .into());
            }
            drafter.check(spec)?;
            taps = drafter.taps().to_vec();
        }
        if let Some(prefixes) = &self.prefixes {
            if !cache.can_rewind() {
                let what = "the cache cannot be cut to a prefix";
                return Err(BuildError::Prefixes(what.into()).into());
            }
            prefixes.check(spec)?;
        }
        let mut suppressed: Vec<Token> = self
            .suppressed
            .into_iter()
            .filter(|t| (*t as usize) < spec.vocab)
            .collect();
        suppressed.sort_unstable();
        suppressed.dedup();
        let suppress_mask = (!suppressed.is_empty()).then(|| {
            let mut mask = vec![0.0f32; spec.vocab];
            for &token in &suppressed {
                mask[token as usize] = f32::NEG_INFINITY;
            }
            Tensor::from_data(TensorData::new(mask, [1, spec.vocab]), &spec.device)
        });
        Ok(Decoder {
            cache,
            drafter: self.drafter,
            prefixes: self.prefixes,
            controller: self.controller,
            scheduler: self.scheduler,
            acceptance: self.acceptance,
            prefill_chunk: self.prefill_chunk,
            max_sequences: self.max_sequences,
            tie_margin: self.tie_margin,
            suppressed: suppressed.into(),
            suppress_mask,
            taps,
            pool: BTreeMap::new(),
            events: VecDeque::new(),
            next_id: 0,
            steps: 0,
            total: Stats::default(),
            target: self.target,
        })
    }
}
