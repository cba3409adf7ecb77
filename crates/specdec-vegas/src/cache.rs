use crate::collect::{CollectedRow, Fate, HostWeights, OpenPass, Weights, candidates};
use crate::known::Known;
use crate::{Candidates, CheckedConfig, HeadSets, Ranked, Select, VegasMeter};
use burn::prelude::*;
use specdec_core::{
    Attend, HeadWeights, KvCache, KvSegment, ModelSpec, Phase, Result, RowKeys, RowSpan, Selection,
    SelectiveAttend, SelectiveCache, SeqId,
};
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
/// * in the first draft pass of a sequence of which nothing was collected: one whose prompt was
///   imported, all but the anchor. That pass ranks for those after it.
pub struct Vegas<C> {
    inner: C,
    config: CheckedConfig,
    select: Arc<dyn Select>,
    /// Layers without a window.
    sparse: Vec<bool>,
    /// Key sets of a layer.
    sets: usize,
    known: Known,
    open: Option<OpenPass>,
    meter: VegasMeter,
}

impl<C> std::fmt::Debug for Vegas<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vegas")
            .field("config", &self.config)
            .field("select", &self.select)
            .field("sequences", &self.known.len())
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
        let sets = match config.options().heads {
            HeadSets::Shared => 1,
            HeadSets::PerKvHead => spec.kv_heads,
        };
        Self {
            inner,
            config,
            sets,
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
        let patience = self.known.patience(row.seq, options.plain_refresh);
        let fresh = |covered: usize| keys.saturating_sub(covered) < patience;
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
        let mut selection = self.report();
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
        let open = OpenPass {
            phase,
            rows: watched,
            weights: self.weights(selection.queries.len(), columns),
        };
        (selection, open)
    }

    /// Scores as the configuration wants them, of no query yet.
    fn report(&self) -> Selection {
        let options = self.config.options();
        Selection {
            heads: match options.heads {
                HeadSets::Shared => HeadWeights::Mean,
                HeadSets::PerKvHead => HeadWeights::PerKvHead,
            },
            score: options.score,
            ..Selection::default()
        }
    }

    /// Room for the scores of some queries.
    fn weights(&self, queries: usize, columns: usize) -> Weights {
        Weights::new(self.sparse.len(), [queries, self.sets, columns])
    }

    /// Chooses the keys of the passes that any of these rows waits for.
    fn choose(&mut self, rows: &[RowSpan]) -> Result<()> {
        while let Some(pass) = self.known.waiting(rows) {
            let started = Instant::now();
            let host = self.known.weights(pass).read()?;
            self.meter
                .change(|stats| stats.collect_time += started.elapsed());
            for row in self.known.take(pass) {
                self.known.choose(row.seq, self.choose_row(&row, &host));
            }
        }
        Ok(())
    }

    fn choose_row(&self, row: &CollectedRow, host: &HostWeights) -> RowKeys {
        let layers = self.sparse.iter().enumerate().map(|(layer, sparse)| {
            let sets = (0..self.sets).map(|set| self.choose_set(row, (layer, set), host));
            let sets: Vec<_> = if *sparse { sets.collect() } else { Vec::new() };
            if sets.iter().all(Option::is_none) {
                return None;
            }
            let all = || (0..row.count as u32).collect();
            Some(
                sets.into_iter()
                    .map(|set| set.unwrap_or_else(all))
                    .collect(),
            )
        });
        RowKeys::by_head(layers.collect(), row.count)
    }

    /// One set of keys; `None` for all.
    fn choose_set(
        &self,
        row: &CollectedRow,
        (layer, set): (usize, usize),
        host: &HostWeights,
    ) -> Option<Arc<[u32]>> {
        let options = self.config.options();
        let started = Instant::now();
        let weights = host.mean(layer, row, set);
        let collected = Instant::now();
        let mut from = Candidates::new(row.seq, layer, row.count, &weights);
        from.head = (options.heads == HeadSets::PerKvHead).then_some(set);
        from.score = options.score;
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
    }

    /// What the rows of a draft pass see. Rows of which nothing is known see everything, and are
    /// watched where that helps to rank.
    fn draft(&mut self, rows: &[RowSpan]) -> Result<(Selection, OpenPass)> {
        if let Some(before) = self.open.take_if(|open| open.phase == Phase::Draft) {
            self.collect(before, None);
        }
        self.choose(rows)?;
        let mut selection = self.report();
        let mut watched = Vec::new();
        let (mut offset, mut columns) = (0, 0);
        for row in rows {
            let keys = row.start + row.len;
            // What is staged may be taken back.
            let count = self.inner.len(row.seq).min(row.start);
            offset += row.len;
            if self.known.keys(row.seq).is_none() && !self.config.keeps_all(keys, count) {
                let at = selection.queries.len();
                let mut unknown = CollectedRow {
                    seq: row.seq,
                    count,
                    keys,
                    queries: at..at,
                };
                if self.select.needs_weights() {
                    unknown.queries.end += 1;
                    selection.queries.push(offset - 1);
                    columns = columns.max(count);
                    watched.push((row.seq, row.start, Fate::Choose(unknown)));
                } else {
                    let keys = self.choose_row(&unknown, &HostWeights::default());
                    self.known.choose(row.seq, keys);
                }
            }
            selection.rows.push(self.known.keys(row.seq).cloned());
        }
        let open = OpenPass {
            phase: Phase::Draft,
            rows: watched,
            weights: self.weights(selection.queries.len(), columns),
        };
        Ok((selection, open))
    }

    /// Puts aside what a pass showed of the rows that it ranks, those that keep anything of it (`keep`
    /// entries each; without, nothing is kept and all rank).
    fn collect(&mut self, open: OpenPass, keep: Option<&[usize]>) {
        let mut rows = Vec::new();
        for (number, (seq, start, fate)) in open.rows.into_iter().enumerate() {
            let kept = keep.map(|keep| keep.get(number).copied().unwrap_or(0));
            // A row that keeps nothing of a pass is where it was.
            if kept == Some(0) || fate == Fate::Stay {
                continue;
            }
            self.known.replace(seq);
            if let Fate::Choose(mut row) = fate {
                row.count = row.count.min(start + kept.unwrap_or(0));
                rows.push(row);
            }
        }
        if !rows.is_empty() {
            self.meter
                .change(|stats| stats.collected_rows += rows.len() as u64);
            self.known.collect(rows, open.weights);
        }
    }
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
        let (selection, open) = match phase {
            Phase::Draft => self.draft(rows)?,
            _ => self.watch(rows, phase),
        };
        let inner = self.inner.begin_selective(rows, phase, &selection)?;
        if phase == Phase::Draft {
            self.meter.drafted(self.sparse.len(), rows, &selection);
        }
        let weights = &mut self.open.insert(open).weights;
        Ok(Box::new(VegasAttend {
            inner,
            sparse: &self.sparse,
            weights: weights.wanted().then_some(weights),
        }))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.inner.commit(keep)?;
        if let Some(open) = self.open.take() {
            self.collect(open, Some(keep));
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
        // What a draft of it showed is nobody's; the rows of other passes are counted by what they keep.
        if let Some(open) = self.open.as_mut().filter(|open| open.phase == Phase::Draft) {
            open.rows.retain(|(row, ..)| *row != seq);
        }
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
