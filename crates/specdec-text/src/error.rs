//! The one error type of this crate.

use std::path::PathBuf;

/// What can go wrong between text and token ids.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file was read, but its content is not what its name promises.
    #[error("{what} is malformed: {reason}")]
    Malformed {
        /// The file, or the metadata key, that is wrong.
        what: String,
        /// The parser's reason.
        reason: String,
    },
    /// GGUF metadata without an entry that this kind of tokenizer cannot do without.
    #[error("the GGUF metadata key {key} is missing, and a {kind:?} tokenizer needs it")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
        /// The value of `tokenizer.ggml.model`.
        kind: String,
    },
    /// Two lists of the GGUF vocabulary that go together have different lengths.
    #[error("{key} has {found} entries, but the vocabulary has {tokens} tokens")]
    LengthMismatch {
        /// The metadata key of the list.
        key: &'static str,
        /// The list's length.
        found: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// A kind of tokenizer, or one of its parts, that this crate does not know.
    #[error("unsupported {part}: {kind:?}")]
    Unsupported {
        /// Which part: the tokenizer kind, the pre-tokenizer, the decoder.
        part: &'static str,
        /// Its name, as the file has it.
        kind: String,
    },
    /// A token id that the vocabulary gives no text.
    #[error("token id {id} has no text in a vocabulary of {vocab_size} ids")]
    NoText {
        /// The id.
        id: u32,
        /// One more than the largest id.
        vocab_size: usize,
    },
    /// An id in the metadata that lies outside the vocabulary.
    #[error("{key} is {id}, outside the vocabulary of {vocab_size} ids")]
    IdOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id.
        id: u32,
        /// One more than the largest id.
        vocab_size: usize,
    },
    /// The tokenizer refused the text.
    #[error("cannot encode: {reason}")]
    Encode {
        /// The tokenizer's reason.
        reason: String,
    },
    /// An empty stop string would stop everywhere.
    #[error("stop string {index} is empty")]
    EmptyStopString {
        /// Its place in the list.
        index: usize,
    },
    /// A chat call on a tokenizer that brings no template.
    #[error("the tokenizer has no chat template{}", wanted(name))]
    NoChatTemplate {
        /// The template asked for by name, if one was.
        name: Option<String>,
    },
    /// A chat template that cannot be parsed, or uses something that is not supported.
    #[error("chat template {template:?}, line {line}: {reason}")]
    Template {
        /// The template's name.
        template: String,
        /// The line in its source, 0 if unknown.
        line: usize,
        /// What the engine says.
        reason: String,
    },
    /// The chat template itself refused the conversation (`raise_exception`).
    #[error("chat template {template:?} refuses: {message}")]
    TemplateRaised {
        /// The template's name.
        template: String,
        /// The template's own words.
        message: String,
    },
    /// A role that could be mistaken for template text.
    #[error(
        "role {role:?} has characters other than letters, digits, '_', '-' and space, or spells a special token"
    )]
    Role {
        /// The role.
        role: String,
    },
    /// The template treats the conversation's contents in a way that leaves no proof of where the
    /// special tokens come from.
    #[error(
        "chat template {template:?} transforms a message so that its text cannot be told from the template's own"
    )]
    UnsafeContent {
        /// The template's name.
        template: String,
    },
}

fn wanted(name: &Option<String>) -> String {
    name.as_ref()
        .map_or_else(String::new, |name| format!(" named {name:?}"))
}

impl TextError {
    pub(crate) fn malformed(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Malformed {
            what: what.into(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn encode(reason: impl ToString) -> Self {
        Self::Encode {
            reason: reason.to_string(),
        }
    }
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, TextError>;
