//! Products of a few activation rows with a weight that does not change.

mod dense;

use core::fmt;

use burn::tensor::{Device, Int, Tensor};

use crate::{BlockFormat, KernelError, dequantize};
use dense::Dense;

/// The weight of a linear map, `[N out, K in]`, in the form its device multiplies fastest.
///
/// Cheap to clone: the storage is shared and never changes.
#[derive(Clone)]
pub struct WeightMatrix(Storage);

#[derive(Clone)]
enum Storage {
    Dense(Dense),
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
        Ok(Self(Storage::Dense(Dense::new(data, dims, device))))
    }

    /// A weight of ggml blocks, row-major: N rows of K values each.
    ///
    /// On the CPU backend (Flex, with this crate's feature `flex`) the blocks stay quantised and are dequantised in
    /// registers; on other devices they become a tensor of the device's float type.
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
        let mut data = vec![0.0; out_features * in_features];
        dequantize(format, bytes, &mut data)?;
        Ok(Self(Storage::Dense(Dense::new(data, dims, device))))
    }

    /// `[N out, K in]`.
    pub fn dims(&self) -> [usize; 2] {
        match &self.0 {
            Storage::Dense(dense) => dense.dims(),
        }
    }

    /// The device that [`matmul`](Self::matmul) computes on.
    pub fn device(&self) -> Device {
        match &self.0 {
            Storage::Dense(dense) => dense.device(),
        }
    }

    /// `x [T, K]` times the transposed weight: `[T, N]`, T at least 1.
    ///
    /// On the CPU backend a row of the result has the same bits whatever T is, whatever the other rows hold and
    /// however many threads compute: every element is one chain of fused multiply-adds along K, from 0 upwards.
    ///
    /// # Panics
    ///
    /// When `x` is not `[T, K]` or lives on another device, as Burn's own operations do.
    pub fn matmul(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.0 {
            Storage::Dense(dense) => dense.matmul(x),
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
            Storage::Dense(dense) => dense.rows(ids),
        }
    }

    /// The whole weight, `[N, K]` in f32.
    pub fn to_dense(&self) -> Tensor<2> {
        match &self.0 {
            Storage::Dense(dense) => dense.to_dense(),
        }
    }

    /// Bytes the weight occupies, padding included.
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Storage::Dense(dense) => dense.memory_bytes(),
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
