//! From rows of values or blocks to strips.

use rayon::prelude::*;

use super::{
    encoding::{Encoding, Pair, Scaled, Stored},
    strip::STRIP,
};
use crate::{BlockFormat, dequantize, quant::Unpacked};

/// Packs f32 values, row-major `[N, K]`.
pub(super) fn pack_f32(data: &[f32], inputs: usize) -> Encoding {
    Encoding::F32(strips(data, inputs, Pair::ZERO, |pair, lane, value| {
        pair.0[lane / 16][lane % 16] = *value;
    }))
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
        BlockFormat::Q4_0 => Encoding::NibblesHalf(rows.scaled(8)),
        BlockFormat::Q4_1 => Encoding::NibblesHalfMin(rows.scaled(0)),
        BlockFormat::Q3K => Encoding::NibblesFull(rows.scaled(8)),
        BlockFormat::Q2K | BlockFormat::Q4K => Encoding::NibblesFullMin(rows.scaled(0)),
        BlockFormat::Q8_0 | BlockFormat::Q5_0 => Encoding::BytesHalf(rows.scaled(128)),
        BlockFormat::Q5_1 => Encoding::BytesHalfMin(rows.scaled(128)),
        BlockFormat::Q6K => Encoding::BytesFull(rows.scaled(128)),
        BlockFormat::Q5K => Encoding::BytesFullMin(rows.scaled(128)),
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
    /// Unpacks every block and packs its quants, `offset` added, into words.
    fn scaled<S: Stored, const P: usize, const BITS: usize>(
        self,
        offset: i32,
    ) -> Scaled<S, P, BITS> {
        let per = Scaled::<S, P, BITS>::PER;
        let Self {
            format,
            bytes,
            inputs,
        } = self;
        let (block_len, block_bytes) = (format.block_len(), format.block_bytes());
        let group = Unpacked::group_len(format);
        let row_bytes = inputs / block_len * block_bytes;
        let strips = (bytes.len() / row_bytes).div_ceil(STRIP);
        let mut quants = vec![Pair([[0; 16]; 2]); strips * inputs / per];
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
                        let values = block.quants[..block_len].chunks_exact(per);
                        for (item, values) in quants.iter_mut().zip(values) {
                            item.0[lane / 16][lane % 16] =
                                values.iter().rev().fold(0, |word, &quant| {
                                    (word << BITS) | (i32::from(quant) + offset) as u32
                                });
                        }
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
