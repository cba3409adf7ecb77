#![doc = include_str!("../README.md")]

mod config;
mod error;
mod folder;
/// GGUF files: reading, and writing for export and tests.
pub mod gguf;
mod load;
mod rope;
mod source;
mod storage;
mod transformer;

pub use config::{Architecture, ModelConfig, RopeScaling};
pub use error::{LoadError, Result};
pub use folder::HubFolder;
pub use gguf::GgufFile;
pub use load::{
    LoadOptions, LoadReport, LoadedModel, Progress, TokenizerFiles, load_folder, load_gguf, open,
};
pub use rope::Rope;
pub use source::{MemoryTensors, StoredTensor, TensorSource};
pub use transformer::{ForwardError, Transformer, WeightDtype};
