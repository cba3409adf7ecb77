//! From tensors to those of CubeCL's backend, which our kernels take, and back.
//!
//! Burn's feature `fusion` wraps that backend in another type, and whoever depends on Burn can turn it on. Our kernels
//! know the wrapped type only with this crate's own feature `fusion`; without it such a build takes the plain versions.

use core::any::{Any, TypeId};

use burn::{
    backend::{
        Cube,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{Int, Tensor},
};
use burn_cubecl::{cubecl::prelude::AddressType, tensor::CubeTensor};

/// The backend that our kernels are implemented for.
#[cfg(not(feature = "fusion"))]
pub(crate) type Ours = burn_cubecl::CubeBackend;
#[cfg(feature = "fusion")]
pub(crate) type Ours = Cube;

/// Whether the build's tensors are those of [`Ours`].
pub(crate) fn is_ours() -> bool {
    TypeId::of::<Cube>() == TypeId::of::<Ours>()
}

/// The primitive of a tensor of [`Ours`], and `None` for one of any other backend or of autodiff.
pub(crate) fn float<const D: usize>(tensor: Tensor<D>) -> Option<FloatTensor<Ours>> {
    same(tensor.try_into_primitive::<Cube>().ok()?)
}

/// As [`float`].
pub(crate) fn int<const D: usize>(tensor: Tensor<D, Int>) -> Option<IntTensor<Ours>> {
    same(tensor.try_into_primitive::<Cube>().ok()?)
}

/// The tensor of a primitive.
pub(crate) fn tensor<const D: usize>(primitive: FloatTensor<Ours>) -> Option<Tensor<D>> {
    same(primitive).map(Tensor::from_primitive::<Cube>)
}

/// The value itself, where the two types are one.
fn same<A: 'static, B: 'static>(value: A) -> Option<B> {
    let value: Box<dyn Any> = Box::new(value);
    value.downcast().ok().map(|value| *value)
}

/// The width of addresses that reaches all of these.
pub(crate) fn address_type(tensors: &[&CubeTensor]) -> AddressType {
    let types = tensors.iter().map(|tensor| tensor.required_address_type());
    types.max().unwrap_or_default()
}
