//! What can be wrong with a drafter's files and settings.

use std::path::PathBuf;
use thiserror::Error;

/// `Result` with this crate's [`DraftModelError`].
pub type Result<T, E = DraftModelError> = std::result::Result<T, E>;

/// Why a drafter cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DraftModelError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The tensors hold fewer numbers than layers of the configuration's sizes need.
    #[error("the configuration's sizes need {needed} numbers at least, the tensors hold {got}")]
    TooFew {
        /// What the largest matrices need.
        needed: u128,
        /// What all tensors hold.
        got: u128,
    },
    /// A file contradicts its format.
    #[error("{} is corrupt: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        what: String,
    },
    /// A setting is absent. None has a default: a guessed one computes another function.
    #[error("the key {key} is missing")]
    MissingKey {
        /// The setting, as `config.json` names it.
        key: String,
    },
    /// A setting that nothing here reads.
    #[error("the key {key} is not known: the drafter it describes is not the one computed here")]
    UnknownKey {
        /// The setting.
        key: String,
    },
    /// A setting has the wrong type or is out of its range.
    #[error("{key} is {value}: {wanted}")]
    InvalidKey {
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed.
        wanted: &'static str,
    },
    /// Tensors the configuration asks for are not there.
    #[error("tensors are missing: {}", names.join(", "))]
    MissingTensors {
        /// Their names.
        names: Vec<String>,
    },
    /// There are tensors the configuration does not ask for.
    #[error("tensors are not known: {}", names.join(", "))]
    UnknownTensors {
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("the tensor {tensor} has shape {got:?}, the configuration asks for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// The shape the configuration asks for, outermost dimension first.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor is stored in a way that is not read.
    #[error("the tensor {tensor} is stored as {type_name}; F32, F16 and BF16 are read")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The storage type's name.
        type_name: String,
    },
    /// The map from draft to target vocabulary is wrong.
    #[error("the draft vocabulary is wrong: {0}")]
    DraftVocabulary(String),
    /// The drafter was made for another target.
    #[error("the drafter's {what} is {draft}, the target's is {target}")]
    Target {
        /// What differs.
        what: &'static str,
        /// The drafter's.
        draft: String,
        /// The target's.
        target: String,
    },
    /// The drafter taps a layer that the target does not have.
    #[error("the drafter taps layer {tap}, the target has {layers} layers")]
    Tap {
        /// The tap.
        tap: usize,
        /// Layers of the target.
        layers: usize,
    },
    /// The model has no LiLiCorr head.
    #[error("the draft model has no LiLiCorr head: use DFlashDrafter")]
    NoHead,
    /// A tensor cannot be read back from its device.
    #[error("a tensor cannot be read: {0}")]
    Unreadable(String),
    /// The target's output is not a linear map of its hidden states, which training and reduced draft
    /// vocabularies need.
    #[error("the target's logits are not a linear map of its hidden states (they differ by {0})")]
    NotLinear(f32),
}

impl DraftModelError {
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    pub(crate) fn corrupt(path: &std::path::Path, what: impl ToString) -> Self {
        Self::Corrupt {
            path: path.to_path_buf(),
            what: what.to_string(),
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
}
