//! What can go wrong, by name and number.

use crate::{SeqId, Token};
use thiserror::Error;

/// An error from an implementation of one of the traits.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// `Result` with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of decoding.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The request cannot be served as asked; other sequences are not affected.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The parts do not fit together.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The target failed.
    #[error("the target failed: {0}")]
    Target(#[source] BoxError),
    /// The drafter failed.
    #[error("the drafter failed: {0}")]
    Drafter(#[source] BoxError),
    /// A part broke the contract of its trait.
    #[error("{part} broke its contract: {what}")]
    Contract {
        /// Which part.
        part: &'static str,
        /// What it did.
        what: String,
    },
    /// The target gave no usable logits: every candidate is NaN or minus infinity.
    #[error(
        "no token can follow position {position} of sequence {seq}: every logit is NaN or -inf"
    )]
    NoCandidate {
        /// The sequence.
        seq: SeqId,
        /// The position of the token that was to be chosen.
        position: usize,
    },
    /// No sequence of that name is live.
    #[error("sequence {0} is not live in this decoder")]
    UnknownSequence(SeqId),
}

/// Why a request is refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is no token to start from.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error("the prompt has {len} tokens, the context holds {context}")]
    PromptTooLong {
        /// Tokens in the prompt.
        len: usize,
        /// Tokens the context holds (or the cache, where its limit is lower).
        context: usize,
    },
    /// There are as many sequences as the decoder takes: not now.
    #[error("{live} sequences are live, as many as are taken: try again later")]
    Busy {
        /// Live sequences, waiting ones included.
        live: usize,
        /// Most that are taken.
        limit: usize,
    },
    /// A prompt token is not in the vocabulary.
    #[error("prompt token {token} at index {index} is outside the vocabulary of {vocab}")]
    PromptToken {
        /// Index in the prompt.
        index: usize,
        /// The id.
        token: Token,
        /// Usable ids are below this.
        vocab: usize,
    },
    /// A token named by an option is not in the vocabulary.
    #[error("{option} names token {token}, outside the vocabulary of {vocab}")]
    OptionToken {
        /// The option.
        option: &'static str,
        /// The id.
        token: Token,
        /// Usable ids are below this.
        vocab: usize,
    },
    /// An option is out of its range.
    #[error("{option} is {value}: {allowed}")]
    OptionValue {
        /// The option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The acceptance rule of this decoder cannot honour an option.
    #[error("{option} cannot be honoured by the acceptance rule {rule}")]
    OptionRefused {
        /// The option.
        option: &'static str,
        /// The acceptance rule's name.
        rule: &'static str,
    },
}

/// Why a decoder cannot be built from its parts.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The cache cannot take back entries, so nothing can be drafted for it.
    #[error(
        "the cache cannot rewind: speculation needs a cache that can keep fewer entries than were staged; plain decoding works"
    )]
    CannotRewind,
    /// No cache was given.
    #[error("a decoder needs a cache")]
    NoCache,
    /// The drafter asks for a hidden state the target does not have.
    #[error("the drafter taps layer {tap}, the target has {layers} layers")]
    Tap {
        /// The tap.
        tap: usize,
        /// Layers of the target.
        layers: usize,
    },
    /// The stored prefixes are not this target's, or its cache cannot use them.
    #[error("stored prefixes cannot be used: {0}")]
    Prefixes(String),
    /// Drafter and target do not speak of the same tokens.
    #[error("drafter and target have different vocabularies: {0}")]
    Vocabulary(String),
    /// A model that drafts through the target's cache has keys and values of another shape.
    #[error("the draft model's {what} is {draft}, the target's is {target}")]
    Shape {
        /// What differs.
        what: &'static str,
        /// The draft model's.
        draft: String,
        /// The target's.
        target: String,
    },
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
}

/// Why a cache refuses.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A pass is open already.
    #[error("a pass is open: commit or roll back first")]
    PassOpen,
    /// No pass is open.
    #[error("no pass is open")]
    NoPass,
    /// Draft passes are never committed.
    #[error("a draft pass can only be rolled back")]
    DraftPass,
    /// A row does not continue its sequence.
    #[error("row {row} starts at {start}, its sequence {seq} continues at {len}")]
    Start {
        /// Row in the pass.
        row: usize,
        /// The sequence.
        seq: SeqId,
        /// Where the row starts.
        start: usize,
        /// Where it should.
        len: usize,
    },
    /// A sequence stands in a pass twice.
    #[error("sequence {seq} stands in the pass twice, as row {first} and row {second}")]
    Duplicate {
        /// The sequence.
        seq: SeqId,
        /// First row.
        first: usize,
        /// Second row.
        second: usize,
    },
    /// A row has no tokens.
    #[error("row {row} (sequence {seq}) has no tokens")]
    EmptyRow {
        /// Row in the pass.
        row: usize,
        /// The sequence.
        seq: SeqId,
    },
    /// `keep` has the wrong number of entries.
    #[error("keep has {keep} entries for a pass of {rows} rows")]
    KeepRows {
        /// Entries given.
        keep: usize,
        /// Rows of the pass.
        rows: usize,
    },
    /// More is to be kept than was staged.
    #[error("row {row} staged {staged} entries, {keep} were to be kept")]
    KeepTooMany {
        /// Row in the pass.
        row: usize,
        /// Entries to keep.
        keep: usize,
        /// Entries staged.
        staged: usize,
    },
    /// There is no room for more entries.
    #[error("the cache has room for {available} more entries, {needed} are needed")]
    Full {
        /// Entries needed.
        needed: usize,
        /// Entries free.
        available: usize,
    },
    /// A layer that does not exist, or called out of turn.
    #[error("layer {layer} of {layers}")]
    Layer {
        /// The layer.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// A layer attended twice in one pass.
    #[error("layer {layer} attended twice in one pass")]
    LayerTwice {
        /// The layer.
        layer: usize,
    },
    /// A pass is to be committed in which a layer did not attend.
    #[error("layer {layer} of {layers} did not attend in this pass: nothing can be kept")]
    LayerMissing {
        /// The first such layer.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// A tensor has the wrong shape.
    #[error("{what} has shape {got:?}, {want:?} is needed")]
    Shape {
        /// Which tensor.
        what: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// The shape needed.
        want: Vec<usize>,
    },
    /// Entries that are not committed, or no longer held.
    #[error("sequence {seq} holds committed entries {held:?}, not all of {asked:?}")]
    Range {
        /// The sequence.
        seq: SeqId,
        /// What is held.
        held: std::ops::Range<usize>,
        /// What was asked for.
        asked: std::ops::Range<usize>,
    },
    /// A selection does not fit the pass.
    #[error(transparent)]
    Selection(#[from] crate::SelectionError),
    /// A kernel failed.
    #[error("attention failed: {0}")]
    Kernel(#[source] BoxError),
}
