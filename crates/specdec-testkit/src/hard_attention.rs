//! Attention that looks at exactly one position, whatever the kernel.
//!
//! With key `(j, j^2)` at position j and query `(2t, -1) * GAP`, the score is
//! `GAP * (t^2 - (j - t)^2)`: the visible position nearest to t wins by at least `GAP`, every other
//! weight underflows to 0 in f32, and the attended value is that position's value exactly.

use burn::prelude::*;

/// Head dimension: the two coordinates, padded to a size that every kernel takes.
pub(crate) const HEAD_DIM: usize = 4;
/// Distance between the best score and the next.
const GAP: f32 = 400.0;
/// Up to here scores stay far enough apart in f32.
pub(crate) const MAX_CONTEXT: usize = 1024;

/// Keys of tokens at these positions, `[T, 1]` to `[T, Hkv, D]`.
pub(crate) fn keys(positions: &Tensor<2>, kv_heads: usize) -> Tensor<3> {
    spread(
        positions.clone(),
        positions.clone() * positions.clone(),
        kv_heads,
    )
}

/// Queries that look at these positions, `[T, 1]` to `[T, H, D]`.
pub(crate) fn queries(targets: &Tensor<2>, heads: usize) -> Tensor<3> {
    let ones = targets.ones_like();
    spread(targets.clone() * (2.0 * GAP), ones * -GAP, heads)
}

/// Values, `[T, 1]` to `[T, 1, D]`.
pub(crate) fn values(of: &Tensor<2>) -> Tensor<3> {
    spread(of.clone(), of.zeros_like(), 1)
}

fn spread(x: Tensor<2>, y: Tensor<2>, heads: usize) -> Tensor<3> {
    let zeros = Tensor::zeros([x.dims()[0], HEAD_DIM - 2], &x.device());
    let one = Tensor::cat(vec![x, y, zeros], 1).unsqueeze_dim::<3>(1);
    if heads == 1 {
        one
    } else {
        one.repeat_dim(1, heads)
    }
}
