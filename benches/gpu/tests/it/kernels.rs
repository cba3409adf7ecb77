//! Kernels and stores against the CPU's, which follow the formulas in f64 (tests of specdec-kernels).

use crate::Check;
use crate::world::{close, numbers, on};
use burn::prelude::*;
use specdec_kernels::{
    AttentionPass, AttentionRow, BlockFormat, RotaryPairing, Shift, SlotStore, WeightMatrix,
    argmax_rows, rms_norm, rotary, swiglu,
};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("attention_is_the_cpus", attention_is_the_cpus),
    (
        "masked_columns_and_junk_do_not_show",
        masked_columns_and_junk_do_not_show,
    ),
    ("columns_move", columns_move),
    ("small_maps_are_the_cpus", small_maps_are_the_cpus),
    (
        "argmax_takes_the_lowest_of_the_best",
        argmax_takes_the_lowest_of_the_best,
    ),
    (
        "weights_of_every_format_multiply_alike",
        weights_of_every_format_multiply_alike,
    ),
];

/// Numbers in -1..1, the same on every machine.
fn some<const D: usize>(seed: u32, shape: [usize; D], device: &Device) -> Tensor<D> {
    let n: usize = shape.iter().product();
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let values: Vec<f32> = (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

const CHUNK: usize = 4;
/// (columns held, new tokens) of each row.
const ROWS: [(usize, usize); 4] = [(0, 5), (17, 1), (3, 4), (30, 2)];

/// The rows with chunks dealt in turn, from the last row's to the first's.
fn rows() -> (Vec<AttentionRow>, usize) {
    let mut next = 0;
    let mut rows: Vec<AttentionRow> = ROWS
        .iter()
        .rev()
        .map(|&(start, len)| {
            // One more than needed: a row may be padded.
            let chunks = (start + len).div_ceil(CHUNK) as u32 + 1;
            next += chunks;
            AttentionRow {
                table: (next - chunks..next).rev().collect(),
                start,
                len,
            }
        })
        .collect();
    rows.reverse();
    (rows, next as usize)
}

/// Passes over the same rows: with a window, with key lists and weights averaged over heads, with lists by head and
/// scores; padding left as it was.
fn passes(device: &Device, padding: usize) -> Vec<AttentionPass> {
    let pass = || {
        let padding = vec![padding; ROWS.len()];
        AttentionPass::padded(rows().0, padding, CHUNK, device).expect("good rows")
    };
    let all: Vec<usize> = (0..12).collect();
    vec![
        pass().weights_of(all.clone()).expect("queries of the pass"),
        pass().window(Some(3)).scale(0.4),
        pass()
            .keys(0, 1, vec![2, 3, 11])
            .and_then(|pass| pass.tail(1, 15))
            .and_then(|pass| pass.keys(0, 3, vec![0]))
            .and_then(|pass| pass.keys(0, 2, Vec::new()))
            .and_then(|pass| pass.weights_of(vec![5, 11, 0]))
            .expect("columns of the rows")
            .average_heads(true),
        pass()
            .head_keys(0, 1, vec![vec![2, 3, 11], vec![0, 9]])
            .and_then(|pass| pass.tail(1, 15))
            .and_then(|pass| pass.keys(0, 3, vec![0]))
            .and_then(|pass| pass.scores_of(vec![5, 11, 0]))
            .expect("columns of the rows"),
    ]
}

/// The store of the test with what the rows hold, in one layer of two.
fn store(device: &Device, padding: usize) -> SlotStore {
    let (rows, chunks) = rows();
    let mut store = SlotStore::new(2, 2, 8, CHUNK, device).expect("good sizes");
    store.reserve(chunks / 2);
    store.reserve(chunks);
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| row.start > 0) {
        let new = |salt| some(salt + i as u32, [row.start, 2, 8], device);
        store
            .write(0, &row.table, padding, new(10), new(20))
            .expect("they fit");
    }
    store
}

fn attention_is_the_cpus(device: &Device) {
    let cpu = Device::flex();
    for padding in [0, 3] {
        for (case, (pass, want)) in passes(device, padding)
            .iter()
            .zip(passes(&cpu, padding))
            .enumerate()
        {
            let attend = |device: &Device, pass: &AttentionPass| {
                let new = |salt, heads| some::<3>(salt, [12, heads, 8], device);
                let mut store = store(device, padding);
                let done = store
                    .attend(0, new(1, 6), new(2, 2), new(3, 2), pass)
                    .expect("it fits");
                // What was written can be read.
                let (k, v) = store
                    .read(0, &rows().0[3].table, padding..padding + 32)
                    .expect("held");
                (
                    numbers(done.out),
                    done.weights.map(|w| (w.dims(), numbers(w))),
                    numbers(k),
                    numbers(v),
                )
            };
            let (want, got) = (attend(&cpu, &want), attend(device, pass));
            let what = format!("padding {padding}, pass {case}");
            close(&want.0, &got.0, 1e-5, &what);
            assert_eq!((&want.2, &want.3), (&got.2, &got.3), "{what}: entries");
            assert_eq!(want.1.is_some(), got.1.is_some());
            if let (Some(want), Some(got)) = (want.1, got.1) {
                assert_eq!(want.0, got.0, "{what}: shape of weights");
                close(&want.1, &got.1, 1e-5, &format!("{what}: weights"));
            }
        }
    }
}

/// What a query does not see may be anything: not a number, infinite, huge.
fn masked_columns_and_junk_do_not_show(device: &Device) {
    for junk in [f32::NAN, f32::INFINITY, 1e30] {
        let out = |junk: Option<f32>| {
            let mut store = SlotStore::new(1, 1, 8, CHUNK, device).expect("good sizes");
            store.reserve(8);
            let table: Vec<u32> = vec![5, 2];
            let other: Vec<u32> = vec![1, 7, 3];
            let entries = |salt, n| some::<3>(salt, [n, 1, 8], device);
            store
                .write(0, &table, 0, entries(1, 5), entries(2, 5))
                .expect("they fit");
            if let Some(junk) = junk {
                // Another row's columns, and this row's later ones.
                let bad = |n| Tensor::<3>::full([n, 1, 8], junk, device);
                store
                    .write(0, &other, 0, bad(12), bad(12))
                    .expect("they fit");
                store.write(0, &table, 7, bad(1), bad(1)).expect("they fit");
            }
            let rows = vec![
                AttentionRow {
                    table,
                    start: 5,
                    len: 1,
                },
                AttentionRow {
                    table: vec![0, 4, 6],
                    start: 0,
                    len: 9,
                },
            ];
            let pass = AttentionPass::new(rows, CHUNK, device).expect("good rows");
            let new = |salt| entries(salt, 10);
            numbers(
                store
                    .attend(0, new(3), new(4), new(5), &pass)
                    .expect("it fits")
                    .out,
            )
        };
        assert_eq!(out(None), out(Some(junk)), "{junk}");
    }
}

fn columns_move(device: &Device) {
    let shifted = |device: &Device| {
        let mut store = store(device, 0);
        let (rows, _) = rows();
        let shifts = [
            Shift {
                table: rows[1].table.clone(),
                from: 0..17,
                to: 3,
            },
            Shift {
                table: rows[3].table.clone(),
                from: 5..30,
                to: 0,
            },
        ];
        store.shift(&shifts).expect("they reach");
        [(1, 3..20), (3, 0..25), (2, 0..3)].map(|(row, range)| {
            let (k, v) = store.read(0, &rows[row].table, range).expect("held");
            (numbers(k), numbers(v))
        })
    };
    assert_eq!(shifted(&Device::flex()), shifted(device));
}

fn small_maps_are_the_cpus(device: &Device) {
    let cpu = Device::flex();
    for (rows, width) in [(1, 1), (3, 20), (5, 577)] {
        let (x, w) = (
            some::<2>(1, [rows, width], &cpu) * 9.0,
            some::<1>(2, [width], &cpu),
        );
        let want = numbers(rms_norm(x.clone(), w.clone(), 1e-5));
        close(
            &want,
            &numbers(rms_norm(on(&x, device), on(&w, device), 1e-5)),
            1e-5,
            "rms_norm",
        );
        let up = some::<2>(3, [rows, width], &cpu);
        let want = numbers(swiglu(x.clone(), up.clone()));
        close(
            &want,
            &numbers(swiglu(on(&x, device), on(&up, device))),
            1e-5,
            "swiglu",
        );
    }
    for pairing in [RotaryPairing::HalfSplit, RotaryPairing::Interleaved] {
        for (dim, turned) in [(8, 8), (20, 12), (6, 0)] {
            let x = some::<3>(4, [7, 3, dim], &cpu);
            let angles = some::<2>(5, [7, turned / 2], &cpu) * 3.0;
            let (cos, sin) = (angles.clone().cos(), angles.sin());
            let want = numbers(rotary(x.clone(), cos.clone(), sin.clone(), pairing));
            let got = rotary(on(&x, device), on(&cos, device), on(&sin, device), pairing);
            close(&want, &numbers(got), 1e-5, "rotary");
            if turned == 0 {
                break;
            }
        }
    }
}

fn argmax_takes_the_lowest_of_the_best(device: &Device) {
    let (none, nan) = (f32::NEG_INFINITY, f32::NAN);
    let rows = [
        [1.0, 3.0, 3.0, 2.0, 3.0],
        [none, none, none, none, none],
        [nan, -2.0, nan, -1.0, -1.0],
        [nan, nan, nan, nan, nan],
        [0.0, -0.0, none, nan, -1.0],
    ];
    let data = TensorData::new(rows.concat(), [rows.len(), 5]);
    let best = argmax_rows(Tensor::from_data(data, device)).into_data();
    let best: Vec<i64> = best.iter::<i64>().collect();
    assert_eq!(best, [1, 0, 3, 0, 0]);
    // Wider than any work group, the best one shared by places far apart.
    let width = 5000;
    let mut row = vec![0.5f32; width];
    for at in [4999, 1037, 2048] {
        row[at] = 0.75;
    }
    let best = argmax_rows(Tensor::<2>::from_data(
        TensorData::new(row, [1, width]),
        device,
    ));
    assert_eq!(best.into_data().iter::<i64>().collect::<Vec<_>>(), [1037]);
}

/// Blocks of a format whose values are numbers of moderate size.
fn blocks(format: BlockFormat, count: usize) -> Vec<u8> {
    let bytes = count * format.block_bytes();
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut out: Vec<u8> = (0..bytes).map(|_| next()).collect();
    // The exponents of floats, and the f16 scales at either end of a block, are kept small.
    match format {
        BlockFormat::F32 => out.chunks_mut(4).for_each(|b| b[3] = 0x3e | (b[3] & 0x80)),
        BlockFormat::F16 => out.chunks_mut(2).for_each(|b| b[1] = 0x30 | (b[1] & 0x83)),
        BlockFormat::BF16 => out.chunks_mut(2).for_each(|b| b[1] = 0x3e | (b[1] & 0x80)),
        BlockFormat::Q2K => out.chunks_mut(format.block_bytes()).for_each(|b| {
            (b[81], b[83]) = (0x20, 0x20);
        }),
        BlockFormat::Q3K | BlockFormat::Q6K => out.chunks_mut(format.block_bytes()).for_each(|b| {
            *b.last_mut().expect("a block") = 0x10;
        }),
        _ => out
            .chunks_mut(format.block_bytes())
            .for_each(|b| (b[1], b[3]) = (0x20, 0x20)),
    }
    out
}

fn weights_of_every_format_multiply_alike(device: &Device) {
    let cpu = Device::flex();
    let (n, k) = (33, 512);
    for format in BlockFormat::ALL {
        let bytes = blocks(format, n * k / format.block_len());
        let weight =
            |device| WeightMatrix::from_blocks(format, &bytes, n, k, device).expect("whole blocks");
        let (want, got) = (weight(&cpu), weight(device));
        // From 17 on the values of a quantised weight are made for the product.
        for tokens in [1, 5, 16, 19] {
            let x = some::<2>(9, [tokens, k], &cpu);
            let (want, got) = (want.matmul(x.clone()), got.matmul(on(&x, device)));
            close(&numbers(want), &numbers(got), 1e-4, &format.to_string());
        }
        let quantised = !matches!(
            format,
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16
        );
        assert!(
            !quantised || got.memory_bytes() < 3 * n * k,
            "{format}: blocks stay blocks"
        );
        assert_eq!(
            numbers(want.to_dense()),
            numbers(got.to_dense()),
            "{format}: values"
        );
        let ids = |device| Tensor::<1, Int>::from_data([4i64, 0, 32], device);
        let (want, got) = (want.rows(ids(&cpu)), got.rows(ids(device)));
        assert_eq!(numbers(want), numbers(got), "{format}: rows");
    }
}
