use super::Generator;
use super::length::{DraftLength, Parts, Planned};
use crate::{Model, Result};
use specdec_core::{
    Acceptance, BuildError, Coupled, Decoder, Drafter, KvCache, PrefixCache, TargetModel,
};
use specdec_draft::{ModelDrafter, NgramDrafter};
use specdec_lilicorr::{DFlashDrafter, DraftModel, LiLiCorrDrafter};
use specdec_ragged::{BatchCache, SlotOptions, Strategy};
use specdec_vegas::{Vegas, VegasConfig, VegasDrafter, VegasMeter};
use std::collections::HashMap;
use std::sync::Arc;

/// Who drafts.
#[non_exhaustive]
pub enum Drafting {
    /// Nobody: plain decoding.
    Off,
    /// Prompt look-up.
    Ngram(NgramDrafter),
    /// A smaller model; its vocabulary is checked against the target's token by token.
    Model(Model),
    /// The target itself, attending only to what verification showed to matter; see [`Vegas`]. For
    /// long contexts.
    Vegas(VegasConfig),
    /// A block drafter trained for this target, each token of a block chosen by itself; a head in
    /// the checkpoint is left out.
    DFlash(DraftModel),
    /// A block drafter trained for this target, with the head that makes a block's tokens fit together.
    LiLiCorr(DraftModel),
    /// Anything else.
    Custom(Box<dyn Drafter>),
}

impl Drafting {
    /// Prompt look-up with its default settings.
    pub fn ngram() -> Self {
        Self::Ngram(NgramDrafter::default())
    }

    /// What its costs go by; `None` where that is not known.
    fn kind(&self) -> Option<String> {
        match self {
            Self::Ngram(_) => Some("n-gram".into()),
            Self::Model(model) => {
                let spec = model.target().spec();
                Some(format!("model {:x} on {:?}", spec.fingerprint, spec.device))
            }
            Self::Vegas(config) => Some(format!("{config:?}")),
            // Two checkpoints of one configuration may be held in other types.
            Self::DFlash(_) | Self::LiLiCorr(_) | Self::Off | Self::Custom(_) => None,
        }
    }
}

impl std::fmt::Debug for Drafting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::Ngram(_) => "Ngram",
            Self::Model(_) => "Model",
            Self::Vegas(_) => "Vegas",
            Self::DFlash(_) => "DFlash",
            Self::LiLiCorr(_) => "LiLiCorr",
            Self::Custom(drafter) => drafter.name(),
        })
    }
}

/// Builds a [`Generator`].
///
/// | part | default |
/// |---|---|
/// | drafting | [`Drafting::ngram`] |
/// | draft length | [`DraftLength::adaptive`] |
/// | acceptance | [`Coupled`] (greedy at temperature 0) |
/// | rows | 16 at a time; more prompts wait |
/// | strategy | [`Strategy::Slots`] |
/// | prefill chunk | 256 prompt tokens a step |
/// | prompts | any number |
/// | memory | grows as needed |
/// | prefixes | none are stored |
#[derive(Debug)]
pub struct GeneratorBuilder {
    model: Model,
    drafting: Drafting,
    length: Option<DraftLength>,
    acceptance: Arc<dyn Acceptance>,
    strategy: Strategy,
    max_rows: usize,
    prefill_chunk: usize,
    max_sequences: Option<usize>,
    memory: SlotOptions,
    prefixes: Option<Box<dyn PrefixCache>>,
}

impl GeneratorBuilder {
    pub(super) fn new(model: Model) -> Self {
        Self {
            model,
            drafting: Drafting::ngram(),
            length: None,
            acceptance: Arc::new(Coupled),
            strategy: Strategy::Slots,
            max_rows: 16,
            prefill_chunk: 256,
            max_sequences: None,
            memory: SlotOptions::default(),
            prefixes: None,
        }
    }

    /// Who drafts.
    pub fn drafting(mut self, drafting: Drafting) -> Self {
        self.drafting = drafting;
        self
    }

    /// Nobody drafts.
    pub fn plain(self) -> Self {
        self.drafting(Drafting::Off)
    }

    /// How long drafts are. By default they adapt, as with [`DraftLength::adaptive`]; where costs cannot
    /// be measured (a context of a few tokens, a draft model with hardly any memory) they have 4 tokens.
    pub fn draft_length(mut self, length: DraftLength) -> Self {
        self.length = Some(length);
        self
    }

    /// How tokens are chosen and drafts judged.
    pub fn acceptance(mut self, acceptance: Arc<dyn Acceptance>) -> Self {
        self.acceptance = acceptance;
        self
    }

    /// Most sequences in a pass.
    pub fn max_rows(mut self, rows: usize) -> Self {
        self.max_rows = rows;
        self
    }

    /// How a batch shares memory and steps; the output is the same with all of them.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Most prompt tokens to prefill in a step.
    pub fn prefill_chunk(mut self, tokens: usize) -> Self {
        self.prefill_chunk = tokens;
        self
    }

    /// Most prompts at a time, waiting ones included; more are refused with
    /// [`specdec_core::RequestError::Busy`].
    pub fn max_sequences(mut self, sequences: usize) -> Self {
        self.max_sequences = Some(sequences);
        self
    }

    /// How the cache uses memory. A limit makes prompts wait for it, and older ones take it from
    /// younger ones; the output is the same.
    pub fn memory(mut self, memory: SlotOptions) -> Self {
        self.memory = memory;
        self
    }

    /// Keys and values of earlier prompts, for later ones with the same beginning; see
    /// [`specdec_rakv::StoredPrefixes`].
    pub fn prefixes(mut self, prefixes: impl PrefixCache + 'static) -> Self {
        self.prefixes = Some(Box::new(prefixes));
        self
    }

    /// Puts the parts together. With [`DraftLength::adaptive`], the default, the first generator of a
    /// model and kind of drafter measures what passes cost: some 70 passes of 1 to 9 tokens over a few
    /// tokens of context, a second or two for a small model. Later ones know, but for custom and block
    /// drafters, which are measured each time; a custom drafter is called with sequence ids from
    /// `u64::MAX` downwards then.
    ///
    /// # Errors
    /// [`crate::Error`]: a draft model whose vocabulary differs from the target's (naming the first
    /// difference), a block drafter made for another target, a setting out of range.
    pub fn build(self) -> Result<Generator> {
        let target: Arc<dyn TargetModel> = self.model.target().clone();
        let mut vegas = None;
        let mut blocks = None;
        let kind = self.drafting.kind();
        let drafter: Option<Box<dyn Drafter>> = match self.drafting {
            Drafting::Off => None,
            Drafting::Ngram(drafter) => Some(Box::new(drafter)),
            Drafting::Custom(drafter) => Some(drafter),
            Drafting::Vegas(config) => {
                vegas = Some(config.check()?);
                Some(Box::new(VegasDrafter::new()))
            }
            Drafting::DFlash(model) => {
                let drafter = DFlashDrafter::new(model.without_head(), &*target)?;
                blocks = Some(drafter.statistics());
                Some(Box::new(drafter))
            }
            Drafting::LiLiCorr(model) => {
                let drafter = LiLiCorrDrafter::new(model, &*target)?;
                blocks = Some(drafter.statistics());
                Some(Box::new(drafter))
            }
            Drafting::Model(draft) => {
                if let Some(difference) = self.model.tokenizer().first_difference(draft.tokenizer())
                {
                    return Err(BuildError::Vocabulary(difference.to_string()).into());
                }
                let cache = self.strategy.cache(draft.target().spec(), &self.memory)?;
                Some(Box::new(ModelDrafter::new(draft.target().clone(), cache)))
            }
        };
        let parts = self
            .strategy
            .parts(target.spec(), self.max_rows, &self.memory)?;
        let finished = |cache: BatchCache| -> (Box<dyn KvCache>, Option<VegasMeter>) {
            match vegas.clone() {
                Some(config) => {
                    let cache = Vegas::new(cache, target.spec(), config);
                    let meter = cache.meter();
                    (Box::new(cache), Some(meter))
                }
                None => (Box::new(cache), None),
            }
        };
        let (cache, vegas_meter) = finished(parts.cache);
        let unlimited = || -> Result<Box<dyn KvCache>> {
            let cache = self
                .strategy
                .cache(target.spec(), &SlotOptions::default())?;
            Ok(finished(cache).0)
        };
        let fallback = self.length.is_none();
        let length = self.length.unwrap_or_else(DraftLength::adaptive);
        let Planned {
            controller,
            drafter,
            adaptive,
        } = length.planned(
            &self.model,
            Parts {
                cache: &unlimited,
                drafter,
                rows: self.max_rows,
                from_cache: vegas.is_some(),
                kind: kind.map(|kind| format!("{kind}, {:?}", self.strategy)),
                fallback,
            },
        )?;
        let mut builder = Decoder::builder(target)
            .cache_boxed(cache)
            .drafter_boxed(drafter)
            .controller_boxed(controller)
            .prefixes_boxed(self.prefixes)
            .scheduler(parts.scheduler)
            .acceptance_shared(self.acceptance)
            .prefill_chunk(self.prefill_chunk)
            .suppress(self.model.tokenizer().ids_without_text());
        if let Some(sequences) = self.max_sequences {
            builder = builder.max_sequences(sequences);
        }
        if let Some(margin) = self.model.tie_margin() {
            builder = builder.tie_margin(margin);
        }
        Ok(Generator {
            decoder: builder.build()?,
            model: self.model,
            running: HashMap::new(),
            meters: parts.meters,
            vegas: vegas_meter,
            blocks,
            adaptive,
        })
    }
}
