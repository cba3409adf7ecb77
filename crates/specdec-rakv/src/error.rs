//! What can go wrong, by name and number.

use std::path::PathBuf;
use thiserror::Error;

/// `Result` with this crate's [`RakvError`].
pub type Result<T, E = RakvError> = std::result::Result<T, E>;

/// An error of calibration, cost tables or the prefix store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RakvError {
    /// A setting is out of its range.
    #[error("{setting} is {value}: {allowed}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Measured costs make no sense.
    #[error("the cost table is refused: {0}")]
    Table(String),
    /// A file belongs to something else.
    #[error("{path} is refused: its {what} is {found}, {wanted} is needed", path = .path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the file says.
        found: String,
        /// What is needed.
        wanted: String,
    },
    /// A file is damaged, or not one of ours.
    #[error("{path} is refused: {what}", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Reading or writing failed.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The model says nothing of its identity, so nothing may be stored for it.
    #[error(
        "the model has no fingerprint: what is stored for it could be taken for another model's"
    )]
    NoFingerprint,
    /// Keys and values that cannot be stored.
    #[error("the entries cannot be stored: {0}")]
    Entries(String),
    /// A model, a cache or a drafter failed while it was being measured or run.
    #[error(transparent)]
    Decoding(#[from] specdec_core::Error),
}

impl RakvError {
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    pub(crate) fn damaged(path: &std::path::Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_path_buf(),
            what: what.into(),
        }
    }
}
