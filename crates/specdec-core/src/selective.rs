use crate::{Attend, CacheError, KvCache, Phase, Result, RowSpan};
use burn::prelude::*;
use std::sync::Arc;
use thiserror::Error;

/// What the queries of one row see of the entries before its first token.
///
/// A layer with a list sees the listed positions and everything from the tail on; a layer without
/// one sees all. A list is for all heads, or there is one for each key/value head and the query heads
/// of its group. The row's own tokens of the pass are seen as always: each by itself and by those
/// after it. A sliding window of the model takes away from that, never adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowKeys {
    /// One list, or as many as there are key/value heads.
    layers: Vec<Option<Vec<Arc<[u32]>>>>,
    tail: usize,
}

impl RowKeys {
    /// One entry a layer, `None` for one that sees all (layers beyond the end do too). Lists are
    /// ascending and below `tail`, which is at most the row's first position.
    pub fn new(layers: Vec<Option<Arc<[u32]>>>, tail: usize) -> Self {
        let shared = layers.into_iter().map(|list| Some(vec![list?]));
        Self::by_head(shared.collect(), tail)
    }

    /// As [`new`](Self::new), with one list for each key/value head of a layer that has any.
    pub fn by_head(layers: Vec<Option<Vec<Arc<[u32]>>>>, tail: usize) -> Self {
        Self { layers, tail }
    }

    /// The positions listed for a layer, one list for all heads or one for each key/value head; `None`
    /// when it sees all.
    pub fn layer(&self, layer: usize) -> Option<&[Arc<[u32]>]> {
        self.layers.get(layer)?.as_deref()
    }

    /// Positions from here on are seen whatever is listed.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// Layers with lists, each with its one list or those of its key/value heads.
    pub fn lists(&self) -> impl Iterator<Item = (usize, &[Arc<[u32]>])> + '_ {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(layer, lists)| Some((layer, lists.as_deref()?)))
    }

    /// Bytes of the lists.
    pub fn memory_bytes(&self) -> usize {
        let lists = self.lists().flat_map(|(_, lists)| lists);
        lists.map(|list| size_of_val(&**list)).sum()
    }

    fn check(
        &self,
        row: usize,
        start: usize,
        (layers, kv_heads): (usize, usize),
    ) -> Result<(), SelectionError> {
        let tail = self.tail;
        if tail > start {
            return Err(SelectionError::Tail { row, tail, start });
        }
        if let Some((layer, _)) = self.lists().find(|(layer, _)| *layer >= layers) {
            return Err(SelectionError::Layer { row, layer, layers });
        }
        for (layer, lists) in self.lists() {
            if lists.len() != 1 && lists.len() != kv_heads {
                return Err(SelectionError::Heads {
                    row,
                    layer,
                    lists: lists.len(),
                    kv_heads,
                });
            }
            for list in lists {
                let late =
                    |i: &usize| list[*i] as usize >= tail || (*i > 0 && list[*i] <= list[i - 1]);
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
        }
        Ok(())
    }
}

/// How what a query makes of a key is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Score {
    /// Softmax weights over everything that the query sees.
    #[default]
    Weights,
    /// What softmax is taken of: the products of query and key, times the scale of attention.
    Logits,
}

/// Over which heads reported scores are averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HeadWeights {
    /// All query heads: one score for each key, `[Q, 1, S]`.
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
    /// Queries whose scores are wanted, by their place among the tokens of the block.
    pub queries: Vec<usize>,
    /// Which scores.
    pub score: Score,
    /// How their heads are put together.
    pub heads: HeadWeights,
}

impl Selection {
    /// Whether it fits a pass over these rows through a cache of `layers` layers with `kv_heads`
    /// key/value heads each.
    ///
    /// # Errors
    /// The [`SelectionError`] that names what does not fit.
    pub fn check(
        &self,
        rows: &[RowSpan],
        layers: usize,
        kv_heads: usize,
    ) -> Result<(), SelectionError> {
        let (given, of) = (self.rows.len(), rows.len());
        if given > of {
            return Err(SelectionError::Rows { given, rows: of });
        }
        for (row, (keys, span)) in self.rows.iter().zip(rows).enumerate() {
            if let Some(keys) = keys {
                keys.check(row, span.start, (layers, kv_heads))?;
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
    /// Neither one list nor one for each key/value head.
    #[error("row {row} has {lists} key lists for layer {layer}, which has {kv_heads} heads")]
    Heads {
        /// Row in the pass.
        row: usize,
        /// The layer.
        layer: usize,
        /// Lists it has.
        lists: usize,
        /// Key/value heads of the cache.
        kv_heads: usize,
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
    /// Scores of a query that the pass does not have.
    #[error("scores are asked of query {query}, the pass has {tokens} tokens")]
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

/// What a layer's attention gives, and how it scored keys.
#[derive(Debug, Clone)]
pub struct Weighed {
    /// The attended values, `[T, H, D]`.
    pub out: Tensor<3>,
    /// Scores of the queries asked for, in the order asked, as [`Score`] and [`HeadWeights`] say:
    /// column `s` is position `s` of the query's own row, 0 where the query does not look; S is the
    /// end of the longest row asked about, or more. `None` when no query was asked for.
    pub weights: Option<Tensor<3>>,
}

/// Attention of a pass whose scores can be had.
pub trait SelectiveAttend: Attend {
    /// As [`Attend::attend`], and reports the scores of the selection's queries in this layer. A
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
