//! Attention that reads the store in place against the plain version on the same device.

use crate::Check;
use crate::world::{close, numbers};
use burn::prelude::*;
use burn::tensor::{DType, FloatDType};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use specdec_kernels::{Attended, AttentionPass, AttentionRow, SlotStore};
use std::process::Command;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("random_passes", random_passes),
    ("long_rows_in_parts", long_rows_in_parts),
    ("a_store_that_grows", a_store_that_grows),
    ("queries_of_any_strides", queries_of_any_strides),
    (
        "unlisted_columns_are_not_read",
        unlisted_columns_are_not_read,
    ),
    ("what_was_wrong_is_said", what_was_wrong_is_said),
    ("entries_in_f16", |device| {
        entries_in(device, FloatDType::F16)
    }),
    ("entries_in_bf16", |device| {
        entries_in(device, FloatDType::BF16)
    }),
];

/// Names the type of the device's numbers, in a process of its own.
const FLOAT: &str = "SPECDEC_FLOAT";

/// The type of numbers that this process is to have.
pub(crate) fn float() -> Option<FloatDType> {
    let types = [FloatDType::F16, FloatDType::BF16];
    let name = std::env::var(FLOAT).ok()?;
    types.into_iter().find(|dtype| format!("{dtype:?}") == name)
}

/// Head dimensions: powers of two, odd ones, and more than a cube has units.
const DIMS: [usize; 7] = [1, 7, 8, 33, 64, 80, 130];

#[derive(Debug, Clone)]
struct Row {
    start: usize,
    len: usize,
    padding: usize,
    list: Option<Vec<u32>>,
    tail: Option<usize>,
}

#[derive(Debug, Clone)]
struct Case {
    rows: Vec<Row>,
    chunk: usize,
    dim: usize,
    kv_heads: usize,
    group: usize,
    window: Option<usize>,
    scale: Option<f32>,
    /// Shares of the tokens, in thousandths.
    asked: Vec<usize>,
}

fn row() -> impl Strategy<Value = Row> {
    (0..90usize, 1..10usize, 0..7usize).prop_flat_map(|(start, len, padding)| {
        let list = btree_set(0..start.max(1) as u32, 0..=start.min(20));
        let list = list.prop_map(move |list| -> Vec<u32> {
            let below = |column: &u32| (*column as usize) < start;
            list.into_iter().filter(below).collect()
        });
        let (list, tail) = (proptest::option::of(list), proptest::option::of(0..=start));
        (list, tail).prop_map(move |(list, tail)| Row {
            start,
            len,
            padding,
            list,
            tail,
        })
    })
}

fn cases() -> impl Strategy<Value = Case> {
    (
        vec(row(), 1..6),
        1..20usize,
        (0..DIMS.len(), 1..4usize, 1..6usize),
        proptest::option::of(0..40usize),
        proptest::option::of(0.05..0.5f32),
        vec(0..1000usize, 0..5),
    )
        .prop_map(
            |(rows, chunk, (dim, kv_heads, group), window, scale, asked)| Case {
                rows,
                chunk,
                dim: DIMS[dim],
                kv_heads,
                group,
                window,
                scale,
                asked,
            },
        )
}

/// Numbers in -1..1, the same on every machine.
fn some(seed: u32, shape: [usize; 3], device: &Device) -> Tensor<3> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(977);
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

impl Case {
    fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.len).sum()
    }

    /// The rows with chunks dealt in turn, and how many chunks there are.
    fn dealt(&self) -> (Vec<AttentionRow>, usize) {
        let places = |row: &Row| row.padding + row.start + row.len;
        let counts: Vec<usize> = self
            .rows
            .iter()
            .map(|row| places(row).div_ceil(self.chunk))
            .collect();
        let mut tables = vec![Vec::new(); counts.len()];
        let mut next = 0;
        for round in 0..counts.iter().copied().max().unwrap_or(0) {
            for (table, _) in tables.iter_mut().zip(&counts).filter(|(_, n)| round < **n) {
                table.push(next);
                next += 1;
            }
        }
        let rows = self
            .rows
            .iter()
            .zip(tables)
            .map(|(row, table)| AttentionRow {
                table,
                start: row.start,
                len: row.len,
            });
        (rows.collect(), next as usize)
    }

    fn pass(&self, device: &Device) -> AttentionPass {
        let padding = self.rows.iter().map(|row| row.padding).collect();
        let pass = AttentionPass::padded(self.dealt().0, padding, self.chunk, device);
        let mut pass = pass.expect("good rows").window(self.window);
        if let Some(scale) = self.scale {
            pass = pass.scale(scale);
        }
        for (number, row) in self.rows.iter().enumerate() {
            if let Some(list) = &row.list {
                pass = pass.keys(1, number, list.clone()).expect("its columns");
            }
            if let Some(tail) = row.tail {
                pass = pass.tail(number, tail).expect("one of its columns");
            }
        }
        let tokens = self.tokens();
        let asked = self.asked.iter().map(|share| share * tokens / 1000);
        pass.weights_of(asked.collect()).expect("its tokens")
    }

    /// A store of two layers that holds the rows' earlier columns.
    fn store(&self, device: &Device) -> SlotStore {
        let (rows, chunks) = self.dealt();
        let store = SlotStore::new(2, self.kv_heads, self.dim, self.chunk, device);
        let mut store = store.expect("good sizes");
        store.reserve(chunks);
        for layer in 0..2 {
            for (number, (row, Row { padding, .. })) in rows.iter().zip(&self.rows).enumerate() {
                if row.start > 0 {
                    let seed = (100 * layer + number) as u32;
                    let new =
                        |salt| some(seed + salt, [row.start, self.kv_heads, self.dim], device);
                    store
                        .write(layer, &row.table, *padding, new(1000), new(2000))
                        .expect("they fit");
                }
            }
        }
        store
    }

    fn attend(&self, store: &mut SlotStore, layer: usize, pass: &AttentionPass) -> Attended {
        let device = pass.device();
        let new = |salt, heads| some(salt, [self.tokens(), heads, self.dim], device);
        let q = new(1, self.kv_heads * self.group);
        store
            .attend(layer, q, new(2, self.kv_heads), new(3, self.kv_heads), pass)
            .expect("it fits")
    }

    fn check(&self, device: &Device) {
        let pass = self.pass(device);
        let plain = pass.clone().plain(true);
        let mut store = self.store(device);
        // Layer 1 has the key lists.
        for layer in 0..2 {
            let want = self.attend(&mut store, layer, &plain);
            let got = self.attend(&mut store, layer, &pass);
            same(&want, &got, &format!("layer {layer} of {self:?}"));
        }
    }
}

/// How far apart two ways of computing may be in numbers of this type.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 2e-2,
        _ => 1e-5,
    }
}

fn same(want: &Attended, got: &Attended, what: &str) {
    assert_eq!(want.out.dtype(), got.out.dtype(), "{what}: type");
    assert_eq!(want.out.dims(), got.out.dims(), "{what}: shape");
    let tolerance = tolerance(want.out.dtype());
    let of = |done: &Attended| numbers(done.out.clone());
    close(&of(want), &of(got), tolerance, what);
    assert_eq!(want.weights.is_some(), got.weights.is_some(), "{what}");
    if let (Some(want), Some(got)) = (&want.weights, &got.weights) {
        assert_eq!(want.dims(), got.dims(), "{what}: shape of weights");
        let (want, got) = (numbers(want.clone()), numbers(got.clone()));
        close(&want, &got, tolerance, &format!("{what}: weights"));
        for (want, got) in want.iter().zip(&got) {
            assert_eq!(*want == 0.0, *got == 0.0, "{what}: columns with weight");
        }
    }
}

fn random_passes(device: &Device) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..40 {
        let case = cases().new_tree(&mut runner).expect("a case").current();
        case.check(device);
    }
}

/// Few queries and many keys: several cubes share the keys of a row, and their sums are joined.
fn long_rows_in_parts(device: &Device) {
    let row = |start, list: Option<Vec<u32>>| Row {
        start,
        len: 2,
        padding: 1,
        list,
        tail: Some(start - 3),
    };
    for (rows, window) in [
        (vec![row(2100, None)], None),
        (
            vec![
                row(1500, Some((0..1400).step_by(2).collect())),
                row(300, None),
                row(3, Some(vec![])),
            ],
            Some(1200),
        ),
    ] {
        let case = Case {
            rows,
            chunk: 16,
            dim: 16,
            kv_heads: 2,
            group: 3,
            window,
            scale: None,
            asked: vec![0, 999],
        };
        case.check(device);
    }
}

/// Chunks that come later hold columns of rows that are there already.
fn a_store_that_grows(device: &Device) {
    let (chunk, heads, dim) = (4, 2, 8);
    let mut stores = [false, true].map(|plain| {
        let store = SlotStore::new(1, heads, dim, chunk, device);
        (plain, store.expect("good sizes"))
    });
    for step in 0..9usize {
        let start = 3 * step;
        let table = (0..(start + 3).div_ceil(chunk) as u32).collect();
        let rows = vec![AttentionRow {
            table,
            start,
            len: 3,
        }];
        let pass = AttentionPass::new(rows, chunk, device).expect("good rows");
        let new = |salt: u32, heads| some(salt + step as u32, [3, heads, dim], device);
        let [want, got] = stores.each_mut().map(|(plain, store)| {
            store.reserve((start + 3).div_ceil(chunk));
            let pass = pass.clone().plain(*plain);
            let (q, k, v) = (new(1, 2 * heads), new(50, heads), new(90, heads));
            store.attend(0, q, k, v, &pass).expect("it fits")
        });
        same(&want, &got, &format!("step {step}"));
    }
}

/// Queries that lie head after head, or are part of a larger tensor.
fn queries_of_any_strides(device: &Device) {
    let case = Case {
        rows: vec![Row {
            start: 11,
            len: 5,
            padding: 0,
            list: None,
            tail: None,
        }],
        chunk: 4,
        dim: 8,
        kv_heads: 2,
        group: 2,
        window: None,
        scale: None,
        asked: vec![0, 500],
    };
    let pass = case.pass(device);
    let turned = some(5, [4, 5, 8], device).swap_dims(0, 1);
    let wide = some(6, [5, 4, 24], device).slice([0..5, 0..4, 8..16]);
    for q in [turned, wide] {
        let attend = |pass: &AttentionPass| {
            let mut store = case.store(device);
            let new = |salt| {
                some(salt, [5, 2, 8], device)
                    .swap_dims(0, 1)
                    .swap_dims(0, 1)
            };
            store
                .attend(0, q.clone(), new(7), new(8), pass)
                .expect("it fits")
        };
        same(
            &attend(&pass.clone().plain(true)),
            &attend(&pass),
            "strides",
        );
    }
}

/// A value that is not a number, in a column that is not on the list, shows in the plain version, which multiplies it
/// by zero. Where the store is read in place it is not read.
fn unlisted_columns_are_not_read(device: &Device) {
    let (heads, dim) = (2, 8);
    let store = SlotStore::new(1, heads, dim, 4, device);
    let mut store = store.expect("good sizes");
    store.reserve(3);
    let table: Vec<u32> = vec![2, 0, 1];
    let new = |salt, len| some(salt, [len, heads, dim], device);
    store
        .write(0, &table, 0, new(1, 9), new(2, 9))
        .expect("they fit");
    let nan = Tensor::<3>::full([1, heads, dim], f32::NAN, device);
    store
        .write(0, &table, 5, nan.clone(), nan)
        .expect("they fit");
    let rows = vec![AttentionRow {
        table,
        start: 9,
        len: 2,
    }];
    let pass = AttentionPass::new(rows, 4, device)
        .and_then(|pass| pass.keys(0, 0, vec![0, 4, 6, 8]))
        .and_then(|pass| pass.weights_of(vec![1]))
        .expect("columns of the row");
    let q = some(3, [2, 2 * heads, dim], device);
    let done = store.attend(0, q, new(4, 2), new(5, 2), &pass);
    let done = done.expect("it fits");
    let weights = done.weights.expect("they were asked for");
    for number in [numbers(done.out), numbers(weights)].concat() {
        assert!(number.is_finite(), "{number}");
    }
}

/// Errors are those of every other backend, and come before anything is launched.
fn what_was_wrong_is_said(device: &Device) {
    let store = SlotStore::new(1, 2, 8, 4, device);
    let mut store = store.expect("good sizes");
    store.reserve(2);
    let rows = |chunk| {
        vec![AttentionRow {
            table: vec![chunk],
            start: 0,
            len: 1,
        }]
    };
    let mut attend = |chunk, heads, dim| {
        let pass = AttentionPass::new(rows(chunk), 4, device).expect("good rows");
        let new = |heads| some(1, [1, heads, dim], device);
        let done = store.attend(0, new(heads), new(2), new(2), &pass);
        done.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(attend(0, 4, 8), Ok(()));
    for (chunk, heads, dim) in [(2, 4, 8), (0, 3, 8), (0, 4, 7)] {
        let error = attend(chunk, heads, dim).expect_err("it does not fit");
        assert!(!error.is_empty());
    }
}

/// The same checks in a process whose device holds and computes with another type.
fn entries_in(device: &Device, dtype: FloatDType) {
    if !device.supports_dtype(DType::from(dtype)) {
        println!("{dtype:?}: the device has not got it");
        return;
    }
    if float().is_some() {
        return;
    }
    let program = std::env::current_exe().expect("a running program");
    let output = Command::new(program)
        .env(FLOAT, format!("{dtype:?}"))
        .arg("in_place::")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{trouble}");
}
