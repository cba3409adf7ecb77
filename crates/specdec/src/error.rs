use crate::DeviceError;
use specdec_core::{BuildError, RequestError};
use std::sync::Arc;
use thiserror::Error;

/// `Result` with the facade's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a file and a text.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Decoding failed, or a request was refused.
    #[error(transparent)]
    Decode(#[from] specdec_core::Error),
    /// A model file or folder cannot be loaded.
    #[error(transparent)]
    Load(#[from] specdec_models::LoadError),
    /// A block drafter cannot be loaded, or does not fit the target.
    #[error(transparent)]
    DraftModel(#[from] specdec_lilicorr::DraftModelError),
    /// Costs cannot be measured, or stored prefixes cannot be used.
    #[error(transparent)]
    Rakv(#[from] specdec_rakv::RakvError),
    /// Tokenizer, template or stop strings.
    #[error(transparent)]
    Text(#[from] specdec_text::TextError),
    /// A step that several requests shared failed; each of them gets this.
    #[error(transparent)]
    Step(Arc<Error>),
    /// The engine's thread could not be started, or has ended before the request was answered.
    #[error("the engine does not run: {0}")]
    Stopped(String),
    /// The device cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Decode(error.into())
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Self::Decode(error.into())
    }
}
