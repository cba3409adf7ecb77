//! What the queries of a band gather, one block of columns after the other.

use super::report::Kept;
use crate::vector::Line;

/// Columns of a block. Softmax is taken block by block, and the blocks joined in order; which block a column belongs
/// to depends on its number only.
pub(super) const BLOCK: usize = 256;

/// Dimensions, or columns, computed between two looks at [`Ahead`](super::columns::Ahead).
pub(super) const STEP: usize = 8;

/// Queries scored together.
pub(super) const QUERIES: usize = 6;

/// The scores of one query in a block, then its weights.
pub(super) type Scores = [f32; BLOCK];

/// What some queries have gathered: for each, softmax over the columns seen so far, not yet divided by its sum.
#[derive(Debug, Clone)]
pub(super) struct Gathering {
    /// The greatest score and the sum of `exp(score - greatest)`.
    pub(super) folds: Vec<(f32, f32)>,
    /// The same sum over the values, some lines for each query.
    pub(super) out: Vec<Line>,
    /// What the queries that were asked for report.
    pub(super) kept: Kept,
}

impl Gathering {
    pub(super) fn new(queries: usize, lines: usize) -> Self {
        Self {
            folds: vec![(f32::NEG_INFINITY, 0.0); queries],
            out: vec![Line::ZERO; queries * lines],
            kept: Kept::default(),
        }
    }
}
