//! Why a model cannot be loaded, by name and number.

use specdec_kernels::KernelError;
use std::path::PathBuf;
use thiserror::Error;

/// `Result` with this crate's [`LoadError`].
pub type Result<T, E = LoadError> = std::result::Result<T, E>;

/// Why a model cannot be loaded. Nothing is left half loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no such file or folder.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// What was looked for.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{} cannot be read: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The file ends before its own header says it does.
    #[error("{} is truncated: {need} bytes are needed, it has {have}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes it needs, as far as what is left of it tells.
        need: u64,
        /// Bytes it has.
        have: u64,
    },
    /// The file contradicts its format.
    #[error("{} is corrupt: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        what: String,
    },
    /// The path is neither a GGUF file nor a folder with a model.
    #[error("{} is neither a GGUF file nor a folder with config.json and safetensors", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
    },
    /// A GGUF version this crate does not read.
    #[error("{} is GGUF version {version}; versions 2 and 3, little-endian, are read", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Its version field.
        version: u32,
    },
    /// A model family this crate does not compute.
    #[error("architecture {name:?} is not supported; llama, mistral, qwen2 and qwen3 are")]
    UnsupportedArchitecture {
        /// Its name in the file.
        name: String,
    },
    /// A setting asks for something this crate does not compute.
    #[error("{key} is {value}; supported: {supported}")]
    UnsupportedValue {
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// What could be honoured.
        supported: &'static str,
    },
    /// A rotary scaling this crate does not know. Ignoring it would compute nonsense at long range.
    #[error(
        "rotary scaling {name:?} is not known; none/default, linear, dynamic, llama3 and yarn are"
    )]
    UnknownRopeScaling {
        /// Its name in the file.
        name: String,
    },
    /// A setting without a documented default is absent.
    #[error("the key {key} is missing")]
    MissingKey {
        /// The setting, as the file would name it.
        key: String,
    },
    /// A setting has the wrong type or is out of its range.
    #[error("{key} is {value}: {wanted}")]
    InvalidKey {
        /// The setting.
        key: String,
        /// What the file says.
        value: String,
        /// What is allowed.
        wanted: &'static str,
    },
    /// The file is whole, but a tensor the model needs is not in it.
    #[error("the tensor {name} is missing")]
    TensorMissing {
        /// The tensor, as the file would name it.
        name: String,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("the tensor {tensor} has shape {got:?}, the configuration asks for {expected:?}")]
    ShapeMismatch {
        /// The tensor.
        tensor: String,
        /// The shape the configuration asks for, outermost dimension first.
        expected: Vec<usize>,
        /// The shape in the file.
        got: Vec<usize>,
    },
    /// A tensor is stored in a way the kernels do not read.
    #[error("the tensor {tensor} is stored as {type_name}, which is not supported")]
    UnsupportedTensorType {
        /// The tensor.
        tensor: String,
        /// The storage type's name.
        type_name: String,
    },
    /// Another part of a split GGUF file is absent.
    #[error("part {part} of {count} is missing: {}", path.display())]
    SplitMissing {
        /// The part's number, counted from 1 as in file names.
        part: usize,
        /// Parts in all.
        count: usize,
        /// Where it should be.
        path: PathBuf,
    },
    /// A split GGUF file is opened by its first part.
    #[error("{} is part {part} of {count}: open the first part", path.display())]
    SplitNotFirst {
        /// The file given.
        path: PathBuf,
        /// Its number, counted from 1 as in file names.
        part: usize,
        /// Parts in all.
        count: usize,
    },
    /// A file named by the index of a folder is absent.
    #[error("the index names {file}, which is not in {}", folder.display())]
    ShardMissing {
        /// The file named.
        file: String,
        /// The folder.
        folder: PathBuf,
    },
    /// The index of a folder names a file outside of it.
    #[error("the index names {file}, which leaves the folder {}", folder.display())]
    UnsafePath {
        /// The file named.
        file: String,
        /// The folder.
        folder: PathBuf,
    },
    /// A folder has weights, but none that this crate reads.
    #[error("{} has no .safetensors weights, only {found}; convert them first", folder.display())]
    WrongFormatOnly {
        /// The folder.
        folder: PathBuf,
        /// The first weight file found.
        found: String,
    },
    /// The progress callback asked to stop.
    #[error("loading was stopped by the progress callback after {done} of {total} bytes")]
    Aborted {
        /// Bytes loaded.
        done: u64,
        /// Bytes to load.
        total: u64,
    },
    /// A kernel refused a tensor.
    #[error("the tensor {tensor} was refused: {source}")]
    Kernel {
        /// The tensor.
        tensor: String,
        /// The reason.
        #[source]
        source: KernelError,
    },
}

impl LoadError {
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        let path = path.to_path_buf();
        if source.kind() == std::io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Io { path, source }
        }
    }

    pub(crate) fn invalid(
        key: impl Into<String>,
        value: impl ToString,
        wanted: &'static str,
    ) -> Self {
        Self::InvalidKey {
            key: key.into(),
            value: value.to_string(),
            wanted,
        }
    }

    pub(crate) fn unsupported(
        key: impl Into<String>,
        value: impl ToString,
        supported: &'static str,
    ) -> Self {
        Self::UnsupportedValue {
            key: key.into(),
            value: value.to_string(),
            supported,
        }
    }
}
