use burn::tensor::Tensor;

/// Root-mean-square normalisation (Zhang and Sennrich 2019): each row of `x [T, W]` is divided by the root of its
/// mean square plus `eps`, then multiplied by `weight [W]`. Returns `[T, W]`.
///
/// # Panics
///
/// When the widths differ.
pub fn rms_norm(x: Tensor<2>, weight: Tensor<1>, eps: f64) -> Tensor<2> {
    let ([_, width], [expected]) = (x.dims(), weight.dims());
    assert_eq!(
        width, expected,
        "rms_norm: rows of {width}, a weight of {expected}"
    );
    #[cfg(feature = "flex")]
    if crate::extension::on_flex(&x) && crate::extension::on_flex(&weight) {
        return crate::extension::rms_norm(x, weight, eps);
    }
    plain(x, weight, eps)
}

/// The same by tensor operations, for every backend.
pub(crate) fn plain(x: Tensor<2>, weight: Tensor<1>, eps: f64) -> Tensor<2> {
    let mean = x.clone().square().mean_dim(1);
    x / (mean + eps).sqrt() * weight.unsqueeze()
}
