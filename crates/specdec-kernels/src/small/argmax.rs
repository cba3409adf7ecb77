use burn::tensor::{Int, Tensor};

/// The index of the greatest value of each row of `logits [T, V]`, the lowest index on ties; `[T]`.
///
/// NaN counts as minus infinity, and a row of nothing else gives 0.
///
/// # Panics
///
/// When V is zero.
pub fn argmax_rows(logits: Tensor<2>) -> Tensor<1, Int> {
    assert!(logits.dims()[1] > 0, "argmax_rows: rows without values");
    #[cfg(feature = "flex")]
    if crate::extension::on_flex(&logits) {
        return crate::extension::argmax_rows(logits);
    }
    plain(logits)
}

/// The same by tensor operations, for every backend.
pub(crate) fn plain(logits: Tensor<2>) -> Tensor<1, Int> {
    let shape = logits.dims();
    let device = logits.device();
    let hidden = logits.clone().is_nan();
    let logits = logits.mask_fill(hidden, f32::NEG_INFINITY);
    let best = logits.clone().max_dim(1).expand(shape);
    let index = Tensor::<1, Int>::arange(0..shape[1] as i64, &device)
        .unsqueeze::<2>()
        .expand(shape);
    index
        .mask_fill(logits.not_equal(best), shape[1] as i64)
        .min_dim(1)
        .squeeze_dim(1)
}
