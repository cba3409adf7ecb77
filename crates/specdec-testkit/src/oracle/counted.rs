use burn::prelude::*;
use specdec_core::{Attend, Block, Forward, ModelSpec, Result, TargetModel};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A target that counts its passes and is otherwise the one inside.
#[derive(Debug, Clone)]
pub struct Counted<M> {
    inner: M,
    calls: Calls,
}

/// The counts of a [`Counted`] target. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Calls(Arc<[AtomicUsize; 2]>);

impl Calls {
    /// Passes so far.
    pub fn passes(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Tokens of all passes so far.
    pub fn tokens(&self) -> usize {
        self.0[1].load(Ordering::Relaxed)
    }
}

impl<M: TargetModel> Counted<M> {
    /// Counts the passes of a target.
    pub fn new(inner: M) -> Self {
        Self {
            inner,
            calls: Calls::default(),
        }
    }

    /// The counts, to be kept when the target is given away.
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }
}

impl<M: TargetModel> TargetModel for Counted<M> {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward> {
        self.calls.0[0].fetch_add(1, Ordering::Relaxed);
        self.calls.0[1].fetch_add(block.len(), Ordering::Relaxed);
        self.inner.forward(block, attend, taps)
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.inner.logits(hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.inner.embed(tokens)
    }
}
