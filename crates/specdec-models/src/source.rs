//! Where a model's tensors come from.

use crate::error::Result;
use specdec_kernels::{BlockFormat, RotaryPairing};
use std::{borrow::Cow, collections::BTreeMap};

/// A tensor as it is stored.
#[derive(Debug, Clone)]
pub struct StoredTensor<'a> {
    /// How its values are stored.
    pub format: BlockFormat,
    /// Its shape, outermost dimension first: a linear map is `[out, in]`.
    pub shape: Vec<usize>,
    /// Its bytes, little-endian, row-major.
    pub bytes: Cow<'a, [u8]>,
}

/// A set of named tensors, by the names that Hugging Face checkpoints use
/// (`model.layers.0.self_attn.q_proj.weight`).
pub trait TensorSource {
    /// The tensor of that name, or `None` when there is none.
    ///
    /// # Errors
    /// [`crate::LoadError::UnsupportedTensorType`] when it is stored in a way that no
    /// [`BlockFormat`] stands for; [`crate::LoadError::Corrupt`] when its bytes are not there.
    fn tensor(&self, name: &str) -> Result<Option<StoredTensor<'_>>>;

    /// The name by which the source itself knows the tensor; errors use it.
    fn native_name(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Which two dimensions of a query or key head rotate together in these weights.
    fn pairing(&self) -> RotaryPairing {
        RotaryPairing::HalfSplit
    }

    /// Every tensor there is, by its native name, so that a load can report what it did not use.
    fn native_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Tensors in memory, f32: for tests, and for weights that were trained in the same process.
#[derive(Debug, Clone, Default)]
pub struct MemoryTensors {
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

impl MemoryTensors {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a tensor; `values` are row-major. A number of values that does not fit
    /// the shape is refused when a model is made of them.
    pub fn insert(&mut self, name: impl Into<String>, shape: Vec<usize>, values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.insert(name.into(), (shape, bytes));
    }

    /// Takes a tensor out; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.tensors.remove(name).is_some()
    }
}

impl FromIterator<(String, Vec<usize>, Vec<f32>)> for MemoryTensors {
    fn from_iter<I: IntoIterator<Item = (String, Vec<usize>, Vec<f32>)>>(iter: I) -> Self {
        let mut tensors = Self::new();
        for (name, shape, values) in iter {
            tensors.insert(name, shape, &values);
        }
        tensors
    }
}

impl TensorSource for MemoryTensors {
    fn tensor(&self, name: &str) -> Result<Option<StoredTensor<'_>>> {
        Ok(self.tensors.get(name).map(|(shape, bytes)| StoredTensor {
            format: BlockFormat::F32,
            shape: shape.clone(),
            bytes: Cow::Borrowed(bytes),
        }))
    }

    fn native_names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}
