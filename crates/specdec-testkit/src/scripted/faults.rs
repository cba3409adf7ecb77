use burn::prelude::*;
use specdec_core::{
    Attend, Block, BuildError, Draft, DraftContext, Drafter, Error, Forward, ModelSpec,
    Observation, Result, SeqId, TargetModel,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A drafter that fails at some of its calls and is otherwise the one inside.
#[derive(Debug, Clone)]
pub struct FailingDrafter<D> {
    inner: D,
    drafts: BTreeSet<usize>,
    observations: BTreeSet<usize>,
    calls: [usize; 2],
}

impl<D: Drafter> FailingDrafter<D> {
    /// Fails at these calls of [`Drafter::draft`], counted from 0.
    pub fn at_drafts(inner: D, calls: impl IntoIterator<Item = usize>) -> Self {
        Self {
            inner,
            drafts: calls.into_iter().collect(),
            observations: BTreeSet::new(),
            calls: [0; 2],
        }
    }

    /// Fails at these calls of [`Drafter::observe`] too, counted from 0.
    pub fn and_observations(mut self, calls: impl IntoIterator<Item = usize>) -> Self {
        self.observations = calls.into_iter().collect();
        self
    }
}

impl<D: Drafter> Drafter for FailingDrafter<D> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let call = self.calls[0];
        self.calls[0] += 1;
        if self.drafts.contains(&call) {
            return Err(Error::Drafter(
                format!("draft call {call} fails as scripted").into(),
            ));
        }
        self.inner.draft(cx)
    }

    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        let call = self.calls[1];
        self.calls[1] += 1;
        self.inner.observe(observation)?;
        if self.observations.contains(&call) {
            return Err(Error::Drafter(
                format!("observation {call} fails as scripted").into(),
            ));
        }
        Ok(())
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        self.inner.check(target)
    }
}

/// A target that fails at some of its passes, in the middle of its layers, and is otherwise the one
/// inside.
#[derive(Debug)]
pub struct FlakyTarget<M> {
    inner: M,
    fails: BTreeSet<usize>,
    passes: AtomicUsize,
}

impl<M: TargetModel> FlakyTarget<M> {
    /// Fails at these passes, counted from 0.
    pub fn new(inner: M, passes: impl IntoIterator<Item = usize>) -> Self {
        Self {
            inner,
            fails: passes.into_iter().collect(),
            passes: AtomicUsize::new(0),
        }
    }
}

/// Lets the first layer through and refuses the next.
struct Interrupted<'a> {
    inner: &'a mut dyn Attend,
    layers: usize,
}

impl Attend for Interrupted<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        if self.layers == 0 {
            return Err(Error::Target("this pass fails as scripted".into()));
        }
        self.layers -= 1;
        self.inner.attend(layer, q, k, v)
    }
}

impl<M: TargetModel> TargetModel for FlakyTarget<M> {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward> {
        let pass = self.passes.fetch_add(1, Ordering::Relaxed);
        if !self.fails.contains(&pass) {
            return self.inner.forward(block, attend, taps);
        }
        let layers = 1;
        let mut interrupted = Interrupted {
            inner: attend,
            layers,
        };
        self.inner.forward(block, &mut interrupted, taps)
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.inner.logits(hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.inner.embed(tokens)
    }
}
