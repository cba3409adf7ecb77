use crate::collect::{CollectedRow, Fate, HostWeights, OpenPass, Weights, candidates};
use crate::{Candidates, CheckedConfig, Ranked, Select, VegasMeter};
use burn::prelude::*;
use specdec_core::{
    Attend, HeadWeights, KvCache, KvSegment, ModelSpec, Phase, Result, RowKeys, RowSpan, Selection,
    SelectiveAttend, SelectiveCache, SeqId,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A cache that remembers what attention looked at, and lets drafts look only there.
///
/// Passes of the phases prefill and verify are those of the cache inside, to the bit; while they run
/// it collects the attention of a few queries. In the draft phase a row attends in each layer to the
/// keys chosen from that, to every position added since, and to the row's own drafts. Keys are chosen
/// when a draft begins; a sequence that never drafts pays for collecting only.
///
/// A draft attends to everything
/// * where all candidates fit the budget,
/// * in layers with a sliding window,
/// * in sequences of which nothing was collected since they were created, imported into, or evicted:
///   until their next pass.
pub struct Vegas<C> {
    inner: C,
    config: CheckedConfig,
    select: Arc<dyn Select>,
    /// Layers without a window.
    sparse: Vec<bool>,
    known: Known,
    open: Option<OpenPass>,
    meter: VegasMeter,
}

/// What is known of each sequence; nothing where drafts see everything.
#[derive(Default)]
struct Known {
    chosen: HashMap<SeqId, Arc<RowKeys>>,
    /// Committed passes from which nothing has been chosen yet.
    collected: Vec<(Vec<CollectedRow>, Weights)>,
}

impl Known {
    fn forget(&mut self, seq: SeqId) {
        self.chosen.remove(&seq);
        self.collected.retain_mut(|(rows, _)| {
            rows.retain(|row| row.seq != seq);
            !rows.is_empty()
        });
    }

    /// How many positions a sequence's ranking covers.
    fn covered(&self, seq: SeqId) -> Option<usize> {
        let mut waiting = self.collected.iter().flat_map(|(rows, _)| rows);
        let waiting = waiting.find(|row| row.seq == seq).map(|row| row.count);
        waiting.or_else(|| self.chosen.get(&seq).map(|keys| keys.tail()))
    }

    fn memory_bytes(&self) -> usize {
        let chosen = self.chosen.values().map(|keys| keys.memory_bytes());
        let waiting = self.collected.iter().map(|(_, w)| w.memory_bytes());
        chosen.chain(waiting).sum()
    }
}

impl<C> std::fmt::Debug for Vegas<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vegas")
            .field("config", &self.config)
            .field("select", &self.select)
            .field("sequences", &self.known.chosen.len())
            .finish_non_exhaustive()
    }
}

impl<C: SelectiveCache> Vegas<C> {
    /// Wraps the cache of a model; keys are chosen by weight ([`Ranked`]).
    pub fn new(inner: C, spec: &ModelSpec, config: CheckedConfig) -> Self {
        let rule = Ranked::new(&config);
        Self::with_select(inner, spec, config, rule)
    }

    /// As [`new`](Self::new), with another rule to choose keys.
    pub fn with_select(
        inner: C,
        spec: &ModelSpec,
        config: CheckedConfig,
        select: impl Select + 'static,
    ) -> Self {
        Self {
            inner,
            config,
            select: Arc::new(select),
            sparse: (0..spec.layers).map(|l| spec.window(l).is_none()).collect(),
            known: Known::default(),
            open: None,
            meter: VegasMeter::default(),
        }
    }

    /// The cache inside.
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// A handle to what is counted, to be kept when a decoder takes the cache.
    pub fn meter(&self) -> VegasMeter {
        self.meter.clone()
    }

    /// What becomes of a row's keys, and the row's queries to collect.
    fn fate(&self, row: &RowSpan, phase: Phase) -> (Fate, Vec<usize>) {
        let options = self.config.options();
        let keys = row.start + row.len;
        let (count, queries) = candidates(row, phase, options.collect);
        if self.config.keeps_all(keys, count) {
            return (Fate::All, Vec::new());
        }
        let fresh = |covered: usize| keys.saturating_sub(covered) < options.plain_refresh;
        let plain = row.len == 1 && phase != Phase::Prefill;
        if plain && self.known.covered(row.seq).is_some_and(fresh) {
            return (Fate::Stay, Vec::new());
        }
        let row = CollectedRow {
            seq: row.seq,
            count,
            keys,
            queries: 0..0,
        };
        let queries = if self.select.needs_weights() {
            queries
        } else {
            Vec::new()
        };
        (Fate::Choose(row), queries)
    }

    /// What to collect in a pass that attends to everything.
    fn watch(&self, rows: &[RowSpan], phase: Phase) -> (Selection, OpenPass) {
        let mut selection = Selection {
            heads: HeadWeights::Mean,
            ..Selection::default()
        };
        let mut watched = Vec::with_capacity(rows.len());
        let (mut offset, mut columns) = (0, 0);
        for row in rows {
            let (mut fate, queries) = self.fate(row, phase);
            if let Fate::Choose(collected) = &mut fate {
                let from = selection.queries.len();
                collected.queries = from..from + queries.len();
                columns = columns.max(collected.count);
            }
            let places = queries.iter().map(|query| offset + query);
            selection.queries.extend(places);
            watched.push((row.seq, row.start, fate));
            offset += row.len;
        }
        let weights = Weights::new(self.sparse.len(), selection.queries.len(), columns);
        let open = OpenPass {
            rows: watched,
            weights,
        };
        (selection, open)
    }

    /// Chooses the keys of the passes that any of these rows waits for.
    fn choose(&mut self, rows: &[RowSpan]) -> Result<()> {
        let waits = |seq: SeqId| rows.iter().any(|row| row.seq == seq);
        let mut at = 0;
        while let Some((waiting, weights)) = self.known.collected.get(at) {
            if !waiting.iter().any(|row| waits(row.seq)) {
                at += 1;
                continue;
            }
            let started = Instant::now();
            let host = weights.read()?;
            self.meter
                .change(|stats| stats.collect_time += started.elapsed());
            let (waiting, _) = self.known.collected.remove(at);
            for row in waiting {
                let keys = self.choose_row(&row, &host);
                self.known.chosen.insert(row.seq, Arc::new(keys));
            }
        }
        Ok(())
    }

    fn choose_row(&self, row: &CollectedRow, host: &HostWeights) -> RowKeys {
        let layers = self.sparse.iter().enumerate().map(|(layer, sparse)| {
            if !sparse {
                return None;
            }
            let started = Instant::now();
            let weights = host.mean(layer, row);
            let collected = Instant::now();
            let mut from = Candidates::new(row.seq, layer, row.count, &weights);
            from.keys = row.keys;
            from.least = self.config.least(row.count);
            from.budget = self.config.budget(row.keys, row.count);
            let keys = self.select.select(&from).map(|mut keys| {
                keys.retain(|&key| (key as usize) < row.count);
                keys.sort_unstable();
                keys.dedup();
                keys
            });
            let chosen = keys.as_ref().map_or(row.count, Vec::len) as u64;
            self.meter.change(|stats| {
                stats.sets += 1;
                stats.chosen += chosen;
                stats.candidates += row.count as u64;
                stats.collect_time += collected - started;
                stats.select_time += collected.elapsed();
            });
            keys.map(Arc::from)
        });
        RowKeys::new(layers.collect(), row.count)
    }

    /// What the rows of a draft pass see.
    fn drafted(&self, rows: &[RowSpan]) -> Selection {
        let keys = rows
            .iter()
            .map(|row| self.known.chosen.get(&row.seq).cloned());
        Selection {
            rows: keys.collect(),
            ..Selection::default()
        }
    }
}

/// Counts what the rows of a draft pass attend to.
fn count_draft(meter: &VegasMeter, layers: usize, rows: &[RowSpan], selection: &Selection) {
    meter.change(|stats| {
        for (number, row) in rows.iter().enumerate() {
            let held = (row.start + row.len) * layers;
            stats.draft_rows += 1;
            stats.held += held as u64;
            stats.attended += held as u64;
            let Some(keys) = selection.row(number) else {
                continue;
            };
            stats.sparse_rows += u64::from(keys.lists().next().is_some());
            let left_out = keys.lists().map(|(_, list)| keys.tail() - list.len());
            stats.attended -= left_out.sum::<usize>() as u64;
        }
    });
}

/// Attention of a pass, whose weights are put aside.
struct VegasAttend<'a> {
    inner: Box<dyn SelectiveAttend + 'a>,
    sparse: &'a [bool],
    weights: Option<&'a mut Weights>,
}

impl Attend for VegasAttend<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        let sparse = self.sparse.get(layer).copied().unwrap_or(false);
        let Some(weights) = self.weights.as_deref_mut().filter(|_| sparse) else {
            return self.inner.attend(layer, q, k, v);
        };
        let weighed = self.inner.attend_weighed(layer, q, k, v)?;
        weights.put(layer, weighed.weights)?;
        Ok(weighed.out)
    }
}

impl<C: SelectiveCache> KvCache for Vegas<C> {
    fn len(&self, seq: SeqId) -> usize {
        self.inner.len(seq)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        let (selection, open) = if phase == Phase::Draft {
            self.choose(rows)?;
            (self.drafted(rows), None)
        } else {
            let (selection, open) = self.watch(rows, phase);
            (selection, Some(open))
        };
        let inner = self.inner.begin_selective(rows, phase, &selection)?;
        if open.is_none() {
            count_draft(&self.meter, self.sparse.len(), rows, &selection);
        }
        self.open = open;
        let weights = self.open.as_mut().map(|open| &mut open.weights);
        Ok(Box::new(VegasAttend {
            inner,
            sparse: &self.sparse,
            weights: weights.filter(|weights| weights.wanted()),
        }))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.inner.commit(keep)?;
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let mut rows = Vec::new();
        for ((seq, start, fate), &keep) in open.rows.into_iter().zip(keep) {
            // A row that keeps nothing is where it was.
            if keep == 0 || fate == Fate::Stay {
                continue;
            }
            self.known.forget(seq);
            if let Fate::Choose(mut row) = fate {
                row.count = row.count.min(start + keep);
                rows.push(row);
            }
        }
        if !rows.is_empty() {
            self.meter
                .change(|stats| stats.collected_rows += rows.len() as u64);
            self.known.collected.push((rows, open.weights));
        }
        Ok(())
    }

    fn rollback(&mut self) {
        self.inner.rollback();
        self.open = None;
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
        self.known.forget(seq);
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        self.inner.export(seq, range)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        self.inner.import(seq, segment)?;
        if !segment.range.is_empty() {
            self.known.forget(seq);
        }
        Ok(())
    }

    fn fits(&self, rows: &[RowSpan]) -> bool {
        self.inner.fits(rows)
    }

    fn capacity(&self) -> Option<usize> {
        self.inner.capacity()
    }

    fn can_rewind(&self) -> bool {
        self.inner.can_rewind()
    }

    fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes() + self.known.memory_bytes()
    }
}
