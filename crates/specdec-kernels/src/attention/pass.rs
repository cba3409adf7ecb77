use core::ops::Range;
use std::sync::Arc;

use burn::tensor::Device;

use super::{derived::Derived, keys::Keys};
use crate::KernelError;

/// One row of a pass: where its columns live and which of them are new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionRow {
    /// Chunk numbers: column `c` of the row lives in chunk `table[c / chunk]`, at offset `c % chunk` (with
    /// [padding](AttentionPass::padded) of `p` columns, `c + p` takes the place of `c`).
    pub table: Vec<u32>,
    /// Position of the row's first query, which is the number of columns already stored.
    pub start: usize,
    /// Query tokens of the row.
    pub len: usize,
}

impl AttentionRow {
    /// Columns of the row once the pass is written.
    pub(super) fn end(&self) -> usize {
        self.start + self.len
    }
}

/// The queries whose attention is reported.
#[derive(Debug, Clone, Default)]
struct Asked {
    queries: Vec<usize>,
    /// Scores, not weights.
    scores: bool,
    /// One mean over all heads.
    averaged: bool,
}

/// The host's description of one pass over ragged rows, made once and used by every layer.
///
/// The pass's tokens lie packed, row after row; token `t` of row `r` has position `start + t` and sees the columns
/// `0 ..= start + t` of its row, or fewer under [`window`](Self::window) and [`keys`](Self::keys).
#[derive(Debug, Clone)]
pub struct AttentionPass {
    rows: Arc<[AttentionRow]>,
    padding: Arc<[usize]>,
    offsets: Arc<[usize]>,
    tokens: usize,
    chunk: usize,
    device: Device,
    window: Option<usize>,
    scale: Option<f32>,
    keys: Vec<Keys>,
    asked: Asked,
    write: bool,
    plain: bool,
    derived: Derived,
}

impl AttentionPass {
    /// A pass over `rows` in chunks of `chunk` columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::Zero`] for no rows, a row without tokens or a chunk length of zero, [`KernelError::Table`] when
    /// a row's chunks do not reach its end, [`KernelError::SharedCell`] when two tokens would be written to one cell.
    pub fn new(
        rows: Vec<AttentionRow>,
        chunk: usize,
        device: &Device,
    ) -> Result<Self, KernelError> {
        let padding = vec![0; rows.len()];
        Self::padded(rows, padding, chunk, device)
    }

    /// As [`new`](Self::new), for rows that do not begin where their chunks do: the first `padding[r]` places of row
    /// `r`'s chunks are not its own, its column 0 comes after them. Everything else counts columns from the row's own
    /// first one, as without padding, and so the result has the same bits.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`KernelError::Length`] when there is not one entry of `padding` for each row.
    pub fn padded(
        rows: Vec<AttentionRow>,
        padding: Vec<usize>,
        chunk: usize,
        device: &Device,
    ) -> Result<Self, KernelError> {
        if padding.len() != rows.len() {
            return Err(KernelError::Length {
                what: "padding of a pass, in rows",
                expected: rows.len(),
                got: padding.len(),
            });
        }
        some("number of rows of the pass", rows.len())?;
        some("chunk length of the pass", chunk)?;
        let mut offsets = Vec::with_capacity(rows.len());
        let mut tokens = 0;
        let mut cells = Vec::new();
        for (index, (row, pad)) in rows.iter().zip(&padding).enumerate() {
            some("number of tokens of a row", row.len)?;
            check_table(index, &row.table, pad.saturating_add(row.end()), chunk)?;
            offsets.push(tokens);
            tokens += row.len;
            let places = pad + row.start..pad + row.end();
            cells.extend(places.map(|c| (row.table[c / chunk], c % chunk)));
        }
        cells.sort_unstable();
        if let Some(pair) = cells.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(KernelError::SharedCell {
                chunk: pair[0].0,
                offset: pair[0].1,
            });
        }
        Ok(Self {
            keys: vec![Keys::default(); rows.len()],
            rows: rows.into(),
            padding: padding.into(),
            offsets: offsets.into(),
            tokens,
            chunk,
            device: device.clone(),
            window: None,
            scale: None,
            asked: Asked::default(),
            write: true,
            plain: false,
            derived: Derived::default(),
        })
    }

    /// A sliding window of `w` columns: the query at position `p` sees `p + 1 - w ..= p`. `None`: all of them; `Some(0)`
    /// counts as `Some(1)`, a query always sees itself.
    pub fn window(mut self, window: Option<usize>) -> Self {
        self.window = window.map(|columns| columns.max(1));
        self.derived = Derived::default();
        self
    }

    /// The factor of the scores; `1 / sqrt(D)` unless set.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// In `layer`, the queries of `row` see of the columns before `start` only `columns` (in any order) and the
    /// [`tail`](Self::tail). The columns of this pass they see as always.
    ///
    /// # Errors
    ///
    /// [`KernelError::Row`] for a row the pass does not have, [`KernelError::Column`] for a column not below `start`.
    pub fn keys(self, layer: usize, row: usize, columns: Vec<u32>) -> Result<Self, KernelError> {
        self.head_keys(layer, row, vec![columns])
    }

    /// As [`keys`](Self::keys), with a list for each key/value head: the query heads of its group see the columns of
    /// that list. A single list is for all heads.
    ///
    /// # Errors
    ///
    /// As [`keys`](Self::keys); [`KernelError::Zero`] for no list. That there is one for each head is checked by
    /// [`SlotStore::attend`](super::SlotStore::attend).
    pub fn head_keys(
        mut self,
        layer: usize,
        row: usize,
        mut lists: Vec<Vec<u32>>,
    ) -> Result<Self, KernelError> {
        self.check_row(row)?;
        some("number of key lists", lists.len())?;
        let start = self.rows[row].start;
        for columns in &mut lists {
            columns.sort_unstable();
            columns.dedup();
            if let Some(&last) = columns.last()
                && last as usize >= start
            {
                return Err(KernelError::Column {
                    row,
                    column: last as usize,
                    start,
                });
            }
        }
        self.keys[row].list(layer, lists);
        Ok(self)
    }

    /// Where a layer has a key list for `row`, its queries also see all columns from `from` to `start`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Row`] for a row the pass does not have, [`KernelError::Column`] for a `from` above `start`.
    pub fn tail(mut self, row: usize, from: usize) -> Result<Self, KernelError> {
        self.check_row(row)?;
        let start = self.rows[row].start;
        if from > start {
            return Err(KernelError::Column {
                row,
                column: from,
                start,
            });
        }
        self.keys[row].see_from(from);
        Ok(self)
    }

    /// Asks for the softmax weights of these queries, named by their place among the pass's tokens.
    ///
    /// # Errors
    ///
    /// [`KernelError::Query`] for a place beyond the pass.
    pub fn weights_of(self, queries: Vec<usize>) -> Result<Self, KernelError> {
        self.report(queries, false)
    }

    /// Asks for the scores of these queries in place of weights: products with the keys times the scale, before softmax.
    ///
    /// # Errors
    ///
    /// As [`weights_of`](Self::weights_of).
    pub fn scores_of(self, queries: Vec<usize>) -> Result<Self, KernelError> {
        self.report(queries, true)
    }

    /// Reports weights or scores as one mean over all query heads, W = 1, in place of one for each key/value head.
    pub fn average_heads(mut self, average: bool) -> Self {
        self.asked.averaged = average;
        self
    }

    fn report(mut self, queries: Vec<usize>, scores: bool) -> Result<Self, KernelError> {
        if let Some(&query) = queries.iter().find(|&&query| query >= self.tokens) {
            return Err(KernelError::Query {
                query,
                tokens: self.tokens,
            });
        }
        self.asked = Asked {
            queries,
            scores,
            ..self.asked
        };
        self.derived = Derived::default();
        Ok(self)
    }

    /// Whether the pass stores its keys and values (yes, unless set). Without, the cells must hold them already.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Composes attention of tensor operations even where the device has a kernel for it. This is the plain version,
    /// that kernels are compared with. The CPU backend's store has only its kernel, which this does not change.
    pub fn plain(mut self, plain: bool) -> Self {
        self.plain = plain;
        self
    }

    /// The rows.
    pub fn rows(&self) -> &[AttentionRow] {
        &self.rows
    }

    /// Tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The device of the pass's tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    pub(super) fn writes(&self) -> bool {
        self.write
    }

    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(super) fn derived(&self) -> &Derived {
        &self.derived
    }

    pub(super) fn queries_asked(&self) -> &[usize] {
        &self.asked.queries
    }

    /// Whether the queries asked for report scores.
    pub(super) fn reports_scores(&self) -> bool {
        self.asked.scores
    }

    /// Whether they report one mean over all heads.
    pub(super) fn averages_heads(&self) -> bool {
        self.asked.averaged
    }

    /// Means that each of them reports, W.
    pub(super) fn reported_heads(&self, kv_heads: usize) -> usize {
        if self.asked.averaged { 1 } else { kv_heads }
    }

    pub(super) fn scale_for(&self, head_dim: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (head_dim as f32).sqrt())
    }

    /// Places of the chunks of `row` before its column 0.
    pub(super) fn padding(&self, row: usize) -> usize {
        self.padding[row]
    }

    /// Block index of the first token of `row`.
    pub(super) fn offset(&self, row: usize) -> usize {
        self.offsets[row]
    }

    /// The row and the token within it of block index `query`.
    pub(super) fn locate(&self, query: usize) -> (usize, usize) {
        let row = self.offsets.partition_point(|&offset| offset <= query) - 1;
        (row, query - self.offsets[row])
    }

    /// Columns of the longest row that has a query asked for.
    pub(super) fn reported_columns(&self) -> usize {
        let ends = self.asked.queries.iter();
        ends.map(|&query| self.rows[self.locate(query).0].end())
            .max()
            .unwrap_or(0)
    }

    /// Columns of the sliding window, if there is one.
    pub(super) fn window_columns(&self) -> Option<usize> {
        self.window
    }

    /// The first column token `token` of `row` may see.
    pub(super) fn first_column(&self, row: usize, token: usize) -> usize {
        let position = self.rows[row].start + token;
        self.window_columns()
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The runs of columns below `start` that the queries of `row` see in `layer`, the window apart, ascending: once
    /// for all key/value heads, or for each.
    pub(super) fn earlier(&self, layer: usize, row: usize) -> Vec<Vec<Range<usize>>> {
        self.keys[row].earlier(layer, self.rows[row].start)
    }

    /// The key list of `row` in `layer` and the column from which on all are seen, which is above those of the list.
    /// Without a list: no columns, and 0. Of lists for each head: the first.
    #[cfg(feature = "burn-cubecl")]
    pub(super) fn listed(&self, layer: usize, row: usize) -> (&[u32], usize) {
        self.keys[row].listed(layer, self.rows[row].start)
    }

    /// Whether the heads of some row have key lists of their own in `layer`.
    #[cfg(feature = "burn-cubecl")]
    pub(super) fn has_head_lists(&self, layer: usize) -> bool {
        let mut lists = self.keys.iter().filter_map(|keys| keys.lists(layer));
        lists.any(|lists| lists > 1)
    }

    /// Key lists of a row in `layer`: one, or as many as there are key/value heads.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where it is another number.
    pub(super) fn check_lists(&self, layer: usize, kv_heads: usize) -> Result<(), KernelError> {
        let mut lists = self.keys.iter().filter_map(|keys| keys.lists(layer));
        match lists.find(|&lists| lists != 1 && lists != kv_heads) {
            Some(got) => Err(KernelError::Length {
                what: "key lists of a row, in heads",
                expected: kv_heads,
                got,
            }),
            None => Ok(()),
        }
    }

    /// Whether some row has a key list in `layer`.
    pub(super) fn sparse(&self, layer: usize) -> bool {
        self.keys.iter().any(|keys| keys.lists(layer).is_some())
    }

    fn check_row(&self, row: usize) -> Result<(), KernelError> {
        let rows = self.rows.len();
        if row < rows {
            Ok(())
        } else {
            Err(KernelError::Row { row, rows })
        }
    }
}

/// Refuses a size of zero.
fn some(what: &'static str, size: usize) -> Result<(), KernelError> {
    match size {
        0 => Err(KernelError::Zero { what }),
        _ => Ok(()),
    }
}

/// Whether `table` reaches `needed` columns.
pub(super) fn check_table(
    row: usize,
    table: &[u32],
    needed: usize,
    chunk: usize,
) -> Result<(), KernelError> {
    let held = table.len().saturating_mul(chunk);
    if held < needed {
        return Err(KernelError::Table { row, needed, held });
    }
    Ok(())
}
