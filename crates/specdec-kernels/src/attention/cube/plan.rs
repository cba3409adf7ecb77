//! A pass as the kernels read it: one list of whole numbers.
//!
//! First come records of [`RECORD`] numbers, one for each tile and then one for each query with weights asked for.
//! After them the chunk tables of the rows and the columns of key lists, which the records point to.
//!
//! The keys of a row are counted by an ordinal: the columns of its key list come first, then all columns from the tail
//! on, those of the pass included. Without a list, ordinals are columns.

use burn::tensor::{DType, Int, Tensor, TensorData};

use super::tile::Tile;
use crate::attention::AttentionPass;

/// Numbers of a record, in the order of `staged::Record`.
pub(super) const RECORD: usize = 13;

/// The tiles of a pass, for a layer or for all layers without key lists.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(super) numbers: Tensor<1, Int>,
    pub(super) tile: Tile,
    pub(super) tiles: usize,
    /// Queries with weights asked for.
    pub(super) asked: usize,
    /// Keys of the tile that has the most.
    pub(super) span: usize,
    /// Keys of the query with weights asked for that has the most.
    pub(super) asked_span: usize,
}

/// What the records of a row have in common.
struct Row {
    block: usize,
    start: usize,
    table: usize,
    pad: usize,
    list: usize,
    listed: usize,
    /// A column from the tail on, less its ordinal.
    shift: usize,
    chunk: usize,
    window: usize,
}

impl Plan {
    /// The plan of `layer`, or of any layer without key lists.
    pub(super) fn new(pass: &AttentionPass, layer: Option<usize>, tile: Tile) -> Self {
        let (rows, chunk) = (pass.rows(), pass.chunk());
        let counts = rows.iter().map(|row| row.len * tile.group);
        let tiles: usize = counts.map(|count| count.div_ceil(tile.queries)).sum();
        let asked = pass.queries_asked();
        let mut trailer = Vec::new();
        let base = (tiles + asked.len()) * RECORD;
        let mut described = Vec::with_capacity(rows.len());
        let mut records = Vec::with_capacity(base);
        let mut span = 0;
        for (number, row) in rows.iter().enumerate() {
            let (columns, tail) = match layer {
                Some(layer) => pass.listed(layer, number),
                None => (&[][..], 0),
            };
            let table = base + trailer.len();
            let used = (pass.padding(number) + row.end()).div_ceil(chunk);
            trailer.extend(row.table[..used].iter().map(|&chunk| chunk as usize));
            let list = base + trailer.len();
            trailer.extend(columns.iter().map(|&column| column as usize));
            let description = Row {
                block: pass.offset(number),
                start: row.start,
                table,
                pad: pass.padding(number),
                list,
                listed: columns.len(),
                shift: tail - columns.len(),
                chunk,
                window: pass.window_columns().unwrap_or(i32::MAX as usize),
            };
            for first in (0..row.len * tile.group).step_by(tile.queries) {
                let count = tile.queries.min(row.len * tile.group - first);
                let first_column = pass.first_column(number, first / tile.group);
                let keys = description.record(
                    (first, count, tile.group),
                    (first_column, columns, tail),
                    &mut records,
                );
                span = span.max(keys);
            }
            described.push((description, columns, tail));
        }
        let mut asked_span = 0;
        for &query in asked {
            let (number, token) = pass.locate(query);
            let (row, columns, tail) = &described[number];
            let keys = row.record(
                (token * tile.group, tile.group, tile.group),
                (pass.first_column(number, token), columns, *tail),
                &mut records,
            );
            asked_span = asked_span.max(keys);
        }
        records.append(&mut trailer);
        let numbers: Vec<i32> = records.into_iter().map(|number| number as i32).collect();
        let len = numbers.len();
        Self {
            numbers: Tensor::from_data(
                TensorData::new(numbers, [len]),
                (pass.device(), DType::I32),
            ),
            tile,
            tiles,
            asked: asked.len(),
            span,
            asked_span,
        }
    }
}

impl Row {
    /// Writes the record of `count` queries from the row's `first` on, and returns how many keys they have.
    fn record(
        &self,
        (first, count, group): (usize, usize, usize),
        (first_column, columns, tail): (usize, &[u32], usize),
        records: &mut Vec<usize>,
    ) -> usize {
        let last = (first + count - 1) / group;
        let from = if first_column < tail {
            columns.partition_point(|&column| (column as usize) < first_column)
        } else {
            first_column - self.shift
        };
        let to = self.start + last + 1 - self.shift;
        records.extend([
            self.block,
            first,
            count,
            self.start,
            self.table,
            self.pad,
            self.list,
            self.listed,
            self.shift,
            self.chunk,
            self.window,
            from,
            to,
        ]);
        to - from
    }
}
