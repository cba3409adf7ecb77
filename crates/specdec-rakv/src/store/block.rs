//! Keys and values of a few positions, as bytes on the host.

use crate::error::{RakvError, Result};
use burn::prelude::*;
use burn::tensor::{DType, Transaction};
use specdec_core::KvSegment;
use std::ops::Range;

/// Entries of consecutive positions, `[layers, 2, n, Hkv, D]`: a copy that shares nothing with any
/// cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) dtype: DType,
    /// Positions.
    pub(crate) len: usize,
    /// Bytes of one position's keys of one layer.
    pub(crate) row: usize,
    pub(crate) bytes: Vec<u8>,
}

/// A segment as bytes on the host: per layer keys and values, `[n, Hkv, D]` each.
#[derive(Debug)]
pub(crate) struct HostSegment {
    pub(crate) range: Range<usize>,
    dtype: DType,
    row: usize,
    parts: Vec<TensorData>,
}

/// Types that can be stored.
pub(crate) fn storable(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

impl HostSegment {
    /// Copies a segment of a model with this many layers and these heads to the host.
    pub(crate) fn read(
        segment: KvSegment,
        layers: usize,
        [heads, dim]: [usize; 2],
    ) -> Result<Self> {
        let range = segment.range;
        if segment.layers.len() != layers {
            let n = segment.layers.len();
            return Err(RakvError::Entries(format!("{n} layers of {layers}")));
        }
        let want = [range.len(), heads, dim];
        // All layers in one read: a GPU stops once.
        let mut read = Transaction::default();
        for (k, v) in segment.layers {
            for part in [k, v] {
                let dims = part.dims();
                if dims != want {
                    return Err(RakvError::Entries(format!(
                        "shape {dims:?} instead of {want:?}"
                    )));
                }
                read = read.register(part);
            }
        }
        let parts = read
            .try_execute()
            .map_err(|e| RakvError::Entries(format!("unreadable: {e:?}")))?;
        let dtype = parts.first().map_or(DType::F32, TensorData::dtype);
        if !storable(dtype) || parts.iter().any(|part| part.dtype() != dtype) {
            return Err(RakvError::Entries(format!(
                "entries of type {dtype:?}, or of several"
            )));
        }
        Ok(Self {
            range,
            dtype,
            row: heads * dim * dtype.size(),
            parts,
        })
    }

    /// The entries of these positions.
    pub(crate) fn block(&self, positions: Range<usize>) -> Block {
        let from = (positions.start - self.range.start) * self.row;
        let size = positions.len() * self.row;
        let mut bytes = Vec::with_capacity(self.parts.len() * size);
        for part in &self.parts {
            bytes.extend_from_slice(&part.as_bytes()[from..from + size]);
        }
        Block {
            dtype: self.dtype,
            len: positions.len(),
            row: self.row,
            bytes,
        }
    }
}

impl Block {
    /// Puts the first entries of blocks one after the other: a segment from position 0 on.
    pub(crate) fn assemble<'a>(
        blocks: impl Iterator<Item = (&'a Self, usize)> + Clone,
        layers: usize,
        [heads, dim]: [usize; 2],
        device: &Device,
    ) -> Option<KvSegment> {
        let dtype = blocks.clone().next()?.0.dtype;
        let len: usize = blocks.clone().map(|(_, used)| used).sum();
        let part = |index: usize| {
            let mut bytes = Vec::with_capacity(len * heads * dim * dtype.size());
            for (block, used) in blocks.clone() {
                let at = index * block.len * block.row;
                bytes.extend_from_slice(block.bytes.get(at..at + used * block.row)?);
            }
            let data = match dtype {
                // A vector of the type itself is aligned for it.
                DType::F32 => {
                    let numbers = bytes.chunks_exact(4);
                    let number = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
                    TensorData::new(numbers.map(number).collect::<Vec<f32>>(), [len, heads, dim])
                }
                _ => TensorData::from_bytes_vec(bytes, [len, heads, dim], dtype),
            };
            Some(Tensor::<3>::from_data(data, (device, dtype)))
        };
        let layers = (0..layers).map(|l| Some((part(2 * l)?, part(2 * l + 1)?)));
        Some(KvSegment {
            range: 0..len,
            layers: layers.collect::<Option<_>>()?,
        })
    }

    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }
}
