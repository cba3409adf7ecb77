//! The kernels alone, on matrices of the sizes of SmolLM2-135M: a pass over all its weights for a few rows,
//! attention behind 4096 keys, and the small maps between. Beside them what the memory allows: the time of reading as
//! many bytes. Rows of a table are measured in turns, so that a slow moment of the machine hits all alike.
//!
//! `cargo bench -p specdec-benches --bench kernels [-- products|attention|maps]`

use rayon::prelude::*;
use specdec::burn::tensor::{Device, Tensor, TensorData};
use specdec::kernels::{
    Activations, AttentionPass, AttentionRow, BlockFormat, RotaryPairing, SlotStore, WeightMatrix,
    argmax_rows, rms_norm, rotary, swiglu,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Inputs and outputs of a layer's products; the last entry is the output map.
const LAYER: [(usize, usize); 4] = [(576, 960), (576, 576), (576, 3072), (1536, 576)];
const OUTPUT: (usize, usize) = (576, 49152);
const LAYERS: usize = 30;
const ROWS: [usize; 8] = [1, 2, 3, 5, 8, 16, 40, 512];
/// Query heads, key/value heads, head size.
const HEADS: [usize; 3] = [9, 3, 64];
const KEYS: usize = 4096;
const CHUNK: usize = 64;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let device = Device::flex();
    let bandwidth = bandwidth();
    println!("reading: {:.1} GB/s on all threads", bandwidth / 1e9);
    if runs("products") {
        products(&device, bandwidth);
    }
    if runs("attention") {
        attention(&device, bandwidth);
    }
    if runs("maps") {
        maps(&device);
    }
}

/// Numbers between -0.5 and 0.5.
fn numbers(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 255) as f32 / 256.0 - 0.5)
        .collect()
}

/// Median time of each of `works`, called in turns.
fn in_turns(turns: usize, works: &mut [&mut dyn FnMut()]) -> Vec<Duration> {
    let mut times = vec![Vec::new(); works.len()];
    for turn in 0..=turns {
        for (work, times) in works.iter_mut().zip(&mut times) {
            let started = Instant::now();
            work();
            // The first turn warms up.
            if turn > 0 {
                times.push(started.elapsed());
            }
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    times.into_iter().map(median).collect()
}

/// Bytes a second that all threads together read from memory.
fn bandwidth() -> f64 {
    let data = vec![1u64; 1 << 26];
    let read = || {
        let parts = data.par_chunks(1 << 16);
        let sum: u64 = parts.map(|part| part.iter().fold(0, |a, b| a ^ b)).sum();
        black_box(sum);
    };
    let [time] = in_turns(9, &mut [&mut { read }])[..] else {
        return 0.0;
    };
    size_of_val(&data[..]) as f64 / time.as_secs_f64()
}

/// All weights of the model in one format; K is cut to whole blocks.
fn weights(format: BlockFormat, activations: Activations, device: &Device) -> Vec<WeightMatrix> {
    let sizes = (0..LAYERS).flat_map(|_| LAYER).chain([OUTPUT]);
    sizes
        .map(|(inputs, outputs)| {
            let inputs = inputs / format.block_len() * format.block_len();
            let len = inputs * outputs / format.block_len() * format.block_bytes();
            let made = if format == BlockFormat::F32 {
                WeightMatrix::from_f32(numbers(inputs * outputs), outputs, inputs, device)
            } else {
                let bytes = match format {
                    // Products of numbers so small that they lose bits are slow.
                    BlockFormat::BF16 => numbers(len / 2)
                        .iter()
                        .flat_map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]])
                        .collect(),
                    // Small bytes, so that no scale is infinite.
                    _ => (0..len)
                        .map(|i| (i.wrapping_mul(2_654_435_761) >> 9 & 63) as u8)
                        .collect::<Vec<_>>(),
                };
                WeightMatrix::from_blocks(format, &bytes, outputs, inputs, device)
            };
            made.expect("whole blocks").with_activations(activations)
        })
        .collect()
}

fn products(device: &Device, bandwidth: f64) {
    println!("\nproducts with all weights, ms a pass (over the time of one row)");
    print!("{:24} {:>5} {:>6}", "weights, activations", "MB", "read");
    ROWS.iter().for_each(|rows| print!("{rows:>14}"));
    println!();
    for (format, activations) in [
        (BlockFormat::F32, Activations::Float),
        (BlockFormat::BF16, Activations::Float),
        (BlockFormat::Q8_0, Activations::Float),
        (BlockFormat::Q8_0, Activations::Int8),
        (BlockFormat::Q4_1, Activations::Float),
        (BlockFormat::Q4_1, Activations::Int8),
        (BlockFormat::Q4K, Activations::Float),
        (BlockFormat::Q4K, Activations::Int8),
        (BlockFormat::Q6K, Activations::Float),
        (BlockFormat::Q6K, Activations::Int8),
    ] {
        let weights = weights(format, activations, device);
        let bytes: usize = weights.iter().map(WeightMatrix::memory_bytes).sum();
        let pass = |rows: usize| {
            for weight in &weights {
                let x = Tensor::<2>::ones([rows, weight.dims()[1]], device);
                black_box(weight.matmul(x));
            }
        };
        let mut works = ROWS.map(|rows| move || pass(rows));
        let mut works: Vec<&mut dyn FnMut()> = works
            .iter_mut()
            .map(|work| work as &mut dyn FnMut())
            .collect();
        let times = in_turns(9, &mut works);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        print!(
            "{:24} {:>5} {:>6.1}",
            format!("{format}, {activations:?}"),
            bytes / 1_000_000,
            bytes as f64 / bandwidth * 1e3
        );
        for time in &times {
            let ratio = time.as_secs_f64() / times[0].as_secs_f64();
            print!("{:>7.1} ({ratio:>4.2})", ms(*time));
        }
        println!();
    }
}

fn attention(device: &Device, bandwidth: f64) {
    let [heads, kv_heads, size] = HEADS;
    let chunks = KEYS / CHUNK + 1;
    let mut store = SlotStore::new(LAYERS, kv_heads, size, CHUNK, device).expect("sizes");
    store.reserve(chunks);
    let table: Vec<u32> = (0..chunks as u32).collect();
    let shape = [KEYS, kv_heads, size];
    let data = TensorData::new(numbers(KEYS * kv_heads * size), shape);
    let keys = Tensor::<3>::from_data(data, device);
    for layer in 0..LAYERS {
        store
            .write(layer, &table, 0, keys.clone(), keys.clone())
            .expect("room");
    }
    let bytes = 2 * LAYERS * KEYS * kv_heads * size * 4;
    println!(
        "\nattention of {LAYERS} layers behind {KEYS} keys, ms (over the time of one query); reading {} MB takes {:.1} ms",
        bytes / 1_000_000,
        bytes as f64 / bandwidth * 1e3
    );
    let queries = [1, 2, 3, 5, 8, 16];
    let mut times = vec![Vec::new(); queries.len()];
    for _ in 0..9 {
        for (&n, times) in queries.iter().zip(&mut times) {
            let row = AttentionRow {
                table: table.clone(),
                start: KEYS,
                len: n,
            };
            let pass = AttentionPass::new(vec![row], CHUNK, device).expect("a good row");
            let q = Tensor::<3>::ones([n, heads, size], device);
            let k = Tensor::<3>::ones([n, kv_heads, size], device);
            let started = Instant::now();
            for layer in 0..LAYERS {
                let out = store.attend(layer, q.clone(), k.clone(), k.clone(), &pass);
                black_box(out.expect("it fits").out);
            }
            times.push(started.elapsed());
        }
    }
    let medians = times.into_iter().map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    });
    let medians: Vec<f64> = medians.collect();
    for (n, time) in queries.iter().zip(&medians) {
        println!(
            "{n:>4} queries {:>7.2} ({:.2})",
            time * 1e3,
            time / medians[0]
        );
    }
}

fn maps(device: &Device) {
    let x = Tensor::<2>::ones([5, 576], device);
    let weight = Tensor::<1>::ones([576], device);
    let gate = Tensor::<2>::ones([5, 1536], device);
    let heads = Tensor::<3>::ones([5, 9, 64], device);
    let angles = Tensor::<2>::ones([5, 32], device);
    let logits = Tensor::<2>::from_data(TensorData::new(numbers(5 * 49152), [5, 49152]), device);
    let mut norm = || drop(black_box(rms_norm(x.clone(), weight.clone(), 1e-5)));
    let mut act = || drop(black_box(swiglu(gate.clone(), gate.clone())));
    let mut turn = || {
        let pairing = RotaryPairing::HalfSplit;
        drop(black_box(rotary(
            heads.clone(),
            angles.clone(),
            angles.clone(),
            pairing,
        )));
    };
    let mut best = || drop(black_box(argmax_rows(logits.clone())));
    let times = in_turns(99, &mut [&mut norm, &mut act, &mut turn, &mut best]);
    println!("\nmaps over 5 tokens, us");
    let names = [
        "rms_norm 576",
        "swiglu 1536",
        "rotary 9 x 64",
        "argmax 49152",
    ];
    for (name, time) in names.iter().zip(times) {
        println!("{name:>14} {:>7.1}", time.as_secs_f64() * 1e6);
    }
}
