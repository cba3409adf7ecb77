//! The maps that drafter and head are made of. Their fields have the names of checkpoints.

use burn::module::{Module, Param};
use burn::prelude::*;
use half::f16;
use specdec_kernels::{BlockFormat, WeightMatrix, rms_norm};

/// A trainable tensor of zeros, to be filled.
pub(crate) fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::zeros(shape, device))
}

/// A matrix `[out, in]` and, for decoding, the same in the form its device multiplies fastest.
#[derive(Module, Debug)]
pub(crate) struct LinearMap {
    pub(crate) weight: Param<Tensor<2>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    packed: Option<WeightMatrix>,
}

impl LinearMap {
    pub(crate) fn new(inputs: usize, outputs: usize, bias: bool, device: &Device) -> Self {
        Self {
            weight: zeros([outputs, inputs], device),
            bias: bias.then(|| zeros([outputs], device)),
            packed: None,
        }
    }

    /// `x` `[T, in]` to `[T, out]`.
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        affine(x, &self.weight, self.bias.as_ref(), self.packed.as_ref())
    }

    /// Packs the weight for decoding and gives up the trainable copy.
    pub(crate) fn prepare(&mut self) {
        self.packed = packed(&mut self.weight);
    }
}

/// `x` `[T, in]` times a transposed weight, plus a bias.
pub(crate) fn affine(
    x: Tensor<2>,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
    packed: Option<&WeightMatrix>,
) -> Tensor<2> {
    let y = match packed {
        Some(packed) => packed.matmul(x),
        None => x.matmul(weight.val().transpose()),
    };
    match bias {
        Some(bias) => y + bias.val().unsqueeze(),
        None => y,
    }
}

/// The packed form of a weight, which is replaced by a single zero. `None`, and nothing replaced,
/// where it cannot be read.
pub(crate) fn packed(weight: &mut Param<Tensor<2>>) -> Option<WeightMatrix> {
    let tensor = weight.val().inner();
    let [outputs, inputs] = tensor.dims();
    let device = tensor.device();
    let values = tensor.into_data().try_into_vec_as::<f32>().ok()?;
    let packed = match halves(&values) {
        // As a checkpoint in f16 has it: the same numbers in half of the memory.
        Some(bytes) => {
            WeightMatrix::from_blocks(BlockFormat::F16, &bytes, outputs, inputs, &device)
        }
        None => WeightMatrix::from_f32(values, outputs, inputs, &device),
    };
    let packed = packed.ok()?;
    *weight = zeros([1, 1], &device);
    Some(packed)
}

/// The numbers as f16 in little-endian bytes, if that changes none of them.
fn halves(values: &[f32]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(2 * values.len());
    for &value in values {
        let half = f16::from_f32(value);
        if half.to_f32() != value {
            return None;
        }
        bytes.extend(half.to_le_bytes());
    }
    Some(bytes)
}

/// Root-mean-square normalisation with a weight.
#[derive(Module, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Param<Tensor<1>>,
}

impl Norm {
    pub(crate) fn new(width: usize, device: &Device) -> Self {
        Self {
            weight: zeros([width], device),
        }
    }

    /// `x` `[T, W]`.
    pub(crate) fn forward(&self, x: Tensor<2>, eps: f64) -> Tensor<2> {
        rms_norm(x, self.weight.val(), eps)
    }
}
