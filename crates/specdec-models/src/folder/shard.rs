//! One safetensors file.

use crate::{LoadError, StoredTensor, error::Result, storage::Storage};
use safetensors::{Dtype, tensor::Metadata};
use specdec_kernels::BlockFormat;
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// Longest header the format allows.
const MAX_HEADER: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    storage: Storage,
    metadata: Metadata,
    /// First byte of the data.
    data: usize,
}

impl Shard {
    /// Maps a file and checks that it is whole: the header's ranges end where the file does.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let storage = Storage::map(path)?;
        let have = storage.len() as u64;
        let truncated = |need: u64| LoadError::Truncated {
            path: path.to_path_buf(),
            need,
            have,
        };
        let corrupt = |what: String| LoadError::Corrupt {
            path: path.to_path_buf(),
            what,
        };
        let Some((size, rest)) = storage.split_first_chunk::<8>() else {
            return Err(truncated(8));
        };
        let size = u64::from_le_bytes(*size);
        if size > MAX_HEADER {
            return Err(corrupt(format!("it announces a header of {size} bytes")));
        }
        let data = size + 8;
        let Some(header) = rest.get(..size as usize) else {
            return Err(truncated(data));
        };
        let metadata: Metadata =
            serde_json::from_slice(header).map_err(|error| corrupt(error.to_string()))?;
        let need = (metadata.data_len() as u64).checked_add(data);
        match need {
            Some(need) if need > have => Err(truncated(need)),
            Some(need) if need == have => Ok(Self {
                path: path.to_path_buf(),
                data: data as usize,
                metadata,
                storage,
            }),
            _ => Err(corrupt(format!(
                "its header accounts for {} bytes of data, it has {}",
                metadata.data_len(),
                have - data
            ))),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Option<StoredTensor<'_>>> {
        let Some(info) = self.metadata.info(name) else {
            return Ok(None);
        };
        let format = match info.dtype {
            Dtype::F32 => BlockFormat::F32,
            Dtype::F16 => BlockFormat::F16,
            Dtype::BF16 => BlockFormat::BF16,
            other => {
                return Err(LoadError::UnsupportedTensorType {
                    tensor: name.to_owned(),
                    type_name: format!("{other:?}"),
                });
            }
        };
        let (from, to) = info.data_offsets;
        let bytes = self.storage[self.data..].get(from..to);
        let bytes = bytes.ok_or_else(|| LoadError::Corrupt {
            path: self.path.clone(),
            what: format!("the tensor {name} lies outside of it"),
        })?;
        Ok(Some(StoredTensor {
            format,
            shape: info.shape.clone(),
            bytes: Cow::Borrowed(bytes),
        }))
    }
}
