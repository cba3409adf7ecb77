//! Caches that watch, poison and lie.

use crate::world::{Log, slots, span};
use burn::prelude::*;
use specdec_core::{
    Attend, KvCache, KvSegment, ModelSpec, Phase, Result, RowSpan, Selection, SelectiveAttend,
    SelectiveCache, SeqId, Weighed,
};
use specdec_ragged::SlotCache;
use std::ops::Range;
use std::sync::Arc;

/// What happens to the passes of a [`Hooked`] cache.
pub(crate) trait Hook: Send {
    fn begun(&mut self, _rows: &[RowSpan], _phase: Phase, _selection: &Selection) {}

    fn entries(&mut self, _layer: usize, k: Tensor<3>, v: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        (k, v)
    }

    fn weights(&mut self, weights: Tensor<3>) -> Tensor<3> {
        weights
    }

    fn committed(&mut self, _cache: &mut dyn SelectiveCache) {}
}

/// A cache with a hook.
pub(crate) struct Hooked<C, H> {
    pub(crate) inner: C,
    pub(crate) hook: H,
}

struct HookedAttend<'a, H> {
    inner: Box<dyn SelectiveAttend + 'a>,
    hook: &'a mut H,
}

impl<H: Hook> Attend for HookedAttend<'_, H> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        let (k, v) = self.hook.entries(layer, k, v);
        self.inner.attend(layer, q, k, v)
    }
}

impl<H: Hook> SelectiveAttend for HookedAttend<'_, H> {
    fn attend_weighed(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Weighed> {
        let (k, v) = self.hook.entries(layer, k, v);
        let mut weighed = self.inner.attend_weighed(layer, q, k, v)?;
        weighed.weights = weighed.weights.map(|weights| self.hook.weights(weights));
        Ok(weighed)
    }
}

impl<C: SelectiveCache, H: Hook> KvCache for Hooked<C, H> {
    fn len(&self, seq: SeqId) -> usize {
        self.inner.len(seq)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        let inner = self
            .inner
            .begin_selective(rows, phase, &Selection::default())?;
        self.hook.begun(rows, phase, &Selection::default());
        let hook = &mut self.hook;
        Ok(Box::new(HookedAttend { inner, hook }))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.inner.commit(keep)?;
        self.hook.committed(&mut self.inner);
        Ok(())
    }

    fn rollback(&mut self) {
        self.inner.rollback();
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        self.inner.export(seq, range)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        self.inner.import(seq, segment)
    }

    fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes()
    }
}

impl<C: SelectiveCache, H: Hook> SelectiveCache for Hooked<C, H> {
    fn begin_selective<'a>(
        &'a mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<Box<dyn SelectiveAttend + 'a>> {
        let inner = self.inner.begin_selective(rows, phase, selection)?;
        self.hook.begun(rows, phase, selection);
        let hook = &mut self.hook;
        Ok(Box::new(HookedAttend { inner, hook }))
    }
}

/// A pass that a cache was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Begun {
    pub(crate) rows: Vec<RowSpan>,
    pub(crate) phase: Phase,
    pub(crate) selection: Selection,
}

/// Writes down every pass.
#[derive(Default)]
pub(crate) struct Spy(pub(crate) Log<Begun>);

impl Hook for Spy {
    fn begun(&mut self, rows: &[RowSpan], phase: Phase, selection: &Selection) {
        self.0.lock().expect("no panic").push(Begun {
            rows: rows.to_vec(),
            phase,
            selection: selection.clone(),
        });
    }
}

/// A slot cache whose passes are written down.
pub(crate) fn spied(spec: &ModelSpec) -> (Hooked<SlotCache, Spy>, Log<Begun>) {
    let log = Log::default();
    let hook = Spy(Arc::clone(&log));
    let inner = slots(spec);
    (Hooked { inner, hook }, log)
}

/// Writes NaN behind every row that was committed.
pub(crate) struct Poison {
    pub(crate) spec: ModelSpec,
    pub(crate) ahead: usize,
    rows: Vec<SeqId>,
}

impl Poison {
    pub(crate) fn slots(spec: &ModelSpec, ahead: usize) -> Hooked<SlotCache, Self> {
        let spec = spec.clone();
        let inner = slots(&spec);
        let rows = Vec::new();
        let hook = Self { spec, ahead, rows };
        Hooked { inner, hook }
    }
}

impl Hook for Poison {
    fn begun(&mut self, rows: &[RowSpan], _: Phase, _: &Selection) {
        self.rows = rows.iter().map(|row| row.seq).collect();
    }

    fn committed(&mut self, cache: &mut dyn SelectiveCache) {
        for &seq in &self.rows {
            let row = span(seq.0, cache.len(seq), self.ahead);
            let nan = |heads| {
                Tensor::full(
                    [row.len, heads, self.spec.head_dim],
                    f32::NAN,
                    &self.spec.device,
                )
            };
            let mut attend = cache.begin(&[row], Phase::Draft).expect("a draft pass");
            for layer in 0..self.spec.layers {
                let (q, kv) = (nan(self.spec.heads), nan(self.spec.kv_heads));
                attend.attend(layer, q, kv.clone(), kv).expect("attention");
            }
            drop(attend);
            cache.rollback();
        }
    }
}

/// The draft passes a spy saw, each row's first position and tail (`None`: it saw everything).
pub(crate) fn tails(log: &Log<Begun>, seq: u64) -> Vec<(usize, Option<usize>)> {
    let log = log.lock().expect("no panic");
    let drafts = log.iter().filter(|begun| begun.phase == Phase::Draft);
    drafts
        .flat_map(|begun| {
            let rows = begun
                .rows
                .iter()
                .enumerate()
                .filter(|(_, row)| row.seq.0 == seq);
            rows.map(|(at, row)| (row.start, begun.selection.row(at).map(|keys| keys.tail())))
        })
        .collect()
}
