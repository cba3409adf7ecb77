//! From rows of values or blocks to strips.

use rayon::prelude::*;

use super::{
    encoding::{Bytes, Encoding, Pair, Scaled, Stored},
    strip::STRIP,
};
use crate::{BlockFormat, dequantize, quant::Unpacked, vector::Line};

/// Packs f32 values, row-major `[N, K]`.
pub(super) fn pack_f32(data: &[f32], inputs: usize) -> Encoding {
    Encoding::F32(strips(
        data,
        inputs,
        [Line::ZERO; 2],
        |pair, lane, value| {
            pair[lane / 16].0[lane % 16] = *value;
        },
    ))
}

/// Packs ggml blocks, row-major, K a whole number of blocks.
pub(super) fn pack_blocks(format: BlockFormat, bytes: &[u8], inputs: usize) -> Encoding {
    let halves = || {
        strips(
            bytes.as_chunks::<2>().0,
            inputs,
            Pair([[0u16; 16]; 2]),
            |pair, lane, raw| {
                pair.0[lane / 16][lane % 16] = u16::from_le_bytes(*raw);
            },
        )
    };
    let rows = Rows {
        format,
        bytes,
        inputs,
    };
    match format {
        BlockFormat::F32 => {
            let mut data = vec![0.0; bytes.len() / 4];
            // Cannot fail: four bytes for each value.
            let _ = dequantize(format, bytes, &mut data);
            pack_f32(&data, inputs)
        }
        BlockFormat::F16 => Encoding::F16(halves()),
        BlockFormat::BF16 => Encoding::BF16(halves()),
        BlockFormat::Q4_0 => Encoding::NibblesHalf(rows.nibbles(8)),
        BlockFormat::Q4_1 => Encoding::NibblesHalfMin(rows.nibbles(0)),
        BlockFormat::Q3K => Encoding::NibblesFull(rows.nibbles(8)),
        BlockFormat::Q2K | BlockFormat::Q4K => Encoding::NibblesFullMin(rows.nibbles(0)),
        BlockFormat::Q8_0 | BlockFormat::Q5_0 => Encoding::BytesHalf(rows.bytes()),
        BlockFormat::Q5_1 => Encoding::BytesHalfMin(rows.bytes()),
        BlockFormat::Q6K => Encoding::BytesFull(rows.bytes()),
        BlockFormat::Q5K => Encoding::BytesFullMin(rows.bytes()),
    }
}

/// Strips of items that hold one input each, set lane by lane.
fn strips<T: Copy + Send + Sync, S: Sync>(
    data: &[S],
    inputs: usize,
    zero: T,
    set: impl Fn(&mut T, usize, &S) + Sync,
) -> Vec<T> {
    let outputs = data.len() / inputs;
    let mut packed = vec![zero; outputs.div_ceil(STRIP) * inputs];
    packed
        .par_chunks_mut(inputs)
        .zip(data.par_chunks(inputs * STRIP))
        .for_each(|(strip, rows)| {
            for (lane, row) in rows.chunks_exact(inputs).enumerate() {
                for (item, value) in strip.iter_mut().zip(row) {
                    set(item, lane, value);
                }
            }
        });
    packed
}

/// A weight of quantised blocks, row-major.
#[derive(Clone, Copy)]
struct Rows<'a> {
    format: BlockFormat,
    bytes: &'a [u8],
    inputs: usize,
}

impl Rows<'_> {
    fn nibbles<S: Stored, const P: usize>(self, offset: i8) -> Scaled<Pair<u32>, S, P> {
        self.scaled(8, Pair([[0; 16]; 2]), offset, |items, lane, quants| {
            for (item, eight) in items.iter_mut().zip(quants.as_chunks::<8>().0) {
                let nibbles = eight.iter().rev();
                let bits = nibbles.fold(0, |bits, &quant| (bits << 4) | (quant + offset) as u32);
                item.0[lane / 16][lane % 16] = bits;
            }
        })
    }

    fn bytes<S: Stored, const P: usize>(self) -> Scaled<Bytes, S, P> {
        self.scaled(1, Bytes([[0; 16]; 2]), 0, |items, lane, quants| {
            for (item, &quant) in items.iter_mut().zip(quants) {
                item.0[lane / 16][lane % 16] = quant;
            }
        })
    }

    /// Unpacks every block and lets `set` place its quants, `per` inputs to an item.
    fn scaled<Q: Copy + Send + Sync, S: Stored, const P: usize>(
        self,
        per: usize,
        zero: Q,
        offset: i8,
        set: impl Fn(&mut [Q], usize, &[i8]) + Sync,
    ) -> Scaled<Q, S, P> {
        let Self {
            format,
            bytes,
            inputs,
        } = self;
        let (block_len, block_bytes) = (format.block_len(), format.block_bytes());
        let group = Unpacked::group_len(format);
        let row_bytes = inputs / block_len * block_bytes;
        let strips = (bytes.len() / row_bytes).div_ceil(STRIP);
        let mut quants = vec![zero; strips * inputs / per];
        let mut scales = vec![[Pair([[S::default(); 16]; 2]); P]; strips * inputs / group];
        quants
            .par_chunks_mut(inputs / per)
            .zip(scales.par_chunks_mut(inputs / group))
            .zip(bytes.par_chunks(row_bytes * STRIP))
            .for_each(|((quants, scales), rows)| {
                let mut block = Unpacked::new();
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let blocks = row.chunks_exact(block_bytes);
                    let quants = quants.chunks_exact_mut(block_len / per);
                    let scales = scales.chunks_exact_mut(block_len / group);
                    for ((raw, quants), scales) in blocks.zip(quants).zip(scales) {
                        block.read(format, raw);
                        set(quants, lane, &block.quants[..block_len]);
                        for (index, pairs) in scales.iter_mut().enumerate() {
                            let values = [block.scales[index], block.minima[index]];
                            for (pair, value) in pairs.iter_mut().zip(values) {
                                pair.0[lane / 16][lane % 16] = S::of(value);
                            }
                        }
                    }
                }
            });
        Scaled {
            quants,
            scales,
            group,
            offset,
        }
    }
}
