//! Rows that do not begin where their chunks do, and columns that move.

use specdec_kernels::{AttentionPass, AttentionRow, KernelError, Shift, SlotStore};

use crate::oracle::{device, numbers, tensor, values};

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 20;
const CHUNK: usize = 24;

/// Bits of the outputs and weights of two rows (300 columns and 4 new ones, 20 and 2) with this padding.
fn attend(padding: [usize; 2], window: Option<usize>, sparse: bool) -> (Vec<u32>, Vec<u32>) {
    let rows = [(300, 4), (20, 2)];
    let mut store = SlotStore::new(1, KV_HEADS, DIM, CHUNK, &device()).unwrap();
    let mut described = Vec::new();
    let mut next = 0;
    for (&(start, len), &pad) in rows.iter().zip(&padding) {
        let chunks = (pad + start + len).div_ceil(CHUNK) as u32;
        // Chunks in descending order: a wrong place shows.
        let table: Vec<u32> = (next..next + chunks).rev().collect();
        next += chunks;
        described.push(AttentionRow { table, start, len });
    }
    store.reserve(next as usize);
    let part = |seed, from: usize, len: usize, heads: usize| {
        let all = numbers(seed, (from + len) * heads * DIM);
        tensor(&all[from * heads * DIM..], [len, heads, DIM])
    };
    // What lies in the padding is not to be seen.
    let junk = |columns: usize| {
        tensor(
            &vec![1e4; columns * KV_HEADS * DIM],
            [columns, KV_HEADS, DIM],
        )
    };
    for ((seed, row), &pad) in (0..).zip(&described).zip(&padding) {
        if pad > 0 {
            store.write(0, &row.table, 0, junk(pad), junk(pad)).unwrap();
        }
        let (k, v) = (
            part(seed, 0, row.start, KV_HEADS),
            part(seed + 10, 0, row.start, KV_HEADS),
        );
        store.write(0, &row.table, pad, k, v).unwrap();
    }
    let new = |salt, heads| {
        let parts = (0u64..).zip(&described);
        let parts = parts.map(|(seed, row)| part(seed + salt, row.start, row.len, heads));
        burn::tensor::Tensor::cat(parts.collect(), 0)
    };
    let (q, k, v) = (new(20, HEADS), new(0, KV_HEADS), new(10, KV_HEADS));
    let mut pass = AttentionPass::padded(described, padding.to_vec(), CHUNK, &device())
        .unwrap()
        .window(window)
        .weights_of(vec![3, 5])
        .unwrap();
    if sparse {
        pass = pass
            .keys(0, 0, vec![3, 4, 90, 250])
            .unwrap()
            .tail(0, 280)
            .unwrap();
    }
    let attended = store.attend(0, q, k, v, &pass).unwrap();
    let bits = |values: Vec<f32>| values.iter().map(|value| value.to_bits()).collect();
    (
        bits(values(attended.out)),
        bits(values(attended.weights.unwrap())),
    )
}

#[test]
fn padding_changes_no_bit() {
    for window in [None, Some(7), Some(270)] {
        for sparse in [false, true] {
            let plain = attend([0, 0], window, sparse);
            for padding in [[0, 280], [1, 0], [5, 17], [256, 255], [24, 48]] {
                let padded = attend(padding, window, sparse);
                assert!(
                    plain == padded,
                    "padding {padding:?}, window {window:?}, sparse {sparse}"
                );
            }
        }
    }
}

#[test]
fn padding_needs_chunks_and_an_entry_for_each_row() {
    let row = |table: &[u32]| AttentionRow {
        table: table.to_vec(),
        start: 2,
        len: 2,
    };
    let pass = |rows, padding| AttentionPass::padded(rows, padding, 4, &device()).map(|_| ());
    assert_eq!(pass(vec![row(&[0])], vec![0]), Ok(()));
    let short = KernelError::Table {
        row: 0,
        needed: 5,
        held: 4,
    };
    assert_eq!(pass(vec![row(&[0])], vec![1]), Err(short));
    assert!(matches!(
        pass(vec![row(&[0])], vec![]),
        Err(KernelError::Length {
            expected: 1,
            got: 0,
            ..
        })
    ));
    // Rows that share a chunk, side by side: padding keeps their cells apart.
    assert_eq!(pass(vec![row(&[0, 1]), row(&[2, 1])], vec![2, 4]), Ok(()));
    assert!(matches!(
        pass(vec![row(&[0, 1]), row(&[2, 1])], vec![3, 4]),
        Err(KernelError::SharedCell {
            chunk: 1,
            offset: 2
        })
    ));
}

#[test]
fn columns_move_within_their_row() {
    let columns = 40;
    for (from, len, to) in [
        (0, 30, 7),
        (7, 30, 0),
        (3, 16, 19),
        (20, 1, 0),
        (0, 40, 0),
        (5, 0, 9),
        (1, 33, 6),
    ] {
        let mut store = SlotStore::new(2, KV_HEADS, DIM, 10, &device()).unwrap();
        store.reserve(9);
        let tables = [[3, 1, 7, 4], [0, 8, 2, 6]];
        let shape = [columns, KV_HEADS, DIM];
        let held = |layer: usize, row: usize, what: u64| {
            numbers(
                layer as u64 * 4 + row as u64 * 2 + what,
                shape.iter().product(),
            )
        };
        for layer in 0..2 {
            for (row, table) in tables.iter().enumerate() {
                let (k, v) = (held(layer, row, 0), held(layer, row, 1));
                let (k, v) = (tensor(&k, shape), tensor(&v, shape));
                store.write(layer, table, 0, k, v).unwrap();
            }
        }
        let shift = Shift {
            table: tables[0].to_vec(),
            from: from..from + len,
            to,
        };
        store.shift(&[shift]).unwrap();
        let width = KV_HEADS * DIM;
        for layer in 0..2 {
            for (row, table) in tables.iter().enumerate() {
                let (k, v) = store.read(layer, table, 0..columns).unwrap();
                for (what, got) in (0..).zip([values(k), values(v)]) {
                    let mut want = held(layer, row, what);
                    if row == 0 {
                        want.copy_within(from * width..(from + len) * width, to * width);
                    }
                    assert!(got == want, "{len} columns from {from} to {to}, row {row}");
                }
            }
        }
    }
}

#[test]
fn a_move_that_does_not_fit_moves_nothing() {
    let mut store = SlotStore::new(1, 1, 4, 4, &device()).unwrap();
    store.reserve(3);
    let k = tensor(&numbers(1, 16), [4, 1, 4]);
    store.write(0, &[0], 0, k.clone(), k.clone()).unwrap();
    let shift = |table: &[u32], from, to| Shift {
        table: table.to_vec(),
        from,
        to,
    };
    let good = shift(&[0], 0..2, 2);
    for (bad, error) in [
        (
            shift(&[1], 0..2, 3),
            KernelError::Table {
                row: 1,
                needed: 5,
                held: 4,
            },
        ),
        (
            shift(&[1, 3], 0..2, 3),
            KernelError::Chunk {
                chunk: 3,
                chunks: 3,
            },
        ),
        (
            shift(&[1, 0], 0..2, 3),
            KernelError::SharedCell {
                chunk: 0,
                offset: 0,
            },
        ),
    ] {
        assert_eq!(store.shift(&[good.clone(), bad]), Err(error));
    }
    assert_eq!(values(store.read(0, &[0], 0..4).unwrap().0), values(k));
    assert_eq!(store.shift(&[]), Ok(()));
}
