//! Products of a few rows with all weights of a model of SmolLM2-135M's size, by several libraries, in turns.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml`

use burn::tensor::{Device, Tensor};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device as CandleDevice, Module, Tensor as CandleTensor};
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, PackedBMatrix};
use rten_tensor::{NdTensor, prelude::*};
use specdec_kernels::{Activations, BlockFormat, WeightMatrix};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

const LAYER: [(usize, usize); 4] = [(576, 960), (576, 576), (576, 3072), (1536, 576)];
const ROWS: [usize; 7] = [1, 2, 4, 5, 8, 16, 40];
const TURNS: usize = 9;

/// A pass over all weights for so many rows.
type Pass = Box<dyn Fn(usize) -> Result<(), Box<dyn Error>>>;

fn sizes() -> impl Iterator<Item = (usize, usize)> {
    (0..30).flat_map(|_| LAYER).chain([(576, 49152)])
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 255) as f32 / 256.0 - 0.5)
        .collect()
}

/// `numbers` in blocks of Q4_1, or Q8_0, as candle quantises them.
fn quantised(inputs: usize, outputs: usize, dtype: GgmlDType) -> Result<QTensor, Box<dyn Error>> {
    let dense = CandleTensor::from_vec(
        numbers(inputs * outputs),
        (outputs, inputs),
        &CandleDevice::Cpu,
    )?;
    Ok(QTensor::quantize(&dense, dtype)?)
}

fn specdec(format: BlockFormat, activations: Activations) -> Result<Pass, Box<dyn Error>> {
    let device = Device::flex();
    let weights: Vec<WeightMatrix> = sizes()
        .map(|(inputs, outputs)| {
            let made = match format {
                BlockFormat::Q4_1 | BlockFormat::Q8_0 => {
                    let dtype = match format {
                        BlockFormat::Q4_1 => GgmlDType::Q4_1,
                        _ => GgmlDType::Q8_0,
                    };
                    let blocks = quantised(inputs, outputs, dtype)?;
                    WeightMatrix::from_blocks(format, &blocks.data()?, outputs, inputs, &device)
                }
                _ => WeightMatrix::from_f32(numbers(inputs * outputs), outputs, inputs, &device),
            };
            Ok(made?.with_activations(activations))
        })
        .collect::<Result<_, Box<dyn Error>>>()?;
    Ok(Box::new(move |rows| {
        for weight in &weights {
            let x = Tensor::<2>::ones([rows, weight.dims()[1]], &device);
            black_box(weight.matmul(x));
        }
        Ok(())
    }))
}

fn burn_matmul() -> Result<Pass, Box<dyn Error>> {
    let device = Device::flex();
    let weights: Vec<Tensor<2>> = sizes()
        .map(|(inputs, outputs)| {
            let data = burn::tensor::TensorData::new(numbers(inputs * outputs), [inputs, outputs]);
            Tensor::from_data(data, &device)
        })
        .collect();
    Ok(Box::new(move |rows| {
        for weight in &weights {
            let x = Tensor::<2>::ones([rows, weight.dims()[0]], &device);
            black_box(x.matmul(weight.clone()));
        }
        Ok(())
    }))
}

fn candle(dtype: GgmlDType) -> Result<Pass, Box<dyn Error>> {
    let weights: Vec<(usize, QMatMul)> = sizes()
        .map(|(inputs, outputs)| {
            let blocks = quantised(inputs, outputs, dtype)?;
            Ok((inputs, QMatMul::from_arc(blocks.into())?))
        })
        .collect::<Result<_, Box<dyn Error>>>()?;
    Ok(Box::new(move |rows| {
        for (inputs, weight) in &weights {
            let x =
                CandleTensor::ones((rows, *inputs), candle_core::DType::F32, &CandleDevice::Cpu)?;
            black_box(weight.forward(&x)?);
        }
        Ok(())
    }))
}

fn gemm_crate() -> Result<Pass, Box<dyn Error>> {
    let weights: Vec<_> = sizes().map(|(k, n)| (k, n, numbers(k * n))).collect();
    Ok(Box::new(move |rows| {
        for (k, n, weight) in &weights {
            let x = vec![1.0_f32; rows * k];
            let mut out = vec![0.0_f32; rows * n];
            // SAFETY: the three buffers hold rows x n, rows x k and n x k values with the strides given; the weight's
            // inputs lie next to each other.
            unsafe {
                gemm::gemm(
                    rows,
                    *n,
                    *k,
                    out.as_mut_ptr(),
                    1,
                    *n as isize,
                    false,
                    x.as_ptr(),
                    1,
                    *k as isize,
                    weight.as_ptr(),
                    *k as isize,
                    1,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::Rayon(0),
                );
            }
            black_box(out);
        }
        Ok(())
    }))
}

fn rten() -> Result<Pass, Box<dyn Error>> {
    let executor = GemmExecutor::<f32>::new();
    let weights: Vec<(usize, usize, PackedBMatrix<f32>)> = sizes()
        .map(|(k, n)| {
            let dense = NdTensor::from_data([k, n], numbers(k * n));
            (k, n, executor.prepack_b(dense.view()))
        })
        .collect();
    Ok(Box::new(move |rows| {
        for (k, n, weight) in &weights {
            let x = NdTensor::full([rows, *k], 1.0_f32);
            let mut out = vec![0.0; rows * n];
            let (a, b) = (GemmInputA::Unpacked(x.view()), GemmInputB::Packed(weight));
            executor.gemm(&mut out, a, b, GemmOptions::default())?;
            black_box(out);
        }
        Ok(())
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let engines: Vec<(&str, Pass)> = vec![
        (
            "specdec, f32",
            specdec(BlockFormat::F32, Activations::Float)?,
        ),
        ("burn (Flex) matmul, f32", burn_matmul()?),
        ("gemm, f32, weight by rows", gemm_crate()?),
        ("rten-gemm, f32, prepacked", rten()?),
        (
            "specdec, Q4_1",
            specdec(BlockFormat::Q4_1, Activations::Float)?,
        ),
        (
            "specdec, Q4_1, int8 activations",
            specdec(BlockFormat::Q4_1, Activations::Int8)?,
        ),
        ("candle, Q4_1 (int8 activations)", candle(GgmlDType::Q4_1)?),
        (
            "specdec, Q8_0",
            specdec(BlockFormat::Q8_0, Activations::Float)?,
        ),
        (
            "specdec, Q8_0, int8 activations",
            specdec(BlockFormat::Q8_0, Activations::Int8)?,
        ),
        ("candle, Q8_0 (int8 activations)", candle(GgmlDType::Q8_0)?),
    ];
    println!(
        "ms a pass over 134.5 M weights, {} threads, medians of {TURNS} turns\n",
        rayon::current_num_threads()
    );
    println!(
        "| rows | {} |",
        ROWS.map(|rows| rows.to_string()).join(" | ")
    );
    println!("|---|{}", "---|".repeat(ROWS.len()));
    let mut times = vec![vec![Vec::new(); ROWS.len()]; engines.len()];
    for turn in 0..=TURNS {
        for ((_, pass), times) in engines.iter().zip(&mut times) {
            for (&rows, times) in ROWS.iter().zip(times) {
                let started = Instant::now();
                pass(rows)?;
                if turn > 0 {
                    times.push(started.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
    }
    for ((name, _), times) in engines.iter().zip(times) {
        let medians = times.into_iter().map(|mut times| {
            times.sort_by(f64::total_cmp);
            format!("{:.1}", times[times.len() / 2])
        });
        println!("| {name} | {} |", medians.collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}
