//! The two drafters.

use crate::calibration::EarlyStop;
use crate::choice::PathRule;
use crate::draft_model::DraftModel;
use crate::engine::Engine;
use crate::error::{DraftModelError, Result};
use crate::fit::check;
use crate::lattice::Lattice;
use crate::statistics::PrefixStatistics;
use specdec_core::{
    BuildError, Draft, DraftContext, DraftRow, Drafter, ModelSpec, Observation, SeqId, TargetModel,
};

/// Candidates of each slot when there is no head to say how many.
const CANDIDATES: usize = 8;

macro_rules! block_drafter {
    ($drafter:ident, $name:literal) => {
        impl $drafter {
            /// Sets the rows of a block, the anchor among them: at most as many as the network was
            /// trained with, at least 2. [`block_size`](Self::block_size) tells what came of it.
            #[must_use]
            pub fn with_block_size(mut self, rows: usize) -> Self {
                self.0.set_block_size(rows);
                self
            }

            /// Rows of a block.
            pub fn block_size(&self) -> usize {
                self.0.block_size()
            }

            /// Ends drafts that are unlikely to be accepted whole. Without it drafts are as long
            /// as asked.
            ///
            /// # Errors
            /// [`BuildError::Setting`] for a calibration or chance out of range.
            pub fn with_early_stop(mut self, stop: EarlyStop) -> Result<Self, BuildError> {
                stop.calibration.check()?;
                if !(0.0..=1.0).contains(&stop.least) {
                    return Err(BuildError::Setting {
                        setting: "least",
                        value: stop.least.to_string(),
                        allowed: "0 to 1",
                    });
                }
                self.0.choice.early_stop = Some(stop);
                Ok(self)
            }

            /// Sets how a path through the candidates is chosen.
            ///
            /// # Errors
            /// [`BuildError::Setting`] for a calibration out of range.
            pub fn with_path(mut self, path: PathRule) -> Result<Self, BuildError> {
                if let PathRule::ExpectedLength(calibration) = &path {
                    calibration.check()?;
                }
                self.0.choice.path = path;
                Ok(self)
            }

            /// Counts of how far drafts were right and could have been. They go on counting when
            /// the drafter is inside a decoder.
            pub fn statistics(&self) -> PrefixStatistics {
                self.0.statistics.clone()
            }

            /// The positions of a sequence whose features are known, ascending.
            pub fn positions(&self, seq: SeqId) -> &[usize] {
                self.0.positions(seq)
            }

            /// The candidates after a row's anchor, whatever its `k`: what a draft is chosen from.
            ///
            /// # Errors
            /// [`DraftModelError::Unreadable`].
            pub fn lattice(&self, row: &DraftRow<'_>, target: &dyn TargetModel) -> Result<Lattice> {
                let lattices = self.0.lattices(&[row], target)?;
                Ok(lattices.into_iter().next().unwrap_or_default())
            }
        }

        impl Drafter for $drafter {
            fn name(&self) -> &'static str {
                $name
            }

            fn draft(&mut self, cx: DraftContext<'_>) -> specdec_core::Result<Draft> {
                self.0.draft(&cx)
            }

            fn observe(&mut self, observation: &Observation<'_>) -> specdec_core::Result<()> {
                self.0.observe(observation)
            }

            fn evict(&mut self, seq: SeqId) {
                self.0.evict(seq);
            }

            fn taps(&self) -> &[usize] {
                &self.0.model().config().taps
            }

            fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
                check(self.0.model(), target).map_err(|error| match error {
                    DraftModelError::Target {
                        what,
                        draft,
                        target,
                    } if what != "vocabulary" => BuildError::Shape {
                        what,
                        draft,
                        target,
                    },
                    error => BuildError::Vocabulary(error.to_string()),
                })
            }
        }
    };
}

/// Drafts a block in one pass of a small network that reads the target's hidden states (DFlash,
/// arXiv 2602.06036). Each place of the block is drafted by itself.
#[derive(Debug)]
pub struct DFlashDrafter(Engine);

impl DFlashDrafter {
    /// Drafts for `target` with a network, whose head, if it has one, is left out. Eight candidates
    /// are kept of each slot.
    ///
    /// # Errors
    /// [`DraftModelError::Target`] and others when it was made for another target.
    pub fn new(model: DraftModel, target: &dyn TargetModel) -> Result<Self> {
        Self::with_candidates(model, target, CANDIDATES)
    }

    /// The same with another number of candidates, 1 at least: with one, all drafts are the
    /// network's best tokens.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_candidates(
        model: DraftModel,
        target: &dyn TargetModel,
        candidates: usize,
    ) -> Result<Self> {
        Engine::new(model.without_head(), target, candidates).map(Self)
    }
}

block_drafter!(DFlashDrafter, "dflash");

/// [`DFlashDrafter`] whose candidates are put together by the LiLiCorr head (arXiv 2608.20530): a
/// walk from the anchor chooses at each place the candidate that follows best what was chosen
/// before. Under rejection sampling the walk draws, and its rows are the stated q.
#[derive(Debug)]
pub struct LiLiCorrDrafter(Engine);

impl LiLiCorrDrafter {
    /// Drafts for `target` with a network and its head.
    ///
    /// # Errors
    /// [`DraftModelError::NoHead`]; [`DraftModelError::Target`] and others when it was made for
    /// another target.
    pub fn new(model: DraftModel, target: &dyn TargetModel) -> Result<Self> {
        let head = model.head().ok_or(DraftModelError::NoHead)?;
        let candidates = head.config().candidates;
        if candidates > target.spec().vocab {
            return Err(DraftModelError::Target {
                what: "vocabulary",
                draft: format!("at least {candidates}"),
                target: target.spec().vocab.to_string(),
            });
        }
        Engine::new(model, target, candidates).map(Self)
    }
}

block_drafter!(LiLiCorrDrafter, "lilicorr");
