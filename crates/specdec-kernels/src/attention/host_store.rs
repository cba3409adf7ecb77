//! The CPU's store: chunks in host memory, read in place.
//!
//! A chunk holds, for each layer and key/value head, its columns in tiles of sixteen. Keys lie dimension by dimension,
//! so that sixteen columns are the lanes of a vector and a score is one chain of fused multiply-adds along D. Values lie
//! column by column, so that dimensions are the lanes and an output is one chain along the columns.

use core::ops::Range;

use super::store::StoreShape;
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
