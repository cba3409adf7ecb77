//! Whether two tokenizers speak of the same tokens.

use std::{collections::BTreeSet, fmt};

use super::Tokenizer;

/// The first difference between two vocabularies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VocabularyDifference {
    /// An id has different texts; `None` is an id without text.
    Token {
        /// The id.
        id: u32,
        /// Its text in the one vocabulary.
        left: Option<String>,
        /// Its text in the other.
        right: Option<String>,
    },
    /// One vocabulary has texts for more ids. Ids without text at the end do not count.
    Size {
        /// One more than the largest id with text in the one vocabulary.
        left: usize,
        /// The same in the other.
        right: usize,
    },
    /// Different begin tokens.
    Begin {
        /// The begin token of the one vocabulary.
        left: Option<u32>,
        /// The other's.
        right: Option<u32>,
    },
    /// Different end tokens.
    End {
        /// The end tokens of the one vocabulary.
        left: BTreeSet<u32>,
        /// The other's.
        right: BTreeSet<u32>,
    },
}

impl fmt::Display for VocabularyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &Option<String>| {
            text.as_ref()
                .map_or_else(|| "no text".to_owned(), |t| format!("{t:?}"))
        };
        let begin = |id: &Option<u32>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        match self {
            Self::Token { id, left, right } => write!(
                f,
                "token {id} is {} in one vocabulary and {} in the other",
                text(left),
                text(right)
            ),
            Self::Size { left, right } => {
                write!(f, "one vocabulary has {left} tokens and the other {right}")
            }
            Self::Begin { left, right } => write!(
                f,
                "the begin token is {} in one vocabulary and {} in the other",
                begin(left),
                begin(right)
            ),
            Self::End { left, right } => write!(
                f,
                "the end tokens are {left:?} in one vocabulary and {right:?} in the other"
            ),
        }
    }
}

impl std::error::Error for VocabularyDifference {}

impl Tokenizer {
    /// The first difference between this vocabulary and another, if there is one: a draft model's
    /// tokens mean something to a target only if there is none.
    ///
    /// Compared are, in this order: the bytes of every id both have, the number of ids with text,
    /// the begin token, the end tokens. Ids without text are equal to ids that do not exist, so
    /// padding at the end of a vocabulary is no difference.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<VocabularyDifference> {
        let (left, right) = (self.table().len_with_text(), other.table().len_with_text());
        let text =
            |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        for id in (0u32..).take(left.min(right)) {
            let (a, b) = (self.token_slice(id), other.token_slice(id));
            if a != b {
                return Some(VocabularyDifference::Token {
                    id,
                    left: text(a),
                    right: text(b),
                });
            }
        }
        if left != right {
            return Some(VocabularyDifference::Size { left, right });
        }
        if self.bos_id() != other.bos_id() {
            return Some(VocabularyDifference::Begin {
                left: self.bos_id(),
                right: other.bos_id(),
            });
        }
        if self.eos_ids() != other.eos_ids() {
            return Some(VocabularyDifference::End {
                left: self.eos_ids().clone(),
                right: other.eos_ids().clone(),
            });
        }
        None
    }
}
