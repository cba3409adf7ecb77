//! Weights of quantised blocks on CubeCL's backends (CUDA, wgpu, Vulkan, Metal): the quants stay packed in words, and
//! a kernel for few rows takes them apart in registers. Many rows are multiplied by the values, made for the product.

#[cfg(feature = "fusion")]
mod fusion;
mod kernel;
mod launch;
mod words;

use burn::backend::{
    Backend,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::DType;
pub(super) use words::Words;

/// How quants lie in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Packing {
    /// Bits of a quant: 4 or 8.
    pub(crate) bits: u32,
    /// What was added to the quants so that none is negative.
    pub(crate) offset: u32,
    /// Values that share a scale.
    pub(crate) group: usize,
    /// Whether there is a minimum beside each scale.
    pub(crate) minima: bool,
}

impl Packing {
    /// Values of a word.
    pub(crate) fn per_word(self) -> usize {
        (u32::BITS / self.bits) as usize
    }
}

/// The kernels, on a backend's own tensors: `words [N, K / per_word]`, `scales [N, K / group, 1 or 2]`.
pub(crate) trait WordOps: Backend {
    /// `x [T, K]` times the transposed weight, `[T, N]`.
    fn few_rows(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        packing: Packing,
    ) -> FloatTensor<Self>;
    /// The values of some rows, `[T, K]`.
    fn unpack_rows(
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        ids: IntTensor<Self>,
        packing: Packing,
        dtype: DType,
    ) -> FloatTensor<Self>;
}
