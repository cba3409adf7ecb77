//! Slow and plain versions in f64, and the numbers to feed them.

use burn::tensor::{Device, Tensor, TensorData};
use specdec_kernels::AttentionRow;

pub(crate) fn device() -> Device {
    Device::flex()
}

/// Numbers in -1..1 from a counter and a seed (splitmix64), the same on every machine.
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64)
        .map(|index| {
            let mut z = (seed << 32)
                .wrapping_add(index + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

pub(crate) fn tensor<const D: usize>(data: &[f32], dims: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(data.to_vec(), dims), &device())
}

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().unwrap()
}

#[track_caller]
pub(crate) fn assert_close(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(
            error <= tolerance * (1.0 + expected.abs()),
            "value {index}: {got} for {expected}"
        );
    }
}

/// The sizes of an attention problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

/// One query over the columns `seen`, every head, by the formula. Returns the values `[H * D]` and the weights
/// `[Hkv][columns]`, averaged over the heads of a group.
pub(crate) fn attend_one(
    q: &[f32],
    keys: &[f32],
    vals: &[f32],
    seen: &[usize],
    (size, scale, columns): (Heads, f64, usize),
) -> (Vec<f64>, Vec<f64>) {
    let Heads {
        heads,
        kv_heads,
        dim,
    } = size;
    let group = heads / kv_heads;
    let mut out = vec![0.0; heads * dim];
    let mut mean = vec![0.0; kv_heads * columns];
    for head in 0..heads {
        let kv = head / group;
        let scores = scores_of_head(q, keys, seen, head, (size, scale));
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        for (&column, score) in seen.iter().zip(&scores) {
            let weight = (score - max).exp() / total;
            mean[kv * columns + column] += weight / group as f64;
            for d in 0..dim {
                out[head * dim + d] += weight * f64::from(vals[(column * kv_heads + kv) * dim + d]);
            }
        }
    }
    (out, mean)
}

/// Scores of one query head with the columns `seen`.
fn scores_of_head(
    q: &[f32],
    keys: &[f32],
    seen: &[usize],
    head: usize,
    (size, scale): (Heads, f64),
) -> Vec<f64> {
    let Heads {
        heads,
        kv_heads,
        dim,
    } = size;
    let kv = head / (heads / kv_heads);
    let q = &q[head * dim..][..dim];
    let scores = seen.iter().map(|&column| {
        let key = &keys[(column * kv_heads + kv) * dim..][..dim];
        let products = q
            .iter()
            .zip(key)
            .map(|(&q, &k)| f64::from(q) * f64::from(k));
        products.sum::<f64>() * scale
    });
    scores.collect()
}

/// The scores of one query, `[Hkv][columns]`, averaged over the heads of a group; 0 at columns not seen.
pub(crate) fn scores_one(
    q: &[f32],
    keys: &[f32],
    seen: &[usize],
    (size, scale, columns): (Heads, f64, usize),
) -> Vec<f64> {
    let group = size.heads / size.kv_heads;
    let mut mean = vec![0.0; size.kv_heads * columns];
    for head in 0..size.heads {
        let scores = scores_of_head(q, keys, seen, head, (size, scale));
        for (&column, score) in seen.iter().zip(&scores) {
            mean[head / group * columns + column] += score / group as f64;
        }
    }
    mean
}

/// Chunk tables for rows of the given lengths, dealt in an order that mixes the rows' chunks.
pub(crate) fn deal(
    rows: &[(usize, usize)],
    chunk: usize,
    turn: usize,
) -> (Vec<AttentionRow>, usize) {
    let needs: Vec<usize> = rows
        .iter()
        .map(|&(start, len)| (start + len).div_ceil(chunk))
        .collect();
    let total: usize = needs.iter().sum();
    let mut tables = vec![Vec::new(); rows.len()];
    let mut next = 0;
    while tables
        .iter()
        .zip(&needs)
        .any(|(table, &need)| table.len() < need)
    {
        for (table, &need) in tables.iter_mut().zip(&needs) {
            if table.len() < need {
                table.push(((next + turn) % total) as u32);
                next += 1;
            }
        }
    }
    let rows = rows.iter().zip(tables);
    let rows = rows.map(|(&(start, len), table)| AttentionRow { table, start, len });
    (rows.collect(), total)
}
