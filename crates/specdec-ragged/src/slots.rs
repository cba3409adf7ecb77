use crate::attend::{PassAttend, Plan};
use crate::chunks::Chunks;
use crate::model_shape::{ModelShape, Passes, check_range, kernel};
use crate::selective::see;
use crate::transaction::Transaction;
use specdec_core::{
    Attend, BuildError, CacheError, KvCache, KvSegment, ModelSpec, Phase, Result, RowSpan,
    Selection, SeqId,
};
use specdec_kernels::{AttentionRow, SlotStore};
use std::collections::HashMap;
use std::ops::Range;

/// How a [`SlotCache`] uses memory.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `chunk` | 64 | columns (positions) of a chunk, the unit of memory; 1 or more |
/// | `preallocate` | 0 | positions to make room for at once, over all sequences |
/// | `max_positions` | none | most positions over all sequences, rounded up to chunks |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotOptions {
    /// Columns of a chunk.
    pub chunk: usize,
    /// Positions to make room for at once.
    pub preallocate: usize,
    /// Most positions over all sequences.
    pub max_positions: Option<usize>,
}

impl SlotOptions {
    /// Most chunks; `chunk` is not 0.
    pub(crate) fn limit(&self) -> usize {
        self.max_positions
            .map_or(usize::MAX, |n| n.div_ceil(self.chunk))
    }
}

impl Default for SlotOptions {
    fn default() -> Self {
        Self {
            chunk: 64,
            preallocate: 0,
            max_positions: None,
        }
    }
}

/// The memory of one sequence: column == position, in chunks of the store.
#[derive(Debug, Default)]
struct Slot {
    /// Column `c` lives in chunk `table[c / chunk]`. Entries below `dropped / chunk` are not owned.
    table: Vec<u32>,
    /// Committed columns.
    len: usize,
    /// Columns that slid out of every layer's window and were given back; a multiple of `chunk`.
    dropped: usize,
}

/// The cache that never moves anything: each sequence owns a slot in which column and position are
/// the same, rows write at their own offsets, and taking back a draft is a length that does not
/// grow.
///
/// Why stale entries of rejected drafts do no harm: they lie at columns at or beyond the committed
/// length, a query at position p reads columns up to p only, and every column up to p was written
/// by this pass or committed before it.
///
/// Memory grows by chunks as sequences grow and is used again when they end. Where every layer has
/// a sliding window, chunks that no query can reach any more are given back.
pub struct SlotCache {
    store: SlotStore,
    chunks: Chunks,
    slots: HashMap<SeqId, Slot>,
    open: Option<Transaction>,
    shape: ModelShape,
    /// The widest window, when every layer has one.
    reach: Option<usize>,
}

impl std::fmt::Debug for SlotCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotCache")
            .field("sequences", &self.slots.len())
            .field("chunks", &self.chunks)
            .field("chunk", &self.store.chunk_len())
            .finish_non_exhaustive()
    }
}

impl SlotCache {
    /// A cache for a model, with the default options.
    ///
    /// # Errors
    /// As [`Self::with_options`].
    pub fn new(spec: &ModelSpec) -> Result<Self> {
        Self::with_options(spec, &SlotOptions::default())
    }

    /// A cache for a model.
    ///
    /// # Errors
    /// [`BuildError::Setting`] for a chunk of 0 columns; [`CacheError::Kernel`] for a model without
    /// layers or heads; [`CacheError::Full`] when more is preallocated than allowed.
    pub fn with_options(spec: &ModelSpec, options: &SlotOptions) -> Result<Self> {
        if options.chunk == 0 {
            return Err(BuildError::Setting {
                setting: "chunk",
                value: "0".into(),
                allowed: "1 or more",
            }
            .into());
        }
        let shape = ModelShape::new(spec);
        let store = shape.store(options.chunk, &spec.device)?;
        let mut cache = Self {
            store,
            chunks: Chunks::new(options.limit()),
            slots: HashMap::new(),
            open: None,
            reach: shape.reach(),
            shape,
        };
        cache.reserve(options.preallocate.div_ceil(options.chunk))?;
        Ok(cache)
    }

    /// Positions that could be stored without growing the store, over all sequences, in chunks that
    /// belong to nobody.
    pub fn free_positions(&self) -> usize {
        self.chunks.free() * self.store.chunk_len()
    }

    /// Positions that could still be stored within the limit, in chunks that belong to nobody.
    pub fn available_positions(&self) -> usize {
        self.chunks
            .available()
            .saturating_mul(self.store.chunk_len())
    }

    /// Positions a sequence holds memory for, used or not.
    pub fn held_positions(&self, seq: SeqId) -> usize {
        self.slots.get(&seq).map_or(0, |slot| {
            slot.table.len() * self.store.chunk_len() - slot.dropped
        })
    }

    /// Bytes of keys and values of one position, all layers.
    pub fn bytes_per_position(&self) -> usize {
        self.store.bytes_per_chunk() / self.store.chunk_len()
    }

    /// Makes room for `wanted` more chunks.
    fn reserve(&mut self, wanted: usize) -> Result<()> {
        let total = self.chunks.grown_for(wanted)?;
        if total > self.chunks.total() {
            self.store.reserve(total);
            self.chunks.grow(total);
        }
        Ok(())
    }

    /// Chunks to add so that a slot reaches `end` columns.
    fn missing(&self, seq: SeqId, end: usize) -> usize {
        let have = self.slots.get(&seq).map_or(0, |slot| slot.table.len());
        end.div_ceil(self.store.chunk_len()).saturating_sub(have)
    }

    /// Gives a slot the chunks for columns up to `end`; there is room for them.
    fn extend(&mut self, seq: SeqId, end: usize) {
        let missing = self.missing(seq, end);
        let slot = self.slots.entry(seq).or_default();
        slot.table
            .extend((0..missing).map_while(|_| self.chunks.take()));
    }

    /// Gives back what slid out of every window. The next query is at position `len` and sees
    /// columns from `len + 1 - reach` on.
    fn slide(&mut self, seq: SeqId) {
        let chunk = self.store.chunk_len();
        let (Some(reach), Some(slot)) = (self.reach, self.slots.get_mut(&seq)) else {
            return;
        };
        let dead = (slot.len + 1).saturating_sub(reach) / chunk * chunk;
        if dead <= slot.dropped {
            return;
        }
        let (from, to) = (slot.dropped / chunk, dead / chunk);
        for entry in from..to {
            self.chunks.give_back(slot.table[entry]);
        }
        // No query reaches these columns; should a kernel gather them to mask them, it reads this
        // sequence's own memory.
        let own = slot.table.get(to).copied().unwrap_or(0);
        slot.table[..to].fill(own);
        slot.dropped = dead;
    }

    fn row_of(&self, seq: SeqId, start: usize, len: usize) -> AttentionRow {
        let table = self
            .slots
            .get(&seq)
            .map(|slot| slot.table.clone())
            .unwrap_or_default();
        AttentionRow { table, start, len }
    }

    fn passes(&self, rows: &[RowSpan], selection: &Selection) -> Result<Passes, CacheError> {
        let rows: Vec<AttentionRow> = rows
            .iter()
            .map(|row| self.row_of(row.seq, row.start, row.len))
            .collect();
        let padding = vec![0; rows.len()];
        self.shape
            .passes(rows, padding, &self.store, |pass| see(pass, selection))
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
        let wanted = rows
            .iter()
            .map(|row| self.missing(row.seq, row.start + row.len))
            .sum();
        self.reserve(wanted)?;
        for row in rows {
            self.extend(row.seq, row.start + row.len);
        }
        let passes = self.passes(rows, selection)?;
        let plan = Plan::new(passes, selection)?;
        let open = self.open.insert(next);
        Ok(PassAttend {
            store: &mut self.store,
            plan,
            shape: &self.shape,
            seen: open.seen(self.shape.layers),
        })
    }

    fn held(&self, seq: SeqId) -> Range<usize> {
        self.slots
            .get(&seq)
            .map_or(0..0, |slot| slot.dropped..slot.len)
    }
}

impl KvCache for SlotCache {
    fn len(&self, seq: SeqId) -> usize {
        self.slots.get(&seq).map_or(0, |slot| slot.len)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        Ok(Box::new(self.open(rows, phase, &Selection::default())?))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        let open = self.open.as_ref().ok_or(CacheError::NoPass)?;
        open.check_commit(keep, self.shape.layers)?;
        let rows: Vec<RowSpan> = open.rows().to_vec();
        self.open = None;
        for (row, &keep) in rows.iter().zip(keep) {
            if let Some(slot) = self.slots.get_mut(&row.seq) {
                slot.len += keep;
            }
            self.slide(row.seq);
        }
        Ok(())
    }

    fn rollback(&mut self) {
        self.open = None;
    }

    fn evict(&mut self, seq: SeqId) {
        let Some(slot) = self.slots.remove(&seq) else {
            return;
        };
        let owned = slot.dropped / self.store.chunk_len();
        for chunk in slot.table.into_iter().skip(owned) {
            self.chunks.give_back(chunk);
        }
        if let Some(open) = &mut self.open {
            open.forget(seq);
        }
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        check_range(seq, self.held(seq), &range)?;
        let table = self.slots.get(&seq).map_or(&[][..], |slot| &slot.table);
        let from = range.start;
        Ok(self.shape.segment(&self.store, table, range, from)?)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        if self.open.is_some() {
            return Err(CacheError::PassOpen.into());
        }
        self.shape.check_segment(seq, self.len(seq), segment)?;
        if segment.range.is_empty() {
            return Ok(());
        }
        let Range { start, end } = segment.range;
        self.reserve(self.missing(seq, end))?;
        self.extend(seq, end);
        let table = self.slots[&seq].table.clone();
        for (layer, (k, v)) in segment.layers.iter().enumerate() {
            self.store
                .write(layer, &table, start, k.clone(), v.clone())
                .map_err(kernel)?;
        }
        if let Some(slot) = self.slots.get_mut(&seq) {
            slot.len = end;
        }
        self.slide(seq);
        Ok(())
    }

    fn fits(&self, rows: &[RowSpan]) -> bool {
        let wanted: usize = rows
            .iter()
            .map(|row| self.missing(row.seq, row.start + row.len))
            .sum();
        wanted <= self.chunks.available()
    }

    fn capacity(&self) -> Option<usize> {
        // A sequence that slides gives memory back as it grows.
        let bounded = self.reach.is_none() && self.chunks.limit() < usize::MAX;
        bounded.then(|| self.chunks.limit().saturating_mul(self.store.chunk_len()))
    }

    fn memory_bytes(&self) -> usize {
        self.store.memory_bytes()
    }
}
