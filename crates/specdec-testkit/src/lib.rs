#![doc = include_str!("../README.md")]

mod hard_attention;
mod hash_lm;
mod seeded;
mod vec_cache;

/// Suites that tell an implementer of a trait what is wrong, by name.
pub mod conformance;
pub mod hostile;
/// What a run is compared with.
pub mod oracle;
/// Targets, drafters, controllers and schedulers whose behaviour the test decides.
pub mod scripted;
/// Random worlds for property tests.
pub mod strategies;
/// Seeded weights of tiny transformers, as files have them.
pub mod weights;

pub use hash_lm::HashLm;
pub use vec_cache::VecCache;
