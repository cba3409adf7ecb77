//! Attention of a block: every row sees the committed context and all rows of its own block.

use burn::prelude::*;
use burn::tensor::activation::softmax;

/// What hidden scores are lowered by. Not minus infinity: a row with nothing to see must stay finite.
pub(crate) const HIDDEN: f32 = -1e30;

/// Queries `[T, H, D]`, keys and values `[T, Hkv, D]` of block rows.
pub(crate) struct Projected {
    pub(crate) q: Tensor<3>,
    pub(crate) k: Tensor<3>,
    pub(crate) v: Tensor<3>,
}

/// One block after its own context: `[bs, H * D]`.
///
/// * `context`: keys and values of the committed positions it may see, `[n, Hkv, D]` each;
/// * `hide`: `[bs, n]`, added to the scores of the context.
pub(crate) fn one_block(
    block: Projected,
    context: Option<(Tensor<3>, Tensor<3>)>,
    hide: Option<Tensor<2>>,
) -> Tensor<2> {
    let [rows, heads, dim] = block.q.dims();
    let kv_heads = block.k.dims()[1];
    let group = heads / kv_heads;
    let q = block
        .q
        .reshape([rows, kv_heads, group, dim])
        .permute([1, 2, 0, 3])
        .reshape([kv_heads, group * rows, dim]);
    let (k, v) = match context {
        Some((k, v)) => (
            Tensor::cat(vec![k, block.k], 0),
            Tensor::cat(vec![v, block.v], 0),
        ),
        None => (block.k, block.v),
    };
    let mut scores = q
        .mul_scalar((dim as f64).powf(-0.5))
        .matmul(k.permute([1, 2, 0]));
    if let Some(hide) = hide {
        let [_, n] = hide.dims();
        let zeros = Tensor::zeros([rows, rows], &hide.device());
        let hide = Tensor::cat(vec![hide, zeros], 1).repeat_dim(0, group);
        scores = scores + hide.reshape([1, group * rows, n + rows]);
    }
    softmax(scores, 2)
        .matmul(v.swap_dims(0, 1))
        .reshape([kv_heads, group, rows, dim])
        .permute([2, 0, 1, 3])
        .reshape([rows, heads * dim])
}

/// Sizes of a batch of training blocks: B texts of T tokens, N blocks of bs rows in each.
#[cfg(feature = "train")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchShape {
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    pub(crate) blocks: usize,
    pub(crate) rows: usize,
}

/// All blocks of a batch at once, `[B * N * bs, H * D]`; the same numbers as [`one_block`] for each.
///
/// * `context`: keys and values of the texts, `[B * T, Hkv, D]` each;
/// * `hide`: `[B, N * bs, T]`, added to the scores of the context.
#[cfg(feature = "train")]
pub(crate) fn many_blocks(
    block: Projected,
    context: (Tensor<3>, Tensor<3>),
    hide: Tensor<3>,
    shape: BatchShape,
) -> Tensor<2> {
    let BatchShape {
        texts,
        tokens,
        blocks,
        rows,
    } = shape;
    let [_, heads, dim] = block.q.dims();
    let kv_heads = block.k.dims()[1];
    let (group, queries) = (heads / kv_heads, blocks * rows);
    let q = block
        .q
        .mul_scalar((dim as f64).powf(-0.5))
        .reshape([texts, queries, kv_heads, group, dim])
        .permute([0, 2, 3, 1, 4])
        .reshape([texts, kv_heads, group * queries, dim]);
    let whole = |x: Tensor<3>| {
        x.reshape([texts, tokens, kv_heads, dim])
            .permute([0, 2, 1, 3])
    };
    let own = |x: Tensor<3>| {
        x.reshape([texts, queries, kv_heads, dim])
            .permute([0, 2, 1, 3])
            .reshape([texts * kv_heads, 1, queries, dim])
            .repeat_dim(1, group)
            .reshape([texts * kv_heads * group, blocks, rows, dim])
    };
    let hide = hide
        .repeat_dim(1, group)
        .reshape([texts, 1, group * queries, tokens]);
    let (k, v) = (whole(context.0), whole(context.1));
    let far = q.clone().matmul(k.swap_dims(2, 3)) + hide;
    let near = q
        .reshape([texts * kv_heads * group, blocks, rows, dim])
        .matmul(own(block.k).swap_dims(2, 3))
        .reshape([texts, kv_heads, group * queries, rows]);
    let weights = softmax(Tensor::cat(vec![far, near], 3), 3);
    let far = weights.clone().narrow(3, 0, tokens).matmul(v);
    let near = weights
        .narrow(3, tokens, rows)
        .reshape([texts * kv_heads * group, blocks, rows, rows])
        .matmul(own(block.v))
        .reshape([texts, kv_heads, group * queries, dim]);
    (far + near)
        .reshape([texts, kv_heads, group, queries, dim])
        .permute([0, 3, 1, 2, 4])
        .reshape([texts * queries, heads * dim])
}
