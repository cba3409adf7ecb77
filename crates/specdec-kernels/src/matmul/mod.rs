//! Products of a few activation rows with a weight that does not change.

#[cfg(feature = "burn-cubecl")]
mod cube;
mod dense;
#[cfg(feature = "flex")]
mod encoding;
#[cfg(feature = "flex")]
mod int8;
#[cfg(feature = "flex")]
mod pack;
#[cfg(feature = "flex")]
mod packed;
#[cfg(feature = "flex")]
mod panels;
#[cfg(feature = "flex")]
mod strip;

use core::fmt;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};
#[cfg(feature = "flex")]
use burn::tensor::{FloatDType, TensorData};

use crate::{BlockFormat, KernelError, dequantize};
use dense::Dense;
#[cfg(feature = "flex")]
pub(crate) use packed::PackedMatrix;

/// The weight of a linear map, `[N out, K in]`, in the form its device multiplies fastest.
///
/// Cheap to clone: the storage is shared and never changes.
#[derive(Clone)]
pub struct WeightMatrix(Storage);

/// What activations are multiplied as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Activations {
    /// In f32, with weights dequantised in registers.
    #[default]
    Float,
    /// Rounded to integers in -127..=127 with one f32 step for each row and each group of inputs that share a weight
    /// scale (32 inputs; 16 in Q2_K, Q3_K and Q6_K): `q = round(127 x / max |x|)`. Products of a group are summed in
    /// integers, exactly, and groups are added in f32, in the order of the inputs. Faster from two rows on, and close
    /// rather than equal to `Float`. Only weights in quantised blocks on the CPU backend are multiplied so; others
    /// stay with `Float`.
    Int8,
}

/// A weight in tensors of its device. What the methods do is said at [`WeightMatrix`]'s.
trait DeviceWeight: Send + Sync {
    fn dims(&self) -> [usize; 2];
    fn device(&self) -> Device;
    fn matmul(&self, x: Tensor<2>) -> Tensor<2>;
    fn rows(&self, ids: Tensor<1, Int>) -> Tensor<2>;
    fn to_dense(&self) -> Tensor<2>;
    fn memory_bytes(&self) -> usize;
}

#[derive(Clone)]
enum Storage {
    Tensors(Arc<dyn DeviceWeight>),
    #[cfg(feature = "flex")]
    Packed(Arc<PackedMatrix>, Device, Activations),
}

impl fmt::Debug for WeightMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [n, k] = self.dims();
        f.debug_struct("WeightMatrix")
            .field("out_features", &n)
            .field("in_features", &k)
            .field("bytes", &self.memory_bytes())
            .finish()
    }
}

impl WeightMatrix {
    /// A weight of f32 values, row-major `[N, K]` as checkpoints store it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Zero`] when a dimension is zero, [`KernelError::Length`] when `data` has not N * K values.
    pub fn from_f32(
        data: Vec<f32>,
        out_features: usize,
        in_features: usize,
        device: &Device,
    ) -> Result<Self, KernelError> {
        check_dims(out_features, in_features)?;
        let expected = out_features.saturating_mul(in_features);
        if data.len() != expected {
            return Err(KernelError::Length {
                what: "values of the weight",
                expected,
                got: data.len(),
            });
        }
        let dims = [out_features, in_features];
        #[cfg(feature = "flex")]
        if packs(device) {
            let packed = PackedMatrix::from_f32(&data, dims);
            return Ok(Self(Storage::Packed(
                Arc::new(packed),
                device.clone(),
                Activations::Float,
            )));
        }
        Ok(Self::dense(data, dims, device))
    }

    /// A weight of ggml blocks, row-major: N rows of K values each.
    ///
    /// On the CPU backend (Flex, with this crate's feature `flex`) and on CubeCL's backends (with the feature of one)
    /// the blocks stay quantised and are dequantised in registers; on other devices they become a tensor of the device's
    /// float type.
    ///
    /// # Errors
    ///
    /// [`KernelError::Zero`] when a dimension is zero, [`KernelError::Block`] when K is no whole number of blocks,
    /// [`KernelError::Length`] when `bytes` does not hold N rows of K values.
    pub fn from_blocks(
        format: BlockFormat,
        bytes: &[u8],
        out_features: usize,
        in_features: usize,
        device: &Device,
    ) -> Result<Self, KernelError> {
        check_dims(out_features, in_features)?;
        if !in_features.is_multiple_of(format.block_len()) {
            return Err(KernelError::Block {
                format,
                block_len: format.block_len(),
                row: in_features,
            });
        }
        let row_bytes = in_features / format.block_len() * format.block_bytes();
        let expected = out_features.saturating_mul(row_bytes);
        if bytes.len() != expected {
            return Err(KernelError::Length {
                what: "bytes of the weight",
                expected,
                got: bytes.len(),
            });
        }
        let dims = [out_features, in_features];
        #[cfg(feature = "flex")]
        if packs(device) {
            let packed = PackedMatrix::from_blocks(format, bytes, dims);
            return Ok(Self(Storage::Packed(
                Arc::new(packed),
                device.clone(),
                Activations::Float,
            )));
        }
        #[cfg(feature = "burn-cubecl")]
        if let Some(words) = cube::Words::new(format, bytes, dims, device) {
            return Ok(Self(Storage::Tensors(Arc::new(words))));
        }
        let mut data = vec![0.0; out_features * in_features];
        dequantize(format, bytes, &mut data)?;
        Ok(Self::dense(data, dims, device))
    }

    fn dense(data: Vec<f32>, dims: [usize; 2], device: &Device) -> Self {
        Self(Storage::Tensors(Arc::new(Dense::new(data, dims, device))))
    }

    /// Sets what activations are multiplied as.
    #[must_use]
    pub fn with_activations(self, activations: Activations) -> Self {
        #[cfg(feature = "flex")]
        if let Storage::Packed(packed, device, _) = self.0 {
            return Self(Storage::Packed(packed, device, activations));
        }
        let _ = activations;
        self
    }

    /// `[N out, K in]`.
    pub fn dims(&self) -> [usize; 2] {
        match &self.0 {
            Storage::Tensors(weight) => weight.dims(),
            #[cfg(feature = "flex")]
            Storage::Packed(packed, ..) => packed.dims(),
        }
    }

    /// The device that [`matmul`](Self::matmul) computes on.
    pub fn device(&self) -> Device {
        match &self.0 {
            Storage::Tensors(weight) => weight.device(),
            #[cfg(feature = "flex")]
            Storage::Packed(_, device, _) => device.clone(),
        }
    }

    /// `x [T, K]` times the transposed weight: `[T, N]`, T at least 1.
    ///
    /// On the CPU backend a row of the result has the same bits whatever T is, whatever the other rows hold and
    /// however many threads compute: every element is one chain of fused multiply-adds along K, from 0 upwards (or,
    /// with [`Activations::Int8`], one chain of sums of groups).
    ///
    /// # Panics
    ///
    /// When `x` is not `[T, K]` or lives on another device, as Burn's own operations do.
    pub fn matmul(&self, x: Tensor<2>) -> Tensor<2> {
        let ([_, width], [_, inputs]) = (x.dims(), self.dims());
        assert_eq!(
            width, inputs,
            "matmul: rows of {width}, a weight of {inputs} inputs"
        );
        match &self.0 {
            Storage::Tensors(weight) => weight.matmul(x),
            #[cfg(feature = "flex")]
            Storage::Packed(packed, _, activations) => {
                let dtype = x.dtype();
                let x = x.cast(FloatDType::F32);
                crate::extension::packed_matmul(x, packed, *activations).cast(dtype)
            }
        }
    }

    /// The rows `ids [T]` of the weight, exactly: `[T, K]`. The embedding look-up of models whose output map is their
    /// embedding.
    ///
    /// # Panics
    ///
    /// When an id is negative or not below N.
    pub fn rows(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        match &self.0 {
            Storage::Tensors(weight) => weight.rows(ids),
            #[cfg(feature = "flex")]
            Storage::Packed(packed, device, _) => rows_of(packed, device, ids),
        }
    }

    /// The whole weight, `[N, K]` in f32.
    pub fn to_dense(&self) -> Tensor<2> {
        match &self.0 {
            Storage::Tensors(weight) => weight.to_dense(),
            #[cfg(feature = "flex")]
            Storage::Packed(packed, device, _) => {
                Tensor::from_data(TensorData::new(packed.to_rows(), packed.dims()), device)
            }
        }
    }

    /// Bytes the weight occupies, padding included.
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Storage::Tensors(weight) => weight.memory_bytes(),
            #[cfg(feature = "flex")]
            Storage::Packed(packed, ..) => packed.memory_bytes(),
        }
    }
}

fn check_dims(out_features: usize, in_features: usize) -> Result<(), KernelError> {
    for (what, size) in [
        ("out_features of the weight", out_features),
        ("in_features of the weight", in_features),
    ] {
        if size == 0 {
            return Err(KernelError::Zero { what });
        }
    }
    Ok(())
}

/// Whether weights of this device are packed.
#[cfg(feature = "flex")]
fn packs(device: &Device) -> bool {
    matches!(device.as_dispatch(), burn::backend::DispatchDevice::Flex(_))
}

#[cfg(feature = "flex")]
fn rows_of(packed: &PackedMatrix, device: &Device, ids: Tensor<1, Int>) -> Tensor<2> {
    let [outputs, inputs] = packed.dims();
    let ids: Vec<i64> = match ids.into_data().try_into_vec_as::<i64>() {
        Ok(ids) => ids,
        Err(error) => panic!("rows: ids that are no integers: {error:?}"),
    };
    let mut rows = vec![0.0; ids.len() * inputs];
    for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(inputs)) {
        let inside = usize::try_from(id).ok().filter(|&id| id < outputs);
        let Some(id) = inside else {
            panic!("rows: id {id} of a weight with {outputs} rows")
        };
        packed.row(id, row);
    }
    Tensor::from_data(TensorData::new(rows, [ids.len(), inputs]), device)
}
