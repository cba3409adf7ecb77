//! The kernels, in CubeCL's language: compiled for the device they run on.

use burn_cubecl::cubecl::{self, prelude::*};

use super::Packing;

/// Units of a cube of [`few_rows`], side by side along K.
pub(super) const UNITS: usize = 64;

/// Outputs of a cube.
pub(super) const OUTPUTS: usize = 4;

/// A quant of a word, what was added to it taken away again.
#[cube]
fn quant(word: u32, #[comptime] index: u32, #[comptime] packing: Packing) -> f32 {
    let mask = comptime!((1u32 << packing.bits) - 1);
    let raw = (word >> comptime!(index * packing.bits)) & mask;
    f32::cast_from(raw) - comptime!(packing.offset as f32)
}

/// What the quants of a group are multiplied with, and what is added to the products.
#[cube]
fn scale_and_minimum(
    scales: &Tensor<f32>,
    output: usize,
    group: usize,
    #[comptime] packing: Packing,
) -> (f32, f32) {
    let place = output * scales.stride(0) + group * scales.stride(1);
    let mut minimum = 0.0f32;
    if comptime!(packing.minima) {
        minimum = scales[place + scales.stride(2)];
    }
    (scales[place], minimum)
}

/// `x [T, K]` times the transposed weight, `[T, N]`. Cubes are ([`OUTPUTS`] outputs, `rows` rows of x, more outputs). A
/// unit takes every so manieth word of each of its outputs, for all its rows; at the end the units' sums are added.
#[cube(launch, address_type = "dynamic")]
pub(super) fn few_rows<X: Float>(
    x: &Tensor<X>,
    words: &Tensor<u32>,
    scales: &Tensor<f32>,
    out: &mut Tensor<X>,
    #[comptime] rows: usize,
    #[comptime] packing: Packing,
    #[define(X)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let first_row = CUBE_POS_Y as usize * rows;
    let first_output = (CUBE_POS_Z * CUBE_COUNT_X + CUBE_POS_X) as usize * OUTPUTS;
    let last_row = out.shape(0) - 1;
    let last_output = out.shape(1) - 1;
    let per = comptime!(packing.per_word());

    let mut sums = Array::<f32>::new(comptime!(OUTPUTS * rows));
    #[unroll]
    for i in 0..comptime!(OUTPUTS * rows) {
        sums[i] = 0.0f32;
    }
    let mut at = unit;
    while at < words.shape(1) {
        let group = at * per / packing.group;
        let mut inputs = Array::<f32>::new(comptime!(rows * per));
        #[unroll]
        for r in 0..rows {
            let base = min(first_row + r, last_row) * x.stride(0);
            #[unroll]
            for i in 0..per {
                inputs[comptime!(r * per + i)] =
                    f32::cast_from(x[base + (at * per + i) * x.stride(1)]);
            }
        }
        #[unroll]
        for o in 0..OUTPUTS {
            let output = min(first_output + o, last_output);
            let word = words[output * words.stride(0) + at * words.stride(1)];
            let (scale, minimum) = scale_and_minimum(scales, output, group, packing);
            #[unroll]
            for i in 0..per {
                let weight = quant(word, comptime!(i as u32), packing) * scale + minimum;
                #[unroll]
                for r in 0..rows {
                    sums[comptime!(o * rows + r)] += inputs[comptime!(r * per + i)] * weight;
                }
            }
        }
        at += UNITS;
    }

    let mut shared = Shared::<[f32]>::new_slice(comptime!(OUTPUTS * rows * (UNITS + 1)));
    #[unroll]
    for i in 0..comptime!(OUTPUTS * rows) {
        shared[comptime!(i * (UNITS + 1)) + unit] = sums[i];
    }
    sync_cube();
    if unit < comptime!(OUTPUTS * rows) {
        let output = first_output + unit / rows;
        let row = first_row + unit % rows;
        if output <= last_output && row <= last_row {
            let mut sum = 0.0f32;
            for lane in 0..UNITS {
                sum += shared[unit * comptime!(UNITS + 1) + lane];
            }
            let place = row * out.stride(0) + output * out.stride(1);
            out[place] = X::cast_from(sum);
        }
    }
}

/// The values of the rows `ids`, `[T, K]`: one unit for each word.
#[cube(launch, address_type = "dynamic")]
pub(super) fn unpack_rows<O: Float, I: Int>(
    words: &Tensor<u32>,
    scales: &Tensor<f32>,
    ids: &Tensor<I>,
    out: &mut Tensor<O>,
    #[comptime] packing: Packing,
    #[define(O, I)] _dtypes: [ElemType; 2],
) {
    let per = comptime!(packing.per_word());
    let words_of_row = words.shape(1);
    if ABSOLUTE_POS >= out.shape(0) * words_of_row {
        terminate!();
    }
    let row = ABSOLUTE_POS / words_of_row;
    let at = ABSOLUTE_POS % words_of_row;
    let id = usize::cast_from(ids[row * ids.stride(0)]);
    let word = words[id * words.stride(0) + at * words.stride(1)];
    let (scale, minimum) = scale_and_minimum(scales, id, at * per / packing.group, packing);
    #[unroll]
    for i in 0..per {
        let value = quant(word, comptime!(i as u32), packing) * scale + minimum;
        let place = row * out.stride(0) + (at * per + i) * out.stride(1);
        out[place] = O::cast_from(value);
    }
}
