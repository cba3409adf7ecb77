//! Block formats: by hand, and against values of an independent implementation.

use half::f16;
use specdec_kernels::{BlockFormat, KernelError, dequantize};

const REFERENCE: &str = include_str!("blocks.txt");

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().as_chunks::<2>().0.iter();
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// `(format, bytes, bits of the values)` of the reference file.
pub(crate) fn reference() -> impl Iterator<Item = (BlockFormat, Vec<u8>, Vec<u32>)> {
    let lines = REFERENCE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let mut parts = line.split(' ');
        let mut part = || parts.next().unwrap();
        let (name, bytes, values) = (part(), part(), part());
        let format = BlockFormat::ALL
            .into_iter()
            .find(|format| format.to_string() == name);
        let values = from_hex(values);
        let values = values
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&bits| u32::from_be_bytes(bits));
        (format.unwrap(), from_hex(bytes), values.collect())
    })
}

#[test]
fn values_equal_the_reference_to_the_bit() {
    let mut formats = 0;
    for (format, bytes, expected) in reference() {
        let mut values = vec![f32::NAN; expected.len()];
        dequantize(format, &bytes, &mut values).unwrap();
        for (index, (value, expected)) in values.iter().zip(&expected).enumerate() {
            // numpy adds a zero offset in some formats, which makes +0 of -0.
            let expected = f32::from_bits(*expected);
            assert!(
                value.to_bits() == expected.to_bits() || (*value == 0.0 && expected == 0.0),
                "{format}, value {index}: {value} for {expected}"
            );
        }
        formats += 1;
    }
    assert_eq!(formats, BlockFormat::ALL.len() - 1, "all but F32");
}

fn values(format: BlockFormat, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / format.block_bytes() * format.block_len()];
    dequantize(format, bytes, &mut values).unwrap();
    values
}

#[test]
fn small_blocks_by_hand() {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    assert_eq!(values(BlockFormat::F32, &1.25f32.to_le_bytes()), [1.25]);
    assert_eq!(values(BlockFormat::F16, &half(-0.375)), [-0.375]);
    assert_eq!(
        values(BlockFormat::BF16, &[0x80, 0x3f, 0x00, 0xc0]),
        [1.0, -2.0]
    );

    let mut q8 = half(0.5).to_vec();
    q8.extend((0..32).map(|i| (i as i8 - 16) as u8));
    let expected: Vec<f32> = (0..32).map(|i| 0.5 * (i as f32 - 16.0)).collect();
    assert_eq!(values(BlockFormat::Q8_0, &q8), expected);

    // The low halves are the first sixteen values, the high halves the last.
    let nibbles = (0..16).map(|i| i | ((15 - i) << 4));
    let counted: Vec<f32> = (0..16).chain((0..16).rev()).map(|i| i as f32).collect();
    let mut q4_0 = half(2.0).to_vec();
    q4_0.extend(nibbles.clone());
    let expected: Vec<f32> = counted.iter().map(|i| 2.0 * (i - 8.0)).collect();
    assert_eq!(values(BlockFormat::Q4_0, &q4_0), expected);

    let mut q4_1 = [half(0.25), half(-1.0)].concat();
    q4_1.extend(nibbles.clone());
    let expected: Vec<f32> = counted.iter().map(|i| 0.25 * i - 1.0).collect();
    assert_eq!(values(BlockFormat::Q4_1, &q4_1), expected);

    // Fifth bits set for the values 0, 17 and 31.
    let high = (1u32 | (1 << 17) | (1 << 31)).to_le_bytes();
    let five = |i: usize| counted[i] + if [0, 17, 31].contains(&i) { 16.0 } else { 0.0 };
    let mut q5_0 = [&half(1.0)[..], &high].concat();
    q5_0.extend(nibbles.clone());
    let expected: Vec<f32> = (0..32).map(|i| five(i) - 16.0).collect();
    assert_eq!(values(BlockFormat::Q5_0, &q5_0), expected);

    let mut q5_1 = [&half(0.5)[..], &half(3.0), &high].concat();
    q5_1.extend(nibbles);
    let expected: Vec<f32> = (0..32).map(|i| 0.5 * five(i) + 3.0).collect();
    assert_eq!(values(BlockFormat::Q5_1, &q5_1), expected);
}

#[test]
fn k_blocks_by_hand() {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    // One bit set in one place of each: the value it lands on says that the layout is understood.
    let mut q6 = vec![0u8; 210];
    q6[192] = 3; // scale of the values 0..16
    q6[208..210].copy_from_slice(&half(0.5));
    q6[5] = 9; // low half: value 5
    let got = values(BlockFormat::Q6K, &q6);
    assert_eq!(got[5], 0.5 * 3.0 * (9.0 - 32.0));
    assert_eq!(got[6], 0.5 * 3.0 * -32.0);
    assert_eq!(got[16], 0.0, "its scale is zero");

    let mut q4 = vec![0u8; 144];
    q4[..2].copy_from_slice(&half(0.5));
    q4[2..4].copy_from_slice(&half(0.25));
    q4[4 + 1] = 7; // scale of the group 1
    q4[4 + 5] = 2; // minimum of the group 1
    q4[16 + 3] = 0x60; // high half: value 35
    let got = values(BlockFormat::Q4K, &q4);
    assert_eq!(got[35], 0.5 * 7.0 * 6.0 - 0.25 * 2.0);
    assert_eq!(got[34], -0.25 * 2.0);
    assert_eq!(got[3], 0.0);

    let mut q2 = vec![0u8; 84];
    q2[9] = 0x35; // scale 5, minimum 3 of the values 144..160
    q2[80..82].copy_from_slice(&half(1.0));
    q2[82..84].copy_from_slice(&half(0.5));
    q2[16 + 32 + 16] = 0x02; // second half, lane 16, first shift: value 144
    let got = values(BlockFormat::Q2K, &q2);
    assert_eq!(got[144], 5.0 * 2.0 - 1.5);
    assert_eq!(got[145], -1.5);

    let mut q3 = vec![0u8; 110];
    q3[96] = 0x01; // group 0: low bits 1, so the scale is 1 - 32; all others are -32
    q3[108..110].copy_from_slice(&half(1.0));
    q3[0] = 0x01; // high bit of value 0 is set: no 4 is taken off
    q3[32] = 0x03;
    let got = values(BlockFormat::Q3K, &q3);
    assert_eq!(got[0], -31.0 * 3.0);
    assert_eq!(got[1], -31.0 * -4.0);
    assert_eq!(got[16], -32.0 * -4.0);

    let mut q5 = vec![0u8; 176];
    q5[..2].copy_from_slice(&half(0.5));
    q5[4] = 2; // scale of the group 0
    q5[16 + 8] = 0x01; // fifth bit of value 8
    q5[48 + 8] = 0x03;
    let got = values(BlockFormat::Q5K, &q5);
    assert_eq!(got[8], 0.5 * 2.0 * 19.0);
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let mut out = vec![0.0; 32];
    assert_eq!(
        dequantize(BlockFormat::Q8_0, &[0; 33], &mut out),
        Err(KernelError::Length {
            what: "bytes of whole blocks",
            expected: 0,
            got: 33
        })
    );
    assert_eq!(
        dequantize(BlockFormat::Q8_0, &[0; 68], &mut out),
        Err(KernelError::Length {
            what: "values of the blocks given",
            expected: 64,
            got: 32
        })
    );
    assert!(dequantize(BlockFormat::Q8_0, &[0; 34], &mut out[..31]).is_err());
    assert_eq!(
        format!("{:>6}|{}", BlockFormat::Q4K, BlockFormat::Q8_0),
        "  Q4_K|Q8_0"
    );
}
