//! The CPU's store: chunks in host memory, read in place.
//!
//! A chunk holds, for each layer and key/value head, its columns in tiles of sixteen. Keys lie dimension by dimension,
//! so that sixteen columns are the lanes of a vector and a score is one chain of fused multiply-adds along D. Values lie
//! column by column, so that dimensions are the lanes and an output is one chain along the columns.

use core::ops::Range;

use super::store::{Shift, StoreShape};
use crate::vector::Line;

/// Columns of a tile.
pub(super) const TILE: usize = 16;

/// Keys and values of all layers.
#[derive(Debug)]
pub(super) struct HostStore {
    shape: StoreShape,
    chunks: Vec<Box<[Line]>>,
}

impl HostStore {
    pub(super) fn new(shape: StoreShape) -> Self {
        Self {
            shape,
            chunks: Vec::new(),
        }
    }

    pub(super) fn shape(&self) -> StoreShape {
        self.shape
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    pub(super) fn bytes_per_chunk(&self) -> usize {
        self.shape.layers * self.shape.kv_heads * self.head_lines() * size_of::<Line>()
    }

    pub(super) fn reserve(&mut self, chunks: usize) {
        let lines = self.bytes_per_chunk() / size_of::<Line>();
        let missing = chunks.saturating_sub(self.chunks.len());
        let new = (0..missing).map(|_| vec![Line::ZERO; lines].into_boxed_slice());
        self.chunks.extend(new);
    }

    /// Lines of a chunk's columns of one head: the values, padded to whole vectors.
    pub(super) fn value_lines(&self) -> usize {
        self.shape.head_dim.div_ceil(16)
    }

    fn tiles(&self) -> usize {
        self.shape.chunk.div_ceil(TILE)
    }

    fn key_lines(&self) -> usize {
        self.tiles() * self.shape.head_dim
    }

    /// Lines of one layer and head in a chunk: the keys, then the values.
    fn head_lines(&self) -> usize {
        self.key_lines() + self.shape.chunk * self.value_lines()
    }

    fn head_range(&self, layer: usize, head: usize) -> Range<usize> {
        let start = (layer * self.shape.kv_heads + head) * self.head_lines();
        start..start + self.head_lines()
    }

    /// A chunk's keys of one head (`[tiles][D]` lines of sixteen columns) and values (`[chunk][D / 16]` lines).
    pub(super) fn head(&self, chunk: u32, layer: usize, head: usize) -> (&[Line], &[Line]) {
        self.chunks[chunk as usize][self.head_range(layer, head)].split_at(self.key_lines())
    }

    /// Writes keys and values, `[len, Hkv, D]` each, to the row's columns from `start` on.
    pub(super) fn write(
        &mut self,
        layer: usize,
        table: &[u32],
        start: usize,
        (k, v): (&[f32], &[f32]),
    ) {
        let StoreShape {
            kv_heads,
            head_dim,
            chunk,
            ..
        } = self.shape;
        let width = kv_heads * head_dim;
        let (key_lines, value_lines) = (self.key_lines(), self.value_lines());
        let columns = k.chunks_exact(width).zip(v.chunks_exact(width));
        for (column, (k, v)) in (start..).zip(columns) {
            let offset = column % chunk;
            for head in 0..kv_heads {
                let range = self.head_range(layer, head);
                let lines = &mut self.chunks[table[column / chunk] as usize][range];
                let (keys, values) = lines.split_at_mut(key_lines);
                let own = head * head_dim..(head + 1) * head_dim;
                let tile = &mut keys[offset / TILE * head_dim..][..head_dim];
                for (line, &value) in tile.iter_mut().zip(&k[own.clone()]) {
                    line.0[offset % TILE] = value;
                }
                let values = &mut values[offset * value_lines..][..value_lines];
                for (line, part) in values.iter_mut().zip(v[own].chunks(16)) {
                    line.0[..part.len()].copy_from_slice(part);
                }
            }
        }
    }

    /// Moves columns of one row.
    pub(super) fn shift(&mut self, shift: &Shift) {
        let StoreShape {
            layers,
            kv_heads,
            head_dim,
            chunk,
        } = self.shape;
        let (key_lines, value_lines) = (self.key_lines(), self.value_lines());
        let len = shift.from.len();
        // One head at a time: keys `[D][len]`, values `[len][D / 16]`.
        let mut held = (
            vec![0.0; head_dim * len],
            vec![Line::ZERO; len * value_lines],
        );
        for (layer, head) in (0..layers).flat_map(|l| (0..kv_heads).map(move |h| (l, h))) {
            let range = self.head_range(layer, head);
            for piece in tile_pieces(shift.from.clone(), chunk) {
                let lines = &self.chunks[shift.table[piece.chunk] as usize][range.clone()];
                let (keys, values) = lines.split_at(key_lines);
                for d in 0..head_dim {
                    let to = &mut held.0[d * len + piece.at..][..piece.len()];
                    to.copy_from_slice(&keys[piece.tile * head_dim + d].0[piece.lanes.clone()]);
                }
                let from =
                    piece.offset() * value_lines..(piece.offset() + piece.len()) * value_lines;
                held.1[piece.at * value_lines..][..from.len()].copy_from_slice(&values[from]);
            }
            for piece in tile_pieces(shift.to..shift.to + len, chunk) {
                let lines = &mut self.chunks[shift.table[piece.chunk] as usize][range.clone()];
                let (keys, values) = lines.split_at_mut(key_lines);
                for d in 0..head_dim {
                    let from = &held.0[d * len + piece.at..][..piece.len()];
                    keys[piece.tile * head_dim + d].0[piece.lanes.clone()].copy_from_slice(from);
                }
                let to = piece.offset() * value_lines..(piece.offset() + piece.len()) * value_lines;
                let from = &held.1[piece.at * value_lines..][..to.len()];
                values[to].copy_from_slice(from);
            }
        }
    }

    /// Copies of the keys and values at `range`, `[len, Hkv, D]` each.
    pub(super) fn read(
        &self,
        layer: usize,
        table: &[u32],
        range: Range<usize>,
    ) -> (Vec<f32>, Vec<f32>) {
        let StoreShape {
            kv_heads,
            head_dim,
            chunk,
            ..
        } = self.shape;
        let size = range.len() * kv_heads * head_dim;
        let (mut k, mut v) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for column in range {
            let offset = column % chunk;
            for head in 0..kv_heads {
                let (keys, values) = self.head(table[column / chunk], layer, head);
                let tile = &keys[offset / TILE * head_dim..][..head_dim];
                k.extend(tile.iter().map(|line| line.0[offset % TILE]));
                let lines = &values[offset * self.value_lines()..][..self.value_lines()];
                v.extend(lines.iter().flat_map(|line| line.0).take(head_dim));
            }
        }
        (k, v)
    }
}

/// The part of a run of columns that lies in one tile.
struct TilePiece {
    /// Place of the first column in the run.
    at: usize,
    /// Entry of the chunk table.
    chunk: usize,
    /// Tile of the chunk.
    tile: usize,
    lanes: Range<usize>,
}

impl TilePiece {
    fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Offset of the first column in the chunk.
    fn offset(&self) -> usize {
        self.tile * TILE + self.lanes.start
    }
}

/// Cuts a run of columns at the ends of tiles and chunks.
fn tile_pieces(run: Range<usize>, chunk: usize) -> impl Iterator<Item = TilePiece> {
    let mut column = run.start;
    core::iter::from_fn(move || {
        if column >= run.end {
            return None;
        }
        let offset = column % chunk;
        let first = offset % TILE;
        let len = (TILE - first).min(chunk - offset).min(run.end - column);
        let piece = TilePiece {
            at: column - run.start,
            chunk: column / chunk,
            tile: offset / TILE,
            lanes: first..first + len,
        };
        column += len;
        Some(piece)
    })
}
