use burn::tensor::{Tensor, s};

/// Which two dimensions of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RotaryPairing {
    /// `i` with `i + D_rot / 2`: the layout of Hugging Face checkpoints (GPT-NeoX).
    HalfSplit,
    /// `2 i` with `2 i + 1`: the layout of the paper and of ggml's Llama files (GPT-J).
    Interleaved,
}

/// Rotary position embedding (Su et al. 2021) of `x [T, H, D]`.
///
/// `cos` and `sin` are `[T, D_rot / 2]`: the angle of token `t` and pair `i`. The first `D_rot` dimensions of every
/// head rotate, the others pass through. Returns `[T, H, D]`.
///
/// # Panics
///
/// When `cos` and `sin` differ in shape, have another number of tokens, or `D_rot > D`.
pub fn rotary(x: Tensor<3>, cos: Tensor<2>, sin: Tensor<2>, pairing: RotaryPairing) -> Tensor<3> {
    let [tokens, _, dim] = x.dims();
    let [angles, pairs] = cos.dims();
    assert!(
        cos.dims() == sin.dims() && angles == tokens && pairs * 2 <= dim,
        "rotary: cos {:?} and sin {:?} for {tokens} tokens and heads of {dim}",
        cos.dims(),
        sin.dims(),
    );
    #[cfg(feature = "flex")]
    if crate::extension::on_flex(&x)
        && crate::extension::on_flex(&cos)
        && crate::extension::on_flex(&sin)
    {
        return crate::extension::rotary(x, cos, sin, pairing);
    }
    plain(x, cos, sin, pairing)
}

/// The same by tensor operations, for every backend.
pub(crate) fn plain(
    x: Tensor<3>,
    cos: Tensor<2>,
    sin: Tensor<2>,
    pairing: RotaryPairing,
) -> Tensor<3> {
    let [tokens, heads, dim] = x.dims();
    let pairs = cos.dims()[1];
    if pairs == 0 {
        return x;
    }
    let cos = cos.reshape([tokens, 1, pairs]);
    let sin = sin.reshape([tokens, 1, pairs]);
    let turn = |a: Tensor<3>, b: Tensor<3>| {
        (
            a.clone() * cos.clone() - b.clone() * sin.clone(),
            b * cos.clone() + a * sin.clone(),
        )
    };
    let turned = match pairing {
        RotaryPairing::HalfSplit => {
            let a = x.clone().slice(s![.., .., 0..pairs]);
            let b = x.clone().slice(s![.., .., pairs..2 * pairs]);
            let (a, b) = turn(a, b);
            Tensor::cat(vec![a, b], 2)
        }
        RotaryPairing::Interleaved => {
            let parts = x
                .clone()
                .slice(s![.., .., 0..2 * pairs])
                .reshape([tokens, heads, pairs, 2]);
            let part = |which: usize| {
                parts
                    .clone()
                    .slice(s![.., .., .., which..which + 1])
                    .reshape([tokens, heads, pairs])
            };
            let (a, b) = turn(part(0), part(1));
            let shape = [tokens, heads, pairs, 1];
            Tensor::cat(vec![a.reshape(shape), b.reshape(shape)], 3).reshape([
                tokens,
                heads,
                2 * pairs,
            ])
        }
    };
    if 2 * pairs == dim {
        turned
    } else {
        Tensor::cat(vec![turned, x.slice(s![.., .., 2 * pairs..])], 2)
    }
}
