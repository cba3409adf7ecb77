//! The operations Burn's dispatcher sends to a backend of our own making.
//!
//! Only the CPU backend has one so far. Tensors of every other device take the plain versions, made of tensor
//! operations: those work under autodiff, fusion and remote devices too, where a custom operation needs an
//! implementation of its own.

use burn::{
    backend::{
        Backend, Dispatch, DispatchDevice, backend_extension,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Int, Tensor},
};

use crate::{Activations, matmul::PackedMatrix, small::RotaryPairing};

/// The small operations of a decoder, on a backend's own tensors. Arguments are already checked.
#[backend_extension(Flex: cfg(feature = "flex"))]
pub(crate) trait DecodeOps: Backend {
    /// `x [T, K]` times a transposed packed weight: `[T, N]`.
    fn packed_matmul(
        x: FloatTensor<Self>,
        weight: &PackedMatrix,
        activations: Activations,
    ) -> FloatTensor<Self>;
    /// See [`crate::rms_norm`].
    fn rms_norm_rows(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f64,
    ) -> FloatTensor<Self>;
    /// See [`crate::rotary`].
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        pairing: RotaryPairing,
    ) -> FloatTensor<Self>;
    /// See [`crate::swiglu`].
    fn gate(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;
    /// See [`crate::argmax_rows`].
    fn greatest_index(logits: FloatTensor<Self>) -> IntTensor<Self>;
}

/// Whether `x` is an f32 tensor of the CPU backend, without autodiff.
pub(crate) fn on_flex<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && matches!(x.device().as_dispatch(), DispatchDevice::Flex(_))
}

pub(crate) fn packed_matmul(
    x: Tensor<2>,
    weight: &PackedMatrix,
    activations: Activations,
) -> Tensor<2> {
    let x = x.into_dispatch();
    Tensor::from_dispatch(Dispatch::packed_matmul(x, weight, activations))
}

pub(crate) fn rms_norm(x: Tensor<2>, weight: Tensor<1>, eps: f64) -> Tensor<2> {
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(Dispatch::rms_norm_rows(x, weight, eps))
}

pub(crate) fn rotary(
    x: Tensor<3>,
    cos: Tensor<2>,
    sin: Tensor<2>,
    pairing: RotaryPairing,
) -> Tensor<3> {
    let (cos, sin) = (cos.into_dispatch(), sin.into_dispatch());
    Tensor::from_dispatch(Dispatch::rotate(x.into_dispatch(), cos, sin, pairing))
}

pub(crate) fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    let (gate, up) = (gate.into_dispatch(), up.into_dispatch());
    Tensor::from_dispatch(Dispatch::gate(gate, up))
}

pub(crate) fn argmax_rows(logits: Tensor<2>) -> Tensor<1, Int> {
    Tensor::from_dispatch(Dispatch::greatest_index(logits.into_dispatch()))
}
