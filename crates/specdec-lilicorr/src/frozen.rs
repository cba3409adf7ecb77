//! The target's own embeddings and output map, as far as a drafter needs them as tensors.

use crate::error::{DraftModelError, Result};
use burn::prelude::*;
use specdec_core::{TargetModel, Token};

/// How far a probe's logits may lie from those of the map, as a share of the greatest. Targets whose activations are
/// rounded to 8 bits are off by half a hundredth; a soft cap is off by more than the logits themselves.
const TOLERANCE: f32 = 0.02;

/// Rows of identity that are put through the output map at a time.
const ROWS: usize = 64;

/// The numbers of a tensor.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    tensor
        .into_data()
        .try_into_vec_as::<f32>()
        .map_err(|e| DraftModelError::Unreadable(format!("{e:?}")))
}

/// Token ids on a device, `[N]`.
pub(crate) fn ids(tokens: impl Iterator<Item = i64>, device: &Device) -> Tensor<1, Int> {
    let tokens: Vec<i64> = tokens.collect();
    let n = tokens.len();
    Tensor::from_data(TensorData::new(tokens, [n]), device)
}

/// The rows of the target's output map for `kept` tokens (all of its vocabulary when `None`),
/// `[N, D]`: what identity rows are mapped to, column by column.
///
/// # Errors
/// [`DraftModelError::NotLinear`] when the logits are more than a linear map, as with a soft cap.
pub(crate) fn output_rows(target: &dyn TargetModel, kept: Option<&[Token]>) -> Result<Tensor<2>> {
    let spec = target.spec();
    let (width, device) = (spec.hidden, &spec.device);
    let columns = match kept {
        Some(kept) => ids(kept.iter().map(|&t| i64::from(t)), device),
        None => ids(0..spec.vocab as i64, device),
    };
    let mut parts = Vec::new();
    for from in (0..width).step_by(ROWS) {
        let rows = ROWS.min(width - from);
        let mut one = vec![0.0f32; rows * width];
        for row in 0..rows {
            one[row * width + from + row] = 1.0;
        }
        let one = Tensor::from_data(TensorData::new(one, [rows, width]), device);
        parts.push(target.logits(one).select(1, columns.clone()));
    }
    let map = Tensor::cat(parts, 0);
    // A probe with numbers of every size tells a linear map from any other.
    let probe: Vec<f32> = (0..width)
        .map(|i| ((i * 37 % 23) as f32 - 11.0) * if i % 2 == 0 { 1.0 } else { 7.0 })
        .collect();
    let probe = Tensor::from_data(TensorData::new(probe, [1, width]), device);
    let want = target.logits(probe.clone()).select(1, columns);
    let got = probe.matmul(map.clone());
    let size = numbers(want.clone().abs().max().reshape([1]))?[0].max(1.0);
    let off = numbers((want - got).abs().max().reshape([1]))?[0];
    // Not the other way round: NaN is no linear map either.
    if off <= TOLERANCE * size {
        Ok(map.transpose())
    } else {
        Err(DraftModelError::NotLinear(off))
    }
}
