use crate::DraftModelError;
use thiserror::Error;

/// `Result` with [`TrainError`].
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Why training cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A file or the network.
    #[error(transparent)]
    Model(#[from] DraftModelError),
    /// The target failed while it wrote.
    #[error(transparent)]
    Decode(#[from] specdec_core::Error),
    /// What is stored was made with other settings.
    #[error("{what} is {stored} in what is stored and {wanted} here")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// As it is stored.
        stored: String,
        /// As it is asked for.
        wanted: String,
    },
    /// No stored text has room for a block.
    #[error("none of {texts} texts has {block_size} tokens behind its prompt")]
    NoBlocks {
        /// Texts in the store.
        texts: usize,
        /// Rows of a block.
        block_size: usize,
    },
    /// The loss is no number any more.
    #[error("the loss is {loss} in step {step}")]
    Diverged {
        /// The step.
        step: usize,
        /// The loss.
        loss: f32,
    },
    /// A setting is out of its range.
    #[error("{setting} is {value}: {allowed}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}
