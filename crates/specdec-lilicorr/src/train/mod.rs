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
//!
//! ```
//! use burn::prelude::Device;
//! use specdec_core::TargetModel;
//! use specdec_lilicorr::train::{
//!     CollectOptions, FeatureStore, TrainOptions, Trainer, collect, evaluate,
//! };
//! use specdec_lilicorr::{DraftConfig, HeadConfig, LayerKind, LiLiCorrDrafter};
//! use specdec_models::{LoadOptions, open};
//! use specdec_ragged::SlotCache;
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-pair/target");
//! let loaded = open(target, &LoadOptions::new(), &Device::flex())?;
//! let target: Arc<dyn TargetModel> = Arc::new(loaded.model);
//! let spec = target.spec();
//! let config = DraftConfig {
//!     hidden: spec.hidden,
//!     layers: vec![LayerKind::Full],
//!     heads: 4,
//!     kv_heads: 2,
//!     head_dim: 16,
//!     intermediate: 96,
//!     rms_eps: loaded.config.rms_eps,
//!     rope_theta: loaded.config.rope_theta,
//!     vocab: spec.vocab,
//!     target_layers: spec.layers,
//!     taps: vec![1, 2],
//!     mask_token: 767,
//!     block_size: 5,
//!     draft_vocab: None,
//!     head: Some(HeadConfig { heads: 4, layers: 1, ..HeadConfig::new(32, 32) }),
//! };
//! let mut store = FeatureStore::open(folder.join("texts"), spec, &config.taps)?;
//! let prompts = (0..8).map(|i| vec![1, 40 + i, 77]);
//! let cache = |spec: &_| SlotCache::new(spec).expect("a plain model");
//! let options = CollectOptions::new(24);
//! let mut told = |_: usize| ControlFlow::Continue(());
//! collect(&target, cache, prompts, &options, &mut store, &mut told)?;
//!
//! // A few steps for the example; some hundred are needed.
//! let options = TrainOptions::new(3, config.block_size);
//! let mut trainer = Trainer::new(&config, &*target, &store, folder.join("run"), options)?;
//! trainer.run(&mut |m| {
//!     println!("{}: loss {}, {} tokens right", m.step, m.loss, m.selected_prefix);
//!     ControlFlow::Continue(())
//! })?;
//! let model = trainer.model();
//! model.save(folder.join("drafter"))?;
//! println!("{:?}", evaluate(&model, &*target, &store, 8, 1)?.metrics);
//! let drafter = LiLiCorrDrafter::new(model, &*target)?;
//! # let _ = drafter;
//! # Ok(())
//! # }
//! ```

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
pub use store::{FeatureStore, FrequentTokens, StoredText};
pub use trainer::{Evaluation, Trainer, evaluate};
