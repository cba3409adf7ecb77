//! Contexts that nobody had to compute: entries of any numbers, put into a cache. Attention takes as long
//! over them as over real ones.

use burn::prelude::*;
use burn::tensor::Distribution;
use specdec::core::{KvSegment, ModelSpec, PrefixCache, PrefixQuery, Result};
use std::ops::Range;

/// The same entries for every sequence.
#[derive(Clone)]
pub struct Filled(KvSegment);

impl Filled {
    /// Entries of `tokens` positions.
    pub fn new(spec: &ModelSpec, tokens: usize) -> Self {
        Self(entries(spec, tokens))
    }
}

/// Made-up entries of positions `0..tokens`.
pub fn entries(spec: &ModelSpec, tokens: usize) -> KvSegment {
    let part = || {
        let shape = [tokens, spec.kv_heads, spec.head_dim];
        Tensor::<3>::random(shape, Distribution::Uniform(-1.0, 1.0), &spec.device)
    };
    KvSegment {
        range: 0..tokens,
        layers: (0..spec.layers).map(|_| (part(), part())).collect(),
    }
}

impl PrefixCache for Filled {
    fn fetch(&mut self, _: &PrefixQuery<'_>) -> Option<KvSegment> {
        Some(self.0.clone())
    }

    fn missing(&self, _: &PrefixQuery<'_>) -> Range<usize> {
        0..0
    }

    fn store(&mut self, _: &PrefixQuery<'_>, _: Result<KvSegment>) {}
}
