//! The cache suite: random transitions against [`VecCache`], then the refusals one by one.

mod pair;
mod refusals;
mod walk;

use super::report::{Report, Violation};
use burn::prelude::Device;
use specdec_core::{KvCache, ModelSpec};

/// What a cache promises beyond the trait, and how long to look.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CachePromises {
    /// Passes in the draft phase attend to everything too. Set it to false for a cache that drafts
    /// by attending to less.
    pub exact_drafts: bool,
    /// A token's attention has the same bits whatever is computed beside it.
    pub bitwise: bool,
    /// A sliding window of the model is honoured. Set it to false for a cache that refuses models
    /// that have one.
    pub windows: bool,
    /// Largest difference of attention from the reference, for values between -1 and 1.
    pub tolerance: f32,
    /// Random walks for each model shape.
    pub walks: u64,
    /// Transitions in a walk.
    pub transitions: usize,
}

impl Default for CachePromises {
    /// Exact drafts, windows, a tolerance of 1e-4, no promise of bits; 6 walks of 60 transitions.
    fn default() -> Self {
        Self {
            exact_drafts: true,
            bitwise: false,
            windows: true,
            tolerance: 1e-4,
            walks: 6,
            transitions: 60,
        }
    }
}

/// Puts a cache through its contract: attention, lengths and copies after random passes, commits,
/// rollbacks, evictions and imports; every refusal, and that nothing changes with it; draft passes;
/// memory; values that are not numbers.
///
/// `make` makes an empty cache for a model of that shape, with room for six sequences of
/// `spec.context` tokens.
///
/// # Errors
/// The first [`Violation`].
pub fn cache<C: KvCache>(
    device: &Device,
    make: impl Fn(&ModelSpec) -> C,
) -> Result<Report, Violation> {
    cache_promising(&CachePromises::default(), device, make)
}

/// As [`cache()`], for a cache that promises something else than the default.
///
/// # Errors
/// The first [`Violation`].
pub fn cache_promising<C: KvCache>(
    promises: &CachePromises,
    device: &Device,
    make: impl Fn(&ModelSpec) -> C,
) -> Result<Report, Violation> {
    let mut report = Report::new("cache");
    for spec in shapes(device, promises.windows) {
        for seed in 0..promises.walks {
            let mut pair = pair::Pair::new(&spec, promises, make(&spec), seed);
            walk::walk(&mut pair, promises, &mut report)?;
        }
        refusals::refusals(&spec, promises, &make, &mut report)?;
        refusals::memory(&spec, promises, &make, &mut report)?;
        refusals::not_a_number(&spec, promises, &make, &mut report)?;
    }
    Ok(report)
}

/// The model shapes a cache is tried with.
fn shapes(device: &Device, windows: bool) -> Vec<ModelSpec> {
    let plain = ModelSpec::new(16, 2, 8, device)
        .with_heads(2, 2, 4)
        .with_context(48);
    let mut grouped = ModelSpec::new(16, 3, 8, device)
        .with_heads(4, 2, 8)
        .with_context(48);
    grouped.scale = Some(0.75);
    let mut windowed = grouped.clone();
    windowed.windows = vec![Some(5), None, Some(1)];
    let mut all = vec![plain, grouped];
    if windows {
        all.push(windowed);
    }
    all
}
