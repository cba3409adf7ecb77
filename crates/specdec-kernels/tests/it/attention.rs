//! Ragged attention against the formula.

use specdec_kernels::{AttentionPass, KernelError, SlotStore};

use crate::oracle::{Heads, assert_close, deal, device, tensor, values};
use crate::problem::{Problem, SMALL};

#[test]
fn ragged_rows_follow_the_formula() {
    for (rows, chunk) in [
        (vec![(0, 1)], 4),
        (vec![(0, 5), (17, 1), (3, 4)], 4),
        (vec![(300, 3), (0, 40), (255, 2), (256, 1)], 16),
        (vec![(700, 9)], 7),
    ] {
        let problem = Problem::new(SMALL, &rows, chunk, 1);
        let (attended, _) = problem.attend(|pass| pass);
        let (expected, _) = problem.expected(|_, p| (0..=p).collect());
        assert_close(&values(attended.out), &expected, 2e-6);
        assert!(attended.weights.is_none());
    }
}

#[test]
fn real_head_sizes_follow_the_formula() {
    for dim in [64, 128] {
        let size = Heads {
            heads: 9,
            kv_heads: 3,
            dim,
        };
        let problem = Problem::new(size, &[(530, 6), (31, 1)], 32, 2);
        let (attended, _) = problem.attend(|pass| pass);
        let (expected, _) = problem.expected(|_, p| (0..=p).collect());
        assert_close(&values(attended.out), &expected, 2e-6);
    }
}

#[test]
fn a_window_hides_what_lies_before_it() {
    for window in [1, 3, 100, 270, 1000] {
        let problem = Problem::new(SMALL, &[(300, 4), (2, 5)], 16, 3);
        let (attended, _) = problem.attend(|pass| pass.window(Some(window)));
        let (expected, _) = problem.expected(|_, p| ((p + 1).saturating_sub(window)..=p).collect());
        assert_close(&values(attended.out), &expected, 2e-6);
    }
}

#[test]
fn what_was_written_reads_back_exactly() {
    let problem = Problem::new(SMALL, &[(5, 4), (20, 2)], 8, 6);
    let (_, store) = problem.attend(|pass| pass);
    let (rows, _) = deal(&problem.rows, 8, 1);
    for (r, row) in rows.iter().enumerate() {
        let end = row.start + row.len;
        let (k, v) = store.read(1, &row.table, 3..end).unwrap();
        let width = SMALL.kv_heads * SMALL.dim;
        assert_eq!(values(k), problem.keys[r][3 * width..]);
        assert_eq!(values(v), problem.vals[r][3 * width..]);
    }
    let (k, _) = store.read(0, &rows[0].table, 0..9).unwrap();
    assert!(
        values(k).iter().all(|&value| value == 0.0),
        "layer 0 was never written"
    );
}

#[test]
fn a_pass_that_does_not_write_reads_the_cells() {
    let problem = Problem::new(SMALL, &[(9, 2)], 4, 7);
    let (rows, chunks) = deal(&problem.rows, 4, 0);
    let mut store = problem.store(&rows, chunks);
    let width = SMALL.kv_heads * SMALL.dim;
    let shape = [2, SMALL.kv_heads, SMALL.dim];
    let k = tensor(&problem.keys[0][9 * width..], shape);
    let v = tensor(&problem.vals[0][9 * width..], shape);
    store
        .write(1, &rows[0].table, 9, k.clone(), v.clone())
        .unwrap();
    let pass = AttentionPass::new(rows, 4, &device()).unwrap().write(false);
    let q = tensor(&problem.q, [2, SMALL.heads, SMALL.dim]);
    let attended = store
        .attend(1, q, k.mul_scalar(3.0), v.mul_scalar(5.0), &pass)
        .unwrap();
    let (expected, _) = problem.expected(|_, p| (0..=p).collect());
    assert_close(&values(attended.out), &expected, 2e-6);
}

/// The hash model's attention (one head, keys (j, j^2), queries (2 t, -1) times 400, scale 1): the value at `t` comes
/// out exactly, whatever the others hold.
#[test]
fn a_gap_of_400_selects_one_value_exactly() {
    let len = 126;
    let keys: Vec<f32> = (0..len).flat_map(|j| [j as f32, (j * j) as f32]).collect();
    let vals: Vec<f32> = (0..len)
        .flat_map(|j| [(j * 37 % 2039) as f32, 0.0])
        .collect();
    for distance in [1, 2, 4, 64] {
        let q: Vec<f32> = (0..len)
            .map(|p: usize| p.saturating_sub(distance))
            .flat_map(|t| [400.0 * 2.0 * t as f32, -400.0])
            .collect();
        let (rows, chunks) = deal(&[(0, len)], 16, 0);
        let mut store = SlotStore::new(1, 1, 2, 16, &device()).unwrap();
        store.reserve(chunks);
        let pass = AttentionPass::new(rows, 16, &device()).unwrap().scale(1.0);
        let shape = [len, 1, 2];
        let (q, k, v) = (
            tensor(&q, shape),
            tensor(&keys, shape),
            tensor(&vals, shape),
        );
        let got = values(store.attend(0, q, k, v, &pass).unwrap().out);
        for p in 0..len {
            assert_eq!(
                got[2 * p],
                vals[2 * p.saturating_sub(distance)],
                "position {p}"
            );
        }
    }
}

#[test]
fn errors_name_what_does_not_fit() {
    let device = device();
    let row = |table: &[u32], start, len| specdec_kernels::AttentionRow {
        table: table.to_vec(),
        start,
        len,
    };
    let pass = |rows| AttentionPass::new(rows, 4, &device);
    assert_eq!(
        pass(vec![row(&[0, 1], 7, 2)]).unwrap_err(),
        KernelError::Table {
            row: 0,
            needed: 9,
            held: 8
        }
    );
    assert_eq!(
        pass(vec![row(&[2, 5], 5, 1), row(&[5], 1, 1)]).unwrap_err(),
        KernelError::SharedCell {
            chunk: 5,
            offset: 1
        }
    );
    assert!(matches!(pass(vec![]), Err(KernelError::Zero { .. })));
    assert!(matches!(
        pass(vec![row(&[0], 0, 0)]),
        Err(KernelError::Zero { .. })
    ));
    let one = pass(vec![row(&[9], 2, 1)]).unwrap();
    assert_eq!(
        one.clone().keys(0, 0, vec![2]).unwrap_err(),
        KernelError::Column {
            row: 0,
            column: 2,
            start: 2
        }
    );
    assert_eq!(
        one.clone().keys(0, 1, vec![]).unwrap_err(),
        KernelError::Row { row: 1, rows: 1 }
    );
    for asked in [AttentionPass::weights_of, AttentionPass::scores_of] {
        assert_eq!(
            asked(one.clone(), vec![0, 1]).unwrap_err(),
            KernelError::Query {
                query: 1,
                tokens: 1
            }
        );
    }
    assert!(matches!(
        one.clone().head_keys(0, 0, vec![]),
        Err(KernelError::Zero { .. })
    ));
    assert!(matches!(
        one.clone().head_keys(0, 0, vec![vec![1], vec![2]]),
        Err(KernelError::Column { column: 2, .. })
    ));

    let mut store = SlotStore::new(1, 2, 4, 4, &device).unwrap();
    store.reserve(3);
    assert_eq!(store.chunks(), 3);
    assert_eq!(store.memory_bytes(), 3 * store.bytes_per_chunk());
    let cube = |dims: [usize; 3]| tensor(&vec![0.0; dims.iter().product()], dims);
    let (q, k) = (cube([1, 4, 4]), cube([1, 2, 4]));
    assert_eq!(
        store
            .attend(0, q.clone(), k.clone(), k.clone(), &one)
            .unwrap_err(),
        KernelError::Chunk {
            chunk: 9,
            chunks: 3
        }
    );
    let fits = pass(vec![row(&[2], 2, 1)]).unwrap();
    assert!(
        store
            .attend(0, q.clone(), k.clone(), k.clone(), &fits)
            .is_ok()
    );
    let three = fits.clone().head_keys(0, 0, vec![vec![0]; 3]).unwrap();
    assert!(matches!(
        store.attend(0, q.clone(), k.clone(), k.clone(), &three),
        Err(KernelError::Length {
            expected: 2,
            got: 3,
            ..
        })
    ));
    assert_eq!(
        store
            .attend(1, q.clone(), k.clone(), k.clone(), &fits)
            .unwrap_err(),
        KernelError::Layer {
            layer: 1,
            layers: 1
        }
    );
    assert_eq!(
        store
            .attend(0, cube([1, 3, 4]), k.clone(), k.clone(), &fits)
            .unwrap_err(),
        KernelError::Heads {
            heads: 3,
            kv_heads: 2
        }
    );
    assert!(matches!(
        store.attend(0, q.clone(), cube([2, 2, 4]), k.clone(), &fits),
        Err(KernelError::Shape { what: "keys", .. })
    ));
    assert!(matches!(
        store.write(0, &[1, 1], 2, cube([4, 2, 4]), cube([4, 2, 4])),
        Err(KernelError::SharedCell { chunk: 1, .. })
    ));
    assert!(matches!(
        store.read(0, &[0], 0..5),
        Err(KernelError::Table {
            needed: 5,
            held: 4,
            ..
        })
    ));
    assert!(matches!(
        SlotStore::new(1, 0, 4, 4, &device),
        Err(KernelError::Zero { .. })
    ));
}
