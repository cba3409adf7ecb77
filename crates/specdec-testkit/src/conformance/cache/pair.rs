//! The cache under test beside the plain one, moved in step.

use super::CachePromises;
use crate::VecCache;
use crate::conformance::report::{Report, Violation, distance, numbers};
use crate::seeded::Seeded;
use burn::prelude::*;
use specdec_core::{KvCache, ModelSpec, Phase, RowSpan, SeqId};

/// What each `attend` of a pass returned, per layer, `[T * H * D]`.
pub(super) type Outputs = Vec<Vec<f32>>;

/// Queries, keys and values of one layer.
pub(super) type Layer = (Tensor<3>, Tensor<3>, Tensor<3>);

pub(super) struct Pair<C> {
    pub(super) cache: C,
    pub(super) plain: VecCache,
    pub(super) spec: ModelSpec,
    pub(super) draws: Seeded,
    tolerance: f32,
    exact_drafts: bool,
    /// What was done, for the message of a violation.
    log: Vec<String>,
    seed: u64,
}

impl<C: KvCache> Pair<C> {
    pub(super) fn new(spec: &ModelSpec, promises: &CachePromises, cache: C, seed: u64) -> Self {
        Self {
            cache,
            plain: VecCache::new(spec),
            spec: spec.clone(),
            draws: Seeded::new(seed),
            tolerance: promises.tolerance,
            exact_drafts: promises.exact_drafts,
            log: Vec::new(),
            seed,
        }
    }

    pub(super) fn note(&mut self, what: String) {
        self.log.push(what);
    }

    /// Where this walk stands, for a message.
    pub(super) fn story(&self) -> String {
        let from = self.log.len().saturating_sub(6);
        format!(
            "(walk {}, {} layers, {} of {} heads of {}, windows {:?}; the last transitions were: {})",
            self.seed,
            self.spec.layers,
            self.spec.kv_heads,
            self.spec.heads,
            self.spec.head_dim,
            self.spec.windows,
            self.log[from..].join("; ")
        )
    }

    /// Random queries, keys and values of `tokens` tokens, one entry a layer.
    pub(super) fn layers(&mut self, tokens: usize) -> Vec<Layer> {
        let (h, g, d) = (self.spec.heads, self.spec.kv_heads, self.spec.head_dim);
        (0..self.spec.layers)
            .map(|_| {
                let mut tensor = |heads: usize| {
                    let n = tokens * heads * d;
                    let numbers: Vec<f32> = (0..n).map(|_| self.draws.signed()).collect();
                    let data = TensorData::new(numbers, [tokens, heads, d]);
                    Tensor::<3>::from_data(data, &self.spec.device)
                };
                (tensor(h), tensor(g), tensor(g))
            })
            .collect()
    }

    /// Runs a pass through both caches and leaves it open. Compares attention.
    pub(super) fn pass(
        &mut self,
        rows: &[RowSpan],
        phase: Phase,
        report: &mut Report,
    ) -> Result<(), Violation> {
        let tokens = rows.iter().map(|row| row.len).sum();
        let layers = self.layers(tokens);
        self.note(format!("{phase:?} pass of {}", spans(rows)));
        let want = run(&mut self.plain, rows, phase, &layers);
        let want = report.done("the reference takes the pass", want, || self.story())?;
        let got = run(&mut self.cache, rows, phase, &layers);
        let got = report.done("a legal pass is taken", got, || self.story())?;
        if phase == Phase::Draft && !self.exact_drafts {
            return Ok(());
        }
        for (layer, (want, got)) in want.iter().zip(&got).enumerate() {
            let d = distance(want, got);
            report.check(
                "attention sees all committed and earlier tokens of its own row, no others",
                d <= self.tolerance,
                || format!("layer {layer} is off by {d} {}", self.story()),
            )?;
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, keep: &[usize], report: &mut Report) -> Result<(), Violation> {
        self.note(format!("commit {keep:?}"));
        let want = self.plain.commit(keep);
        report.done("the reference commits", want, || self.story())?;
        let got = self.cache.commit(keep);
        report.done("a legal commit is taken", got, || self.story())?;
        self.compare_lengths(report)
    }

    pub(super) fn rollback(&mut self, report: &mut Report) -> Result<(), Violation> {
        self.note("rollback".into());
        self.plain.rollback();
        self.cache.rollback();
        self.compare_lengths(report)
    }

    pub(super) fn evict(&mut self, seq: SeqId, report: &mut Report) -> Result<(), Violation> {
        self.note(format!("evict {seq}"));
        self.plain.evict(seq);
        self.cache.evict(seq);
        self.compare_lengths(report)
    }

    pub(super) fn compare_lengths(&self, report: &mut Report) -> Result<(), Violation> {
        for seq in (0..24).map(SeqId) {
            let (want, got) = (self.plain.len(seq), self.cache.len(seq));
            report.check("len counts what was kept", want == got, || {
                format!(
                    "sequence {seq} has length {got} instead of {want} {}",
                    self.story()
                )
            })?;
        }
        Ok(())
    }

    /// Whether a cache that drops what windows no longer reach may refuse this range.
    pub(super) fn may_be_dropped(&self, from: usize, len: usize) -> bool {
        (0..self.spec.layers)
            .filter_map(|layer| self.spec.window(layer))
            .any(|window| from + window < len + 1)
    }
}

/// One pass: `begin` and an `attend` per layer.
pub(super) fn run(
    cache: &mut dyn KvCache,
    rows: &[RowSpan],
    phase: Phase,
    layers: &[Layer],
) -> specdec_core::Result<Outputs> {
    let mut attend = cache.begin(rows, phase)?;
    let mut out = Vec::with_capacity(layers.len());
    for (layer, (q, k, v)) in layers.iter().enumerate() {
        let attended = attend.attend(layer, q.clone(), k.clone(), v.clone())?;
        out.push(numbers(attended));
    }
    Ok(out)
}

pub(super) fn spans(rows: &[RowSpan]) -> String {
    let spans: Vec<String> = rows
        .iter()
        .map(|row| format!("{} at {} +{}", row.seq, row.start, row.len))
        .collect();
    format!("[{}]", spans.join(", "))
}
