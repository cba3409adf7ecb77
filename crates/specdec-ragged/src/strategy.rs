use crate::{
    AlignMeter, AlignStats, AlignedCache, Alignment, BatchMeter, BatchStats, GroupByLength,
    Metered, SlotCache, SlotOptions, StaticBatch,
};
use specdec_core::{
    Attend, BuildError, FirstCome, KvCache, KvSegment, ModelSpec, Phase, Result, RowSpan, SeqId,
};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How a batch of sequences shares memory and steps. All give the same output.
///
/// Its text form is for command lines: `slots`, `eqspec`, `eqspec-refill`, `exspec` (a window of 32)
/// or `exspec:48`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Each sequence has a slot in which column and position are the same; a free place goes to the
    /// next sequence at once. Nothing is ever moved.
    #[default]
    Slots,
    /// EQSPEC: a left-padded rectangle, aligned anew after each round; a batch runs until all its
    /// rows have ended.
    EqSpec,
    /// EQSPEC with free places filled at once.
    EqSpecRefill,
    /// EXSPEC: a window of sequences of which those of equal length run together; the others are
    /// aligned when they run.
    ExSpec {
        /// Sequences in the window.
        window: usize,
    },
}

/// The window of `exspec` without a number.
const WINDOW: usize = 32;

impl Strategy {
    /// One of each kind, EXSPEC with its usual window of 32.
    pub const ALL: [Self; 4] = [
        Self::Slots,
        Self::EqSpec,
        Self::EqSpecRefill,
        Self::ExSpec { window: WINDOW },
    ];

    /// The cache of this strategy for a model: for the target, or for a draft model.
    ///
    /// # Errors
    /// As [`SlotCache::with_options`].
    pub fn cache(self, spec: &ModelSpec, memory: &SlotOptions) -> Result<BatchCache> {
        let aligned = |alignment| AlignedCache::with_options(spec, alignment, memory);
        Ok(match self {
            Self::Slots => BatchCache::Slots(SlotCache::with_options(spec, memory)?),
            Self::EqSpec | Self::EqSpecRefill => BatchCache::Aligned(aligned(Alignment::All)?),
            Self::ExSpec { .. } => BatchCache::Aligned(aligned(Alignment::Pass)?),
        })
    }

    /// The scheduler of this strategy, for at most `rows` rows in a step.
    pub fn scheduler(self, rows: usize) -> Metered {
        match self {
            Self::Slots => Metered::new(FirstCome { max_rows: rows }),
            Self::EqSpec => Metered::new(StaticBatch::new(rows)),
            Self::EqSpecRefill => Metered::new(StaticBatch::new(rows).with_refill()),
            Self::ExSpec { window } => Metered::new(GroupByLength::new(window, rows)),
        }
    }

    /// Cache and scheduler for a target, with a handle to what they count.
    ///
    /// # Errors
    /// As [`SlotCache::with_options`].
    pub fn parts(
        self,
        target: &ModelSpec,
        rows: usize,
        memory: &SlotOptions,
    ) -> Result<BatchParts> {
        let cache = self.cache(target, memory)?;
        let scheduler = self.scheduler(rows);
        let meters = BatchMeters {
            batch: scheduler.meter(),
            align: cache.meter(),
        };
        Ok(BatchParts {
            cache,
            scheduler,
            meters,
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots => f.write_str("slots"),
            Self::EqSpec => f.write_str("eqspec"),
            Self::EqSpecRefill => f.write_str("eqspec-refill"),
            Self::ExSpec { window } => write!(f, "exspec:{window}"),
        }
    }
}

impl FromStr for Strategy {
    type Err = BuildError;

    fn from_str(text: &str) -> Result<Self, BuildError> {
        let window = text.strip_prefix("exspec:").map(str::parse::<usize>);
        Ok(match (text, window) {
            ("slots", _) => Self::Slots,
            ("eqspec", _) => Self::EqSpec,
            ("eqspec-refill", _) => Self::EqSpecRefill,
            ("exspec", _) => Self::ExSpec { window: WINDOW },
            (_, Some(Ok(window))) if window > 0 => Self::ExSpec { window },
            _ => {
                return Err(BuildError::Setting {
                    setting: "strategy",
                    value: text.into(),
                    allowed: "slots, eqspec, eqspec-refill, exspec or exspec:WINDOW",
                });
            }
        })
    }
}

/// What a strategy gives a decoder.
#[derive(Debug)]
#[non_exhaustive]
pub struct BatchParts {
    /// For [`DecoderBuilder::cache`](specdec_core::DecoderBuilder::cache).
    pub cache: BatchCache,
    /// For [`DecoderBuilder::scheduler`](specdec_core::DecoderBuilder::scheduler).
    pub scheduler: Metered,
    /// What both count, to be kept.
    pub meters: BatchMeters,
}

/// Handles to what the parts of a strategy count. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct BatchMeters {
    batch: BatchMeter,
    align: Option<AlignMeter>,
}

impl BatchMeters {
    /// What the scheduler chose so far.
    pub fn batch(&self) -> BatchStats {
        self.batch.read()
    }

    /// What aligning the target's cache has cost so far; all zero for a cache that never aligns.
    pub fn align(&self) -> AlignStats {
        self.align
            .as_ref()
            .map(AlignMeter::read)
            .unwrap_or_default()
    }
}

/// The cache of a [`Strategy`].
#[derive(Debug)]
pub enum BatchCache {
    /// Nothing is ever aligned.
    Slots(SlotCache),
    /// A left-padded rectangle.
    Aligned(AlignedCache),
}

impl BatchCache {
    /// A handle to what aligning costs, if anything is aligned.
    pub fn meter(&self) -> Option<AlignMeter> {
        match self {
            Self::Slots(_) => None,
            Self::Aligned(cache) => Some(cache.meter()),
        }
    }

    fn inner(&self) -> &dyn KvCache {
        match self {
            Self::Slots(cache) => cache,
            Self::Aligned(cache) => cache,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn KvCache {
        match self {
            Self::Slots(cache) => cache,
            Self::Aligned(cache) => cache,
        }
    }
}

impl KvCache for BatchCache {
    fn len(&self, seq: SeqId) -> usize {
        self.inner().len(seq)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        self.inner_mut().begin(rows, phase)
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.inner_mut().commit(keep)
    }

    fn rollback(&mut self) {
        self.inner_mut().rollback();
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner_mut().evict(seq);
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        self.inner().export(seq, range)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        self.inner_mut().import(seq, segment)
    }

    fn fits(&self, rows: &[RowSpan]) -> bool {
        self.inner().fits(rows)
    }

    fn capacity(&self) -> Option<usize> {
        self.inner().capacity()
    }

    fn can_rewind(&self) -> bool {
        self.inner().can_rewind()
    }

    fn memory_bytes(&self) -> usize {
        self.inner().memory_bytes()
    }
}
