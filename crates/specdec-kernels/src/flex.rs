//! The CPU backend's implementation: borrow the values of its tensors, compute, wrap the result.

use std::borrow::Cow;

use burn::{
    backend::{
        Flex, TensorMetadata,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{FloatDType, Tensor, TensorData},
};
use burn_flex::FlexTensor;

use crate::{
    Activations,
    extension::DecodeOps,
    matmul::PackedMatrix,
    small::{RotaryPairing, host},
};

impl DecodeOps for Flex {
    fn packed_matmul(
        x: FloatTensor<Self>,
        weight: &PackedMatrix,
        activations: Activations,
    ) -> FloatTensor<Self> {
        let rows = x.shape()[0];
        let out = weight.multiply(&values(&x), activations);
        let outputs = out.len() / rows.max(1);
        wrap(out, [rows, outputs])
    }

    fn rms_norm_rows(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f64,
    ) -> FloatTensor<Self> {
        let dims = [x.shape()[0], x.shape()[1]];
        let mut out = values(&x).into_owned();
        host::rms_norm(&mut out, &values(&weight), eps as f32);
        wrap(out, dims)
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        pairing: RotaryPairing,
    ) -> FloatTensor<Self> {
        let dims = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let mut out = values(&x).into_owned();
        host::rotary(
            &mut out,
            [dims[1], dims[2]],
            (&values(&cos), &values(&sin)),
            pairing,
        );
        wrap(out, dims)
    }

    fn gate(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let dims = [gate.shape()[0], gate.shape()[1]];
        let mut out = values(&gate).into_owned();
        host::swiglu(&mut out, &values(&up));
        wrap(out, dims)
    }

    fn greatest_index(logits: FloatTensor<Self>) -> IntTensor<Self> {
        let dims = [logits.shape()[0], logits.shape()[1]];
        let indices = host::argmax(&values(&logits), dims[1]);
        FlexTensor::from_data(TensorData::new(indices, [dims[0]]))
    }
}

/// The values of an f32 tensor in row-major order, borrowed where they lie so already.
fn values(tensor: &FlexTensor) -> Cow<'_, [f32]> {
    match tensor.as_slice::<f32>() {
        Some(values) => Cow::Borrowed(values),
        None => {
            let packed = tensor.to_contiguous();
            Cow::Owned(packed.as_slice::<f32>().unwrap_or_default().to_vec())
        }
    }
}

fn wrap<const D: usize>(values: Vec<f32>, dims: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, dims))
}

/// Calls `read` with the values of a Flex tensor, row-major f32.
///
/// # Panics
///
/// When the tensor lives on another device, as Burn's own operations do.
pub(crate) fn with_values<const D: usize, T>(
    tensor: Tensor<D>,
    read: impl FnOnce(&[f32]) -> T,
) -> T {
    let tensor = tensor.cast(FloatDType::F32);
    match tensor.try_into_primitive::<Flex>() {
        Ok(tensor) => read(&values(&tensor)),
        Err(error) => panic!("a tensor of the CPU backend was expected: {error:?}"),
    }
}
