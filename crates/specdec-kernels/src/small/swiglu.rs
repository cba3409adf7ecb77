use burn::tensor::{Tensor, activation::silu};

/// The gated unit of Llama-like models (Shazeer 2020): `silu(gate) * up`, element by element, `[T, W]` each.
///
/// # Panics
///
/// When the shapes differ, as Burn's own operations do.
pub fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    plain(gate, up)
}

/// The same by tensor operations, for every backend.
pub(crate) fn plain(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    silu(gate) * up
}
