use super::PackedMatrix;
use crate::{
    Activations, BlockFormat, dequantize,
    vector::{Level, tests::fingerprint},
};

/// Whole numbers from a counter, spread over 0..2^32.
fn noise(seed: u32, index: usize) -> u32 {
    let mut z = (index as u32).wrapping_mul(0x9e37_79b9) ^ seed.wrapping_mul(0x85eb_ca6b);
    z = (z ^ (z >> 16)).wrapping_mul(0x7feb_352d);
    z = (z ^ (z >> 15)).wrapping_mul(0x846c_a68b);
    z ^ (z >> 16)
}

fn numbers(seed: u32, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| noise(seed, i) as f32 / 2.0f32.powi(31) - 1.0)
        .collect()
}

/// Blocks of random bits with scales of a sensible size.
fn blocks(format: BlockFormat, count: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count * format.block_bytes())
        .map(|i| noise(7, i) as u8)
        .collect();
    let halves: &[usize] = match format {
        BlockFormat::F32 => {
            let values = numbers(3, count);
            return values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
        }
        BlockFormat::F16 | BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
        BlockFormat::BF16 => {
            let values = numbers(3, count);
            return values
                .iter()
                .flat_map(|value| [value.to_le_bytes()[2], value.to_le_bytes()[3]])
                .collect();
        }
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
        BlockFormat::Q2K => &[80, 82],
        BlockFormat::Q3K => &[108],
        BlockFormat::Q6K => &[208],
    };
    for (index, block) in bytes.chunks_exact_mut(format.block_bytes()).enumerate() {
        for (&at, value) in halves.iter().zip(numbers(index as u32 + 1, 2)) {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(value / 8.0).to_le_bytes());
        }
    }
    bytes
}

/// One chain of fused multiply-adds along K for every element: what the fast code must equal to the bit.
fn naive(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f32> {
    let rows = x.chunks_exact(inputs);
    rows.flat_map(|x| {
        weight.chunks_exact(inputs).map(move |weight| {
            let pairs = x.iter().zip(weight);
            pairs.fold(0.0, |sum: f32, (&x, &weight)| weight.mul_add(x, sum))
        })
    })
    .collect()
}

#[track_caller]
fn assert_bits(got: &[f32], expected: &[f32], case: &str) {
    assert_eq!(got.len(), expected.len(), "{case}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(
            got.to_bits(),
            expected.to_bits(),
            "{case}: {got} for {expected} at {index}"
        );
    }
}

#[test]
fn every_format_and_instruction_set_equals_the_naive_product() {
    let (outputs, inputs) = (75, 512);
    for format in BlockFormat::ALL {
        let bytes = blocks(format, outputs * inputs / format.block_len());
        let mut weight = vec![0.0; outputs * inputs];
        dequantize(format, &bytes, &mut weight).unwrap();
        let largest = weight
            .iter()
            .fold(0.0, |most: f32, value| most.max(value.abs()));
        let packed = PackedMatrix::from_blocks(format, &bytes, [outputs, inputs]);
        assert_bits(&packed.to_rows(), &weight, format.name());
        let mut row = vec![0.0; inputs];
        packed.row(70, &mut row);
        assert_bits(&row, &weight[70 * inputs..71 * inputs], format.name());
        for rows in [1, 2, 3, 5, 8, 13] {
            let x = numbers(11, rows * inputs);
            let expected = naive(&x, &weight, inputs);
            for level in Level::available() {
                let got = packed.multiply_at(level, &x, Activations::Float);
                if !level.fused() {
                    for (&got, &expected) in got.iter().zip(&expected) {
                        assert!(
                            (got - expected).abs() < 1e-6 * largest * inputs as f32,
                            "{format}: {got} {expected}"
                        );
                    }
                } else {
                    assert_bits(&got, &expected, &format!("{format} {level:?} {rows} rows"));
                }
            }
        }
    }
}

#[test]
fn odd_sizes_are_padded_and_cut() {
    for (outputs, inputs) in [(1, 1), (31, 3), (32, 17), (33, 64), (100, 5)] {
        let weight = numbers(1, outputs * inputs);
        let packed = PackedMatrix::from_f32(&weight, [outputs, inputs]);
        assert_eq!(packed.to_rows(), weight);
        let x = numbers(2, 9 * inputs);
        for level in Level::available().filter(|level| level.fused()) {
            assert_bits(
                &packed.multiply_at(level, &x, Activations::Float),
                &naive(&x, &weight, inputs),
                &format!("{level:?}"),
            );
        }
    }
}

#[test]
fn a_row_alone_equals_the_same_row_among_others_at_every_level() {
    let (outputs, inputs) = (64, 96);
    let packed = PackedMatrix::from_f32(&numbers(1, outputs * inputs), [outputs, inputs]);
    let x = numbers(2, 20 * inputs);
    for level in Level::available() {
        let together = packed.multiply_at(level, &x, Activations::Float);
        for (x, together) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            assert_bits(
                &packed.multiply_at(level, x, Activations::Float),
                together,
                &format!("{level:?}"),
            );
        }
    }
}

/// Inputs that share a scale in a format of blocks.
fn group_of(format: BlockFormat) -> usize {
    match format {
        BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Q6K => 16,
        _ => 32,
    }
}

/// Scale, minimum (if any) and quants of every group, output by output.
struct Plain {
    scales: Vec<f32>,
    minima: Vec<f32>,
    quants: Vec<i32>,
}

/// The blocks of a weight, and its parts.
fn known(format: BlockFormat, [outputs, inputs]: [usize; 2]) -> (Vec<u8>, Plain) {
    let mut bytes = Vec::new();
    let mut plain = Plain {
        scales: Vec::new(),
        minima: Vec::new(),
        quants: Vec::new(),
    };
    for block in 0..outputs * inputs / 32 {
        let scale = half::f16::from_f32((noise(5, block) % 1000 + 1) as f32 / 4096.0);
        let minimum = half::f16::from_f32((noise(6, block) % 1000) as f32 / -512.0);
        let quants: Vec<i32> = (0..32)
            .map(|i| (noise(8, block * 32 + i) % 16) as i32)
            .collect();
        bytes.extend(scale.to_le_bytes());
        plain.scales.push(scale.to_f32());
        match format {
            BlockFormat::Q4_0 | BlockFormat::Q4_1 => {
                if format == BlockFormat::Q4_1 {
                    bytes.extend(minimum.to_le_bytes());
                    plain.minima.push(minimum.to_f32());
                }
                bytes.extend((0..16).map(|i| (quants[i] | (quants[i + 16] << 4)) as u8));
                let offset = if format == BlockFormat::Q4_0 { 8 } else { 0 };
                plain.quants.extend(quants.iter().map(|q| q - offset));
            }
            BlockFormat::Q8_0 => {
                let wide = quants.iter().map(|q| (q - 8) * 15);
                bytes.extend(wide.clone().map(|q| q as i8 as u8));
                plain.quants.extend(wide);
            }
            other => panic!("no {other} here"),
        }
    }
    (bytes, plain)
}

/// The formula of [`Activations::Int8`], a value at a time.
fn naive_int8(x: &[f32], weight: &Plain, inputs: usize) -> Vec<f32> {
    let row = |x: &[f32], output: usize| {
        let mut sum = 0.0_f32;
        for (group, x) in x.chunks_exact(32).enumerate() {
            let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let step = most / 127.0;
            let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
            let x: Vec<i32> = x
                .iter()
                .map(|x| (x * inverse).round_ties_even() as i32)
                .collect();
            let at = output * inputs / 32 + group;
            let dot: i32 = x
                .iter()
                .zip(&weight.quants[32 * at..])
                .map(|(x, w)| x * w)
                .sum();
            sum = (dot as f32 * step).mul_add(weight.scales[at], sum);
            if let Some(minimum) = weight.minima.get(at) {
                let total = x.iter().sum::<i32>() as f32 * step;
                sum = total.mul_add(*minimum, sum);
            }
        }
        sum
    };
    let outputs = weight.scales.len() * 32 / inputs;
    x.chunks_exact(inputs)
        .flat_map(|x| (0..outputs).map(move |output| row(x, output)))
        .collect()
}

#[test]
fn int8_equals_its_formula_at_every_instruction_set() {
    let (outputs, inputs) = (75, 160);
    for format in [BlockFormat::Q4_0, BlockFormat::Q4_1, BlockFormat::Q8_0] {
        let (bytes, plain) = known(format, [outputs, inputs]);
        let packed = PackedMatrix::from_blocks(format, &bytes, [outputs, inputs]);
        for rows in [1, 2, 3, 5, 6, 7, 13] {
            let mut x = numbers(11, rows * inputs);
            x[..32].fill(0.0);
            let expected = naive_int8(&x, &plain, inputs);
            for level in Level::available() {
                let got = packed.multiply_at(level, &x, Activations::Int8);
                let case = format!("{format} {level:?} {rows} rows");
                if !level.fused() {
                    for (got, expected) in got.iter().zip(&expected) {
                        assert!((got - expected).abs() < 1e-4, "{case}: {got} {expected}");
                    }
                } else {
                    assert_bits(&got, &expected, &case);
                }
            }
        }
    }
}

#[test]
fn int8_is_close_to_float_in_every_format() {
    let (outputs, inputs) = (40, 512);
    for format in BlockFormat::ALL {
        let bytes = blocks(format, outputs * inputs / format.block_len());
        let mut weight = vec![0.0; outputs * inputs];
        dequantize(format, &bytes, &mut weight).unwrap();
        let packed = PackedMatrix::from_blocks(format, &bytes, [outputs, inputs]);
        let x = numbers(11, 7 * inputs);
        for level in Level::available() {
            let float = packed.multiply_at(level, &x, Activations::Float);
            let int8 = packed.multiply_at(level, &x, Activations::Int8);
            if matches!(
                format,
                BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16
            ) {
                assert_bits(&int8, &float, format.name());
                continue;
            }
            for (index, (int8, float)) in int8.iter().zip(&float).enumerate() {
                // Half a step off at most: the sum of the weights' magnitudes times half of each group's step.
                let (row, output) = (index / outputs, index % outputs);
                let group = group_of(format);
                let bound: f32 = (0..inputs / group)
                    .map(|g| {
                        let x = &x[row * inputs + g * group..][..group];
                        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                        let w = &weight[output * inputs + g * group..][..group];
                        most / 127.0 * 0.5 * w.iter().map(|w| w.abs()).sum::<f32>()
                    })
                    .sum();
                let off = (int8 - float).abs();
                assert!(
                    off <= 1.01 * bound + 1e-4,
                    "{format} {level:?}: {off} over {bound}"
                );
            }
        }
    }
}

#[test]
fn an_int8_row_alone_equals_the_same_row_among_others() {
    let (outputs, inputs) = (100, 256);
    for format in [BlockFormat::Q4_1, BlockFormat::Q6K, BlockFormat::Q4K] {
        let bytes = blocks(format, outputs * inputs / format.block_len());
        let packed = PackedMatrix::from_blocks(format, &bytes, [outputs, inputs]);
        let x = numbers(2, 20 * inputs);
        for level in Level::available() {
            let together = packed.multiply_at(level, &x, Activations::Int8);
            for (x, together) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
                let alone = packed.multiply_at(level, x, Activations::Int8);
                assert_bits(&alone, together, &format!("{format} {level:?}"));
            }
        }
    }
}

#[test]
fn int8_hides_no_value_that_is_not_finite() {
    let bytes = blocks(BlockFormat::Q8_0, 40 * 2);
    let packed = PackedMatrix::from_blocks(BlockFormat::Q8_0, &bytes, [40, 64]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = numbers(2, 3 * 64);
        x[64 + 40] = bad;
        for level in Level::available() {
            let out = packed.multiply_at(level, &x, Activations::Int8);
            assert!(out[40..80].iter().all(|value| value.is_nan()), "{bad}");
            assert!(
                out[..40]
                    .iter()
                    .chain(&out[80..])
                    .all(|value| value.is_finite())
            );
        }
    }
}

/// For each format the fingerprints of products with activations in f32 and in bytes, as AVX2 and AVX-512 give them.
const PRODUCTS: [[u32; 2]; BlockFormat::ALL.len()] = [
    [0x3fce_1482, 0x3fce_1482],
    [0x2418_bb6c, 0x2418_bb6c],
    [0x3704_0f30, 0x3704_0f30],
    [0x4f7f_5347, 0xa904_8c0e],
    [0xd384_4f8d, 0xf4cb_8f1c],
    [0x5519_5528, 0x4e0b_a495],
    [0x2255_3ac7, 0x004a_bbbb],
    [0x6741_b805, 0x23a3_b1bd],
    [0x52c4_cf31, 0xa070_4823],
    [0xe313_10f6, 0xca4e_5292],
    [0xedcd_6cfa, 0x6a16_a366],
    [0x1b4e_0408, 0x34d8_3a81],
    [0xe044_7311, 0x762b_bde0],
];

#[test]
fn products_have_the_same_bits_on_all_machines() {
    let (outputs, inputs) = (75, 512);
    let x = numbers(11, 5 * inputs);
    let all = BlockFormat::ALL.map(|format| {
        let bytes = blocks(format, outputs * inputs / format.block_len());
        PackedMatrix::from_blocks(format, &bytes, [outputs, inputs])
    });
    for level in Level::available().filter(|level| level.fused()) {
        let got = all.each_ref().map(|packed| {
            [Activations::Float, Activations::Int8].map(|activations| {
                let out = packed.multiply_at(level, &x, activations);
                fingerprint(out.iter().map(|value| value.to_bits()))
            })
        });
        assert_eq!(got, PRODUCTS, "{level:?}: {got:08x?}");
    }
}
