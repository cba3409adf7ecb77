#![doc = include_str!("../README.md")]

mod attention;
mod calibration;
mod candidates;
mod checkpoint;
mod choice;
mod config;
mod context;
mod draft_model;
mod drafters;
mod engine;
mod error;
mod fit;
mod frozen;
mod head;
mod json;
mod lattice;
mod layers;
mod named;
mod positions;
mod statistics;
#[cfg(feature = "train")]
pub mod train;

pub use calibration::{Calibration, EarlyStop};
pub use candidates::{Candidates, top_candidates};
pub use checkpoint::Weights;
pub use choice::PathRule;
pub use config::{DraftConfig, HeadConfig, LayerKind};
pub use draft_model::DraftModel;
pub use drafters::{DFlashDrafter, LiLiCorrDrafter};
pub use error::{DraftModelError, Result};
pub use head::{HeadInput, HeadScores, LiLiCorrHead};
pub use lattice::Lattice;
pub use statistics::{PrefixCounts, PrefixStatistics};
