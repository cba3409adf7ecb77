//! Writing GGUF files, version 3.

use super::{Array, GgmlType, Metadata, Value, reader::DEFAULT_ALIGNMENT};
use crate::{LoadError, error::Result};
use std::path::Path;

/// Collects metadata and tensors, then writes them as one GGUF file, version 3.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    metadata: Metadata,
    tensors: Vec<(String, Vec<usize>, GgmlType, Vec<u8>)>,
}

impl GgufWriter {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The metadata to be written. `general.alignment`, if set, is honoured.
    pub fn metadata(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Sets a key.
    pub fn set(&mut self, key: impl Into<String>, value: Value) -> &mut Self {
        self.metadata.insert(key, value);
        self
    }

    /// Adds a tensor under ggml's name for it; `shape` has the outermost dimension first, `bytes`
    /// are written as they are.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        kind: GgmlType,
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.tensors
            .push((name.into(), shape.to_vec(), kind, bytes));
        self
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when `general.alignment` is no power of two.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let alignment = self
            .metadata
            .u64("general.alignment")?
            .unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() {
            return Err(LoadError::invalid(
                "general.alignment",
                alignment,
                "a power of two is needed",
            ));
        }
        let alignment = alignment as usize;
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0usize;
        for (name, shape, kind, bytes) in &self.tensors {
            put_string(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for &dim in shape.iter().rev() {
                out.extend((dim as u64).to_le_bytes());
            }
            out.extend(kind.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + bytes.len()).next_multiple_of(alignment);
        }
        for (_, _, _, bytes) in &self.tensors {
            out.resize(out.len().next_multiple_of(alignment), 0);
            out.extend(bytes);
        }
        Ok(out)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), and [`LoadError::Io`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_bytes()?).map_err(|e| LoadError::io(path, e))
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
        Value::String(text) => {
            put(8, &[]);
            put_string(out, text);
        }
        Value::Array(array) => {
            put(9, &[]);
            put_array(out, array);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put<const N: usize, T: Copy>(
        out: &mut Vec<u8>,
        kind: u32,
        items: &[T],
        bytes: fn(T) -> [u8; N],
    ) {
        out.extend(kind.to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        out.extend(items.iter().flat_map(|&v| bytes(v)));
    }
    match array {
        Array::U8(v) => put(out, 0, v, u8::to_le_bytes),
        Array::I8(v) => put(out, 1, v, i8::to_le_bytes),
        Array::U16(v) => put(out, 2, v, u16::to_le_bytes),
        Array::I16(v) => put(out, 3, v, i16::to_le_bytes),
        Array::U32(v) => put(out, 4, v, u32::to_le_bytes),
        Array::I32(v) => put(out, 5, v, i32::to_le_bytes),
        Array::F32(v) => put(out, 6, v, f32::to_le_bytes),
        Array::Bool(v) => put(out, 7, v, |b| [u8::from(b)]),
        Array::U64(v) => put(out, 10, v, u64::to_le_bytes),
        Array::I64(v) => put(out, 11, v, i64::to_le_bytes),
        Array::F64(v) => put(out, 12, v, f64::to_le_bytes),
        Array::String(items) => {
            out.extend(8u32.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            for item in items {
                put_string(out, item);
            }
        }
        Array::Array(items) => {
            out.extend(9u32.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            for item in items {
                put_array(out, item);
            }
        }
    }
}
