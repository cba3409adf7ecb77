use crate::{Attend, CacheError, KvCache, Phase, Result, RowSpan};
use burn::prelude::*;
use std::sync::Arc;
use thiserror::Error;

/// What the queries of one row see of the entries before its first token.
///
/// A layer with a list sees the listed positions and everything from the tail on; a layer without
/// one sees all. The row's own tokens of the pass are seen as always: each by itself and by those
/// after it. A sliding window of the model takes away from that, never adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowKeys {
    layers: Vec<Option<Arc<[u32]>>>,
    tail: usize,
}

impl RowKeys {
    /// One entry a layer, `None` for one that sees all (layers beyond the end do too). Lists are
    /// ascending and below `tail`, which is at most the row's first position.
    pub fn new(layers: Vec<Option<Arc<[u32]>>>, tail: usize) -> Self {
        Self { layers, tail }
    }

    /// The positions listed for a layer; `None` when it sees all.
    pub fn layer(&self, layer: usize) -> Option<&[u32]> {
        self.layers.get(layer)?.as_deref()
    }

    /// Positions from here on are seen whatever is listed.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// Layers with a list, each with its list.
    pub fn lists(&self) -> impl Iterator<Item = (usize, &[u32])> + '_ {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(layer, list)| Some((layer, list.as_deref()?)))
    }

    /// Bytes of the lists.
    pub fn memory_bytes(&self) -> usize {
        self.lists().map(|(_, list)| size_of_val(list)).sum()
    }

    fn check(&self, row: usize, start: usize, layers: usize) -> Result<(), SelectionError> {
        let tail = self.tail;
        if tail > start {
            return Err(SelectionError::Tail { row, tail, start });
        }
        if let Some((layer, _)) = self.lists().find(|(layer, _)| *layer >= layers) {
            return Err(SelectionError::Layer { row, layer, layers });
        }
        for (layer, list) in self.lists() {
            let late = |i: &usize| list[*i] as usize >= tail || (*i > 0 && list[*i] <= list[i - 1]);
            if let Some(index) = (0..list.len()).find(late) {
                return Err(SelectionError::Key {
                    row,
                    layer,
                    index,
                    key: list[index],
                    tail,
                });
            }
        }
        Ok(())
    }
}

/// Over which heads reported weights are averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HeadWeights {
    /// All query heads: one weight for each key, `[Q, 1, S]`.
    #[default]
    Mean,
    /// The query heads of each key/value head: `[Q, Hkv, S]`.
    PerKvHead,
}

/// What a pass attends to, and whose attention it reports. The default attends to everything and
/// reports nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// One entry a row of the pass; rows beyond the end, and `None`, see everything.
    pub rows: Vec<Option<Arc<RowKeys>>>,
    /// Queries whose softmax weights are wanted, by their place among the tokens of the block.
    pub queries: Vec<usize>,
    /// How their heads are put together.
    pub heads: HeadWeights,
}

impl Selection {
    /// Whether it fits a pass over these rows through a cache of `layers` layers.
    ///
    /// # Errors
    /// The [`SelectionError`] that names what does not fit.
    pub fn check(&self, rows: &[RowSpan], layers: usize) -> Result<(), SelectionError> {
        let (given, of) = (self.rows.len(), rows.len());
        if given > of {
            return Err(SelectionError::Rows { given, rows: of });
        }
        for (row, (keys, span)) in self.rows.iter().zip(rows).enumerate() {
            if let Some(keys) = keys {
                keys.check(row, span.start, layers)?;
            }
        }
        let tokens = rows.iter().map(|row| row.len).sum();
        match self.queries.iter().find(|&&query| query >= tokens) {
            Some(&query) => Err(SelectionError::Query { query, tokens }),
            None => Ok(()),
        }
    }

    /// What a row of the pass sees; `None` when that is everything.
    pub fn row(&self, row: usize) -> Option<&RowKeys> {
        self.rows.get(row)?.as_deref()
    }
}

/// Why a selection does not fit a pass.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// More rows than the pass has.
    #[error("the selection has {given} rows, the pass {rows}")]
    Rows {
        /// Rows of the selection.
        given: usize,
        /// Rows of the pass.
        rows: usize,
    },
    /// A tail that begins after the row.
    #[error("the tail of row {row} begins at {tail}, the row at {start}")]
    Tail {
        /// Row in the pass.
        row: usize,
        /// Where the tail begins.
        tail: usize,
        /// Position of the row's first token.
        start: usize,
    },
    /// A list for a layer that does not exist.
    #[error("row {row} has keys for layer {layer} of {layers}")]
    Layer {
        /// Row in the pass.
        row: usize,
        /// The layer.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// A key that is in the tail, or not above the one before it.
    #[error(
        "key {key} at index {index} of row {row} in layer {layer}: keys are ascending and below {tail}"
    )]
    Key {
        /// Row in the pass.
        row: usize,
        /// The layer.
        layer: usize,
        /// Index in the list.
        index: usize,
        /// The position listed.
        key: u32,
        /// Where the tail begins.
        tail: usize,
    },
    /// Weights of a query that the pass does not have.
    #[error("weights are asked of query {query}, the pass has {tokens} tokens")]
    Query {
        /// Its place in the block.
        query: usize,
        /// Tokens of the pass.
        tokens: usize,
    },
}

impl From<SelectionError> for crate::Error {
    fn from(error: SelectionError) -> Self {
        CacheError::Selection(error).into()
    }
}

/// What a layer's attention gives, and what it weighed.
#[derive(Debug, Clone)]
pub struct Weighed {
    /// The attended values, `[T, H, D]`.
    pub out: Tensor<3>,
    /// Softmax weights of the queries asked for, in the order asked, as [`HeadWeights`] says:
    /// column `s` is position `s` of the query's own row, 0 where the query does not look; S is the
    /// end of the longest row asked about, or more. `None` when no query was asked for.
    pub weights: Option<Tensor<3>>,
}

/// Attention of a pass whose weights can be had.
pub trait SelectiveAttend: Attend {
    /// As [`Attend::attend`], and reports the weights of the selection's queries in this layer. A
    /// layer attends once a pass, through this or the plain call.
    ///
    /// # Errors
    /// As [`Attend::attend`].
    fn attend_weighed(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Weighed>;
}

/// A cache whose passes can attend to a part of what it holds, and tell what attention weighed.
///
/// Attending to a part is for drafts. What is computed so is no longer exact: a caller that commits
/// such a pass breaks the promise of [`KvCache`].
pub trait SelectiveCache: KvCache {
    /// As [`KvCache::begin`], with a selection. With the default selection, or one that lists every
    /// position, attention has the bits of a pass begun without.
    ///
    /// # Errors
    /// As [`KvCache::begin`], and [`CacheError::Selection`]; nothing has changed then.
    fn begin_selective<'a>(
        &'a mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<Box<dyn SelectiveAttend + 'a>>;
}
