mod layout;
mod meter;

pub use layout::{AlignedRow, Alignment};
pub use meter::{AlignMeter, AlignStats};

use crate::SlotOptions;
use crate::attend::{PassAttend, Plan};
use crate::chunks::Chunks;
use crate::model_shape::{ModelShape, check_range, kernel};
use crate::selective::see;
use crate::transaction::Transaction;
use layout::{Place, places};
use specdec_core::{
    Attend, BuildError, CacheError, KvCache, KvSegment, ModelSpec, Phase, Result, RowSpan,
    Selection, SeqId,
};
use specdec_kernels::{AttentionRow, Shift, SlotStore};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// A row of the rectangle.
#[derive(Debug, Default)]
struct Row {
    /// Column `c` lives in chunk `table[c / chunk]`.
    table: Vec<u32>,
    /// Columns before position 0.
    pad: usize,
    /// Committed entries, at columns `pad..pad + len`.
    len: usize,
}

/// The memory of EQSPEC: a left-padded rectangle whose rows all end at one column, so that a verify
/// pass writes the same columns for every row.
///
/// When rows have kept different numbers of tokens, or have come or gone, the next pass first pads
/// them anew: rows that ended are dropped, and each of the others is moved by its own offset, with
/// one gather for each tensor of keys and of values (in place on the CPU, row by row). Where no
/// offset changes nothing is moved, and so never for a single row. A prefill pass, of which all
/// entries will be kept, is aligned by where its rows end.
///
/// It gives exactly what [`SlotCache`](crate::SlotCache) gives, to the bit on the CPU backend: keys
/// are moved with the position that was encoded when they were written, and attention counts a row's
/// columns from its own first one. What it costs is memory for padding, and the moves; its
/// [`AlignStats`] say how much.
///
/// Sliding windows hide what they hide; nothing is given back early.
pub struct AlignedCache {
    store: SlotStore,
    chunks: Chunks,
    rows: BTreeMap<SeqId, Row>,
    alignment: Alignment,
    open: Option<Transaction>,
    shape: ModelShape,
    meter: AlignMeter,
}

impl std::fmt::Debug for AlignedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedCache")
            .field("rows", &self.layout())
            .field("alignment", &self.alignment)
            .field("chunks", &self.chunks)
            .finish_non_exhaustive()
    }
}

impl AlignedCache {
    /// A cache for a model that keeps all its sequences aligned, with the default memory options.
    ///
    /// # Errors
    /// As [`Self::with_options`].
    pub fn new(spec: &ModelSpec) -> Result<Self> {
        Self::with_options(spec, Alignment::All, &SlotOptions::default())
    }

    /// A cache for a model. A limit of `max_positions` counts padding too.
    ///
    /// # Errors
    /// [`BuildError::Setting`] for a chunk of 0 columns; [`CacheError::Kernel`] for a model without
    /// layers or heads; [`CacheError::Full`] when more is preallocated than allowed.
    pub fn with_options(
        spec: &ModelSpec,
        alignment: Alignment,
        options: &SlotOptions,
    ) -> Result<Self> {
        let chunk = options.chunk;
        if chunk == 0 {
            return Err(BuildError::Setting {
                setting: "chunk",
                value: "0".into(),
                allowed: "1 or more",
            }
            .into());
        }
        let shape = ModelShape::new(spec);
        let mut cache = Self {
            store: shape.store(chunk, &spec.device)?,
            chunks: Chunks::new(options.limit()),
            rows: BTreeMap::new(),
            alignment,
            open: None,
            shape,
            meter: AlignMeter::default(),
        };
        cache.reserve(options.preallocate.div_ceil(chunk))?;
        Ok(cache)
    }

    /// What was moved and padded so far.
    pub fn stats(&self) -> AlignStats {
        self.meter.read()
    }

    /// A handle to the same counts, to be kept when the cache is given to a decoder.
    pub fn meter(&self) -> AlignMeter {
        self.meter.clone()
    }

    /// The rows as they lie now: as the last pass was aligned, with what was kept of it behind.
    pub fn layout(&self) -> Vec<AlignedRow> {
        let rows = self.rows.iter();
        rows.map(|(&seq, row)| AlignedRow {
            seq,
            padding: row.pad,
            len: row.len,
        })
        .collect()
    }

    /// Columns a sequence holds memory for: its padding, its entries, and the rest of a chunk.
    pub fn held_columns(&self, seq: SeqId) -> usize {
        let chunks = self.rows.get(&seq).map_or(0, |row| row.table.len());
        chunks * self.store.chunk_len()
    }

    /// Columns that could be stored without growing the store, in chunks that belong to nobody.
    pub fn free_columns(&self) -> usize {
        self.chunks.free() * self.store.chunk_len()
    }

    /// Bytes of keys and values of one position, all layers.
    pub fn bytes_per_position(&self) -> usize {
        self.store.bytes_per_chunk() / self.store.chunk_len()
    }

    fn reserve(&mut self, wanted: usize) -> Result<(), CacheError> {
        let total = self.chunks.grown_for(wanted)?;
        if total > self.chunks.total() {
            self.store.reserve(total);
            self.chunks.grow(total);
        }
        Ok(())
    }

    fn staged(&self, seq: SeqId) -> usize {
        self.open.as_ref().map_or(0, |open| open.staged(seq))
    }

    /// Where the rows that are aligned for a pass belong, and the columns they need.
    fn places(&self, rows: &[RowSpan], phase: Phase) -> BTreeMap<SeqId, Place> {
        let held = self.rows.iter().map(|(&seq, row)| (seq, row.len));
        let staged = |seq| self.staged(seq);
        places(self.alignment, held, staged, rows, phase)
    }

    /// Chunks to add to a sequence's so that it has `columns`.
    fn missing(&self, seq: SeqId, columns: usize) -> usize {
        let have = self.rows.get(&seq).map_or(0, |row| row.table.len());
        columns
            .div_ceil(self.store.chunk_len())
            .saturating_sub(have)
    }

    /// Moves the rows to their places; there is room.
    fn align(&mut self, places: &BTreeMap<SeqId, Place>) -> Result<(), CacheError> {
        let mut shifts = Vec::new();
        for (&seq, place) in places {
            let staged = self.staged(seq);
            let missing = self.missing(seq, place.columns);
            let row = self.rows.entry(seq).or_default();
            let new = (0..missing).map_while(|_| self.chunks.take());
            row.table.extend(new);
            let entries = row.len + staged;
            if entries > 0 && row.pad != place.pad {
                shifts.push(Shift {
                    table: row.table.clone(),
                    from: row.pad..row.pad + entries,
                    to: place.pad,
                });
            }
            row.pad = place.pad;
        }
        let started = Instant::now();
        self.store.shift(&shifts).map_err(kernel)?;
        if !shifts.is_empty() {
            let moved: usize = shifts.iter().map(|shift| shift.from.len()).sum();
            let bytes = moved * self.bytes_per_position();
            self.meter.moved(shifts.len(), bytes, started.elapsed());
        }
        // What a row no longer reaches goes back.
        for (seq, place) in places {
            if let Some(row) = self.rows.get_mut(seq) {
                let needed = place.columns.div_ceil(self.store.chunk_len());
                for chunk in row.table.drain(needed.min(row.table.len())..) {
                    self.chunks.give_back(chunk);
                }
            }
        }
        Ok(())
    }

    /// Opens a pass.
    pub(crate) fn open(
        &mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<PassAttend<'_>> {
        let next = Transaction::check(self.open.as_ref(), rows, phase, |seq| self.len(seq))?;
        selection.check(rows, self.shape.layers, self.shape.kv_heads)?;
        let places = self.places(rows, phase);
        let needs = places.iter().map(|(&seq, p)| self.missing(seq, p.columns));
        self.reserve(needs.sum())?;
        self.align(&places)?;
        self.meter.pass(rows.iter().map(|row| places[&row.seq].pad));
        let described = rows.iter().map(|row| AttentionRow {
            table: self.rows[&row.seq].table.clone(),
            start: row.start,
            len: row.len,
        });
        let padding = rows.iter().map(|row| places[&row.seq].pad).collect();
        let select = |pass| see(pass, selection);
        let passes = self
            .shape
            .passes(described.collect(), padding, &self.store, select)?;
        let plan = Plan::new(passes, selection)?;
        let open = self.open.insert(next);
        Ok(PassAttend {
            store: &mut self.store,
            plan,
            shape: &self.shape,
            seen: open.seen(self.shape.layers),
        })
    }

    /// Forgets rows that have nothing.
    fn compact(&mut self) {
        let chunks = &mut self.chunks;
        self.rows.retain(|_, row| {
            if row.len == 0 {
                row.table.drain(..).for_each(|c| chunks.give_back(c));
            }
            row.len > 0
        });
    }
}

impl KvCache for AlignedCache {
    fn len(&self, seq: SeqId) -> usize {
        self.rows.get(&seq).map_or(0, |row| row.len)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        Ok(Box::new(self.open(rows, phase, &Selection::default())?))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        let open = self.open.as_ref().ok_or(CacheError::NoPass)?;
        open.check_commit(keep, self.shape.layers)?;
        for (span, &keep) in open.rows().iter().zip(keep) {
            if let Some(row) = self.rows.get_mut(&span.seq) {
                row.len += keep;
            }
        }
        self.open = None;
        self.compact();
        Ok(())
    }

    fn rollback(&mut self) {
        self.open = None;
        self.compact();
    }

    fn evict(&mut self, seq: SeqId) {
        let Some(row) = self.rows.remove(&seq) else {
            return;
        };
        for chunk in row.table {
            self.chunks.give_back(chunk);
        }
        if let Some(open) = &mut self.open {
            open.forget(seq);
        }
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        check_range(seq, 0..self.len(seq), &range)?;
        let none = Row::default();
        let row = self.rows.get(&seq).unwrap_or(&none);
        let columns = row.pad + range.start..row.pad + range.end;
        let segment = self
            .shape
            .segment(&self.store, &row.table, columns, range.start);
        Ok(segment?)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        if self.open.is_some() {
            return Err(CacheError::PassOpen.into());
        }
        self.shape.check_segment(seq, self.len(seq), segment)?;
        if segment.range.is_empty() {
            return Ok(());
        }
        let pad = self.rows.get(&seq).map_or(0, |row| row.pad);
        let missing = self.missing(seq, pad + segment.range.end);
        self.reserve(missing)?;
        let row = self.rows.entry(seq).or_default();
        row.table
            .extend((0..missing).map_while(|_| self.chunks.take()));
        let start = pad + segment.range.start;
        for (layer, (k, v)) in segment.layers.iter().enumerate() {
            self.store
                .write(layer, &row.table, start, k.clone(), v.clone())
                .map_err(kernel)?;
        }
        row.len = segment.range.end;
        Ok(())
    }

    /// Whether there is room wherever the rows may come to lie: while they are prefilled, verified,
    /// and drafted for after that.
    fn fits(&self, rows: &[RowSpan]) -> bool {
        let places = self.places(rows, Phase::Prefill);
        let alone = places.len() == 1;
        let span = |seq| rows.iter().find(|row| row.seq == seq);
        let needs = places.iter().map(|(&seq, place)| {
            // Alone there is no padding; among others the row's tokens may come after the longest.
            let behind = span(seq).filter(|_| !alone).map_or(0, |row| row.len);
            self.missing(seq, place.columns + behind)
        });
        needs.sum::<usize>() <= self.chunks.available()
    }

    fn capacity(&self) -> Option<usize> {
        let limit = self.chunks.limit();
        (limit < usize::MAX).then(|| limit.saturating_mul(self.store.chunk_len()))
    }

    fn memory_bytes(&self) -> usize {
        self.store.memory_bytes()
    }
}
