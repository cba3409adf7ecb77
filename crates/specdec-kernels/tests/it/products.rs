//! Weights: products, rows, errors.

use burn::tensor::{Int, Tensor};
use specdec_kernels::{BlockFormat, KernelError, WeightMatrix, dequantize};

use crate::{
    oracle::{assert_close, device, numbers, tensor, values},
    quants::reference,
};

fn product(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f64> {
    let rows = x.chunks_exact(inputs);
    rows.flat_map(|x| {
        weight.chunks_exact(inputs).map(move |weight| {
            let pairs = x.iter().zip(weight);
            pairs
                .map(|(&x, &weight)| f64::from(x) * f64::from(weight))
                .sum::<f64>()
        })
    })
    .collect()
}

#[test]
fn f32_products_rows_and_values() {
    for (outputs, inputs, rows) in [
        (1, 1, 1),
        (33, 7, 3),
        (96, 64, 1),
        (70, 130, 17),
        (64, 96, 70),
    ] {
        let data = numbers(1, outputs * inputs);
        let weight = WeightMatrix::from_f32(data.clone(), outputs, inputs, &device()).unwrap();
        assert_eq!(weight.dims(), [outputs, inputs]);
        assert_eq!(weight.device(), device());
        assert!(weight.memory_bytes() >= 4 * outputs * inputs);
        assert_eq!(values(weight.to_dense()), data);

        let x = numbers(2, rows * inputs);
        let got = weight.matmul(tensor(&x, [rows, inputs]));
        assert_eq!(got.dims(), [rows, outputs]);
        assert_close(&values(got), &product(&x, &data, inputs), 1e-5);

        let last = outputs - 1;
        let ids = Tensor::<1, Int>::from_data([last as i64, 0, last as i64], &device());
        let expected = [
            &data[last * inputs..],
            &data[..inputs],
            &data[last * inputs..],
        ]
        .concat();
        assert_eq!(values(weight.rows(ids)), expected);
    }
}

#[test]
fn activations_need_not_be_contiguous() {
    let (data, x) = (numbers(1, 40 * 24), numbers(2, 24 * 5));
    let weight = WeightMatrix::from_f32(data.clone(), 40, 24, &device()).unwrap();
    let turned = tensor(&x, [24, 5]).transpose();
    let packed = values(turned.clone());
    assert_close(
        &values(weight.matmul(turned)),
        &product(&packed, &data, 24),
        1e-5,
    );
    let part = tensor(&x, [5, 24]).slice([2..4, 0..24]);
    assert_close(
        &values(weight.matmul(part)),
        &product(&x[48..96], &data, 24),
        1e-5,
    );
}

#[test]
fn block_weights_keep_the_formats_values() {
    for (format, bytes, expected) in reference() {
        // Each block is a row, and all rows once more, so that strips are not full.
        let inputs = format.block_len() * 2;
        let rows = expected.len() / inputs;
        let bytes = bytes.repeat(3);
        let outputs = 3 * rows;
        let weight = WeightMatrix::from_blocks(format, &bytes, outputs, inputs, &device()).unwrap();
        let mut data = vec![0.0; outputs * inputs];
        dequantize(format, &bytes, &mut data).unwrap();
        assert_eq!(values(weight.to_dense()), data, "{format}");
        let ids = Tensor::<1, Int>::from_data([outputs as i64 - 1], &device());
        assert_eq!(
            values(weight.rows(ids)),
            data[(outputs - 1) * inputs..],
            "{format}"
        );
        let x = numbers(9, 4 * inputs);
        let got = values(weight.matmul(tensor(&x, [4, inputs])));
        let largest = data
            .iter()
            .fold(1.0, |most: f32, value| most.max(value.abs()));
        let scaled: Vec<f32> = got.iter().map(|value| value / largest).collect();
        let expected: Vec<f64> = product(&x, &data, inputs);
        let expected: Vec<f64> = expected
            .iter()
            .map(|value| value / f64::from(largest))
            .collect();
        assert_close(&scaled, &expected, 1e-4);
    }
}

#[cfg(feature = "flex")]
#[test]
fn quantised_weights_stay_small() {
    let bits = |format: BlockFormat| {
        let bytes = vec![0; 64 * 512 / format.block_len() * format.block_bytes()];
        let weight = WeightMatrix::from_blocks(format, &bytes, 64, 512, &device()).unwrap();
        weight.memory_bytes() as f64 * 8.0 / (64.0 * 512.0)
    };
    assert_eq!(bits(BlockFormat::Q4_0), 4.5);
    assert_eq!(bits(BlockFormat::Q4_1), 5.0);
    assert_eq!(bits(BlockFormat::Q8_0), 8.5);
    assert_eq!(bits(BlockFormat::F16), 16.0);
    assert_eq!(bits(BlockFormat::BF16), 16.0);
    // Scales formed once, in f32.
    assert_eq!(bits(BlockFormat::Q4K), 6.0);
    assert_eq!(bits(BlockFormat::Q6K), 10.0);
}

#[test]
fn errors_name_what_does_not_fit() {
    let new = |len, n, k| WeightMatrix::from_f32(vec![0.0; len], n, k, &device()).unwrap_err();
    assert_eq!(
        new(5, 2, 3),
        KernelError::Length {
            what: "values of the weight",
            expected: 6,
            got: 5
        }
    );
    assert!(matches!(new(0, 0, 3), KernelError::Zero { .. }));
    assert!(matches!(new(0, 3, 0), KernelError::Zero { .. }));
    let blocks = |format, len, n, k| {
        WeightMatrix::from_blocks(format, &vec![0; len], n, k, &device()).unwrap_err()
    };
    assert_eq!(
        blocks(BlockFormat::Q4K, 144, 1, 576),
        KernelError::Block {
            format: BlockFormat::Q4K,
            block_len: 256,
            row: 576
        }
    );
    assert_eq!(
        blocks(BlockFormat::Q8_0, 34, 2, 32),
        KernelError::Length {
            what: "bytes of the weight",
            expected: 68,
            got: 34
        }
    );
}
