use super::PackedMatrix;
use crate::{BlockFormat, dequantize, vector::Level};

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
                let got = packed.multiply_at(level, &x);
                if level == Level::Portable {
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
        for level in Level::available().filter(|&level| level != Level::Portable) {
            assert_bits(
                &packed.multiply_at(level, &x),
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
        let together = packed.multiply_at(level, &x);
        for (x, together) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            assert_bits(
                &packed.multiply_at(level, x),
                together,
                &format!("{level:?}"),
            );
        }
    }
}
