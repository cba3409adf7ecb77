//! What can be wrong with the input of a kernel.

use crate::quant::BlockFormat;

/// Why a kernel refused its input. Every variant carries the numbers that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A size that must be at least one is zero.
    #[error("{what} is zero")]
    Zero {
        /// The size in question.
        what: &'static str,
    },
    /// A buffer is shorter or longer than its shape asks for.
    #[error("{what}: {expected} expected, {got} given")]
    Length {
        /// The buffer and its unit.
        what: &'static str,
        /// What the shape asks for.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// A tensor has another shape than the call asks for.
    #[error("{what}: shape {expected:?} expected, {got:?} given")]
    Shape {
        /// The tensor in question.
        what: &'static str,
        /// The shape the call asks for.
        expected: Vec<usize>,
        /// The shape it has.
        got: Vec<usize>,
    },
    /// The rows of a weight are not a whole number of quantisation blocks.
    #[error("{format} stores blocks of {block_len} values, which do not divide a row of {row}")]
    Block {
        /// The format of the weight.
        format: BlockFormat,
        /// Values in one block.
        block_len: usize,
        /// Values in one row.
        row: usize,
    },
    /// The query heads are not a multiple of the key/value heads.
    #[error("{heads} query heads are no multiple of {kv_heads} key/value heads")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key/value heads.
        kv_heads: usize,
    },
    /// A layer the store does not have.
    #[error("layer {layer} of a store with {layers} layers")]
    Layer {
        /// The layer asked for.
        layer: usize,
        /// Layers of the store.
        layers: usize,
    },
    /// A chunk number beyond the store's end.
    #[error("chunk {chunk} of a store with {chunks} chunks")]
    Chunk {
        /// The chunk asked for.
        chunk: u32,
        /// Chunks of the store.
        chunks: usize,
    },
    /// A chunk table that does not reach the columns asked for.
    #[error("row {row}: {needed} columns asked for, its chunks hold {held}")]
    Table {
        /// The row of the pass (0 where there is only one).
        row: usize,
        /// Columns asked for.
        needed: usize,
        /// Columns the table's chunks hold.
        held: usize,
    },
    /// Two tokens of one pass would be written to the same cell.
    #[error("two tokens are written to chunk {chunk}, offset {offset}")]
    SharedCell {
        /// The chunk.
        chunk: u32,
        /// The column within the chunk.
        offset: usize,
    },
    /// A row that the pass does not have.
    #[error("row {row} of a pass with {rows} rows")]
    Row {
        /// The row asked for.
        row: usize,
        /// Rows of the pass.
        rows: usize,
    },
    /// A key list names a column that is not among the committed ones.
    #[error("row {row}: column {column} is not among its {start} committed columns")]
    Column {
        /// The row of the pass.
        row: usize,
        /// The column named.
        column: usize,
        /// Committed columns of the row.
        start: usize,
    },
    /// Weights were asked for of a query the pass does not have.
    #[error("query {query} of a pass with {tokens} tokens")]
    Query {
        /// The block index asked for.
        query: usize,
        /// Tokens of the pass.
        tokens: usize,
    },
    /// The chunk lengths of a pass and of a store differ.
    #[error("a pass over chunks of {pass} columns, a store with chunks of {store}")]
    ChunkLength {
        /// Chunk length of the pass.
        pass: usize,
        /// Chunk length of the store.
        store: usize,
    },
}
