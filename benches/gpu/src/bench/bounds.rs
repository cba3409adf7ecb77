//! What the device can do at best: copies and products.

use super::table::{Table, median};
use burn::prelude::*;
use burn::tensor::FloatDType;
use std::time::{Duration, Instant};

/// Copy bandwidth and matrix products of a square, for each type the device has.
pub fn measure(table: &mut Table, device: &Device, quick: bool) {
    let values = if quick { 1 << 20 } else { 1 << 28 };
    let copied = median(5, || {
        timed(
            device,
            || {
                let x = Tensor::<1>::ones([values], device);
                device.sync().expect("the device answers");
                x
            },
            |x| x + 1.0,
        )
    });
    let size = Tensor::<1>::ones([1], device).dtype().size();
    let bytes = 2.0 * (values * size) as f64;
    let rate = bytes / copied.as_secs_f64() / 1e9;
    table.row(
        "copy (read + write)",
        "-",
        format!("{} MiB", (values * size) >> 20),
        format!("{rate:.1} GB/s"),
    );

    let side = if quick { 256 } else { 8192 };
    let rows: &[usize] = &[1, 8, side];
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        if !has(device, dtype) {
            table.row(
                format!("product {dtype:?}"),
                "-",
                "-",
                "the device has not got the type",
            );
            continue;
        }
        for &rows in rows {
            let time = median(5, || {
                timed(
                    device,
                    || {
                        let ones =
                            |shape: [usize; 2]| Tensor::<2>::ones(shape, device).cast(dtype) * 0.01;
                        let pair = (ones([rows, side]), ones([side, side]));
                        device.sync().expect("the device answers");
                        pair
                    },
                    |(a, b)| a.matmul(b),
                )
            });
            let flops = 2.0 * (rows * side * side) as f64 / time.as_secs_f64();
            let read = (side * side * if dtype == FloatDType::F32 { 4 } else { 2 }) as f64
                / time.as_secs_f64();
            let figure = format!(
                "{:.2} TFLOP/s, weight at {:.1} GB/s",
                flops / 1e12,
                read / 1e9
            );
            table.row(
                format!("product {dtype:?}"),
                "-",
                format!("[{rows}, {side}] x [{side}, {side}]"),
                figure,
            );
        }
    }
}

/// Whether the device computes in this type.
fn has(device: &Device, dtype: FloatDType) -> bool {
    device.supports_dtype(burn::tensor::DType::from(dtype))
}

/// Time of one operation between two syncs.
fn timed<T, const D: usize>(
    device: &Device,
    prepare: impl FnOnce() -> T,
    work: impl FnOnce(T) -> Tensor<D>,
) -> Duration {
    let input = prepare();
    let started = Instant::now();
    let output = work(input);
    device.sync().expect("the device answers");
    let time = started.elapsed();
    drop(output);
    time
}
