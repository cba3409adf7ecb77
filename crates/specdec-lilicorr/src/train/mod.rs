//! Training of drafter and head, together and from scratch, on text that the target wrote itself.
//!
//! 1. [`collect`] lets the target answer prompts and stores tokens, taps and final hidden states in a
//!    [`FeatureStore`]; it goes on where an earlier run stopped.
//! 2. A [`Trainer`] takes steps of AdamW over blocks at random anchors; it saves its whole state every
//!    half minute and goes on from there, to the same weights as without the interruption.
//! 3. [`Trainer::model`] is the network for [`crate::LiLiCorrDrafter`] or [`crate::DraftModel::save`];
//!    [`evaluate`] tells how far its drafts reach on text it was not trained on.
//!
//! Objective: cross-entropy of each drafted place, weighted down along the block (DFlash, arXiv
//! 2602.06036), plus terms of the head on the places whose whole prefix is among the candidates
//! (LiLiCorr, arXiv 2608.20530). Gradients of the head's terms reach the drafter.

mod adamw;
mod batch;
mod collect;
mod error;
mod forward;
mod loss;
mod metrics;
mod options;
mod state;
mod store;
mod trainer;

pub use collect::{CollectOptions, collect};
pub use error::{Result, TrainError};
pub use loss::{HeadRows, HeadTerms, head_terms};
pub use metrics::StepMetrics;
pub use options::{LossWeights, TrainOptions};
pub use store::{FeatureStore, StoredText};
pub use trainer::{Evaluation, Trainer, evaluate};
