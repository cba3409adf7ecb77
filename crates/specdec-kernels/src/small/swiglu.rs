use burn::tensor::{Tensor, activation::silu};

/// The gated unit of Llama-like models (Shazeer 2020): `silu(gate) * up`, element by element, `[T, W]` each.
///
/// # Panics
///
/// When the shapes differ.
pub fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    assert_eq!(gate.dims(), up.dims(), "swiglu: the shapes differ");
    #[cfg(feature = "flex")]
    if crate::extension::on_flex(&gate) && crate::extension::on_flex(&up) {
        return crate::extension::swiglu(gate, up);
    }
    plain(gate, up)
}

/// The same by tensor operations, for every backend.
pub(crate) fn plain(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    silu(gate) * up
}
