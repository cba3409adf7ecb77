//! From token ids to text, all at once or one by one, with the same result.

use crate::{
    Tokenizer,
    error::{Result, TextError},
};

/// The bytes that tokens say: hidden special tokens say nothing, and the first words of a text lose the
/// space that the tokenizer put before them.
#[derive(Debug, Clone)]
pub(crate) struct Hearing {
    tokenizer: Tokenizer,
    pub(crate) show_special: bool,
    /// Spaces that may still be dropped at the beginning.
    droppable: usize,
}

impl Hearing {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            show_special: false,
            droppable: tokenizer.leading_spaces(),
        }
    }

    pub(crate) fn continuing(&mut self) {
        self.droppable = 0;
    }

    fn restart(&mut self) {
        self.droppable = self.tokenizer.leading_spaces();
    }

    /// The bytes of one token; `None` if the id has no text.
    pub(crate) fn hear(&mut self, id: u32) -> Option<&[u8]> {
        let special = self.tokenizer.is_special(id);
        let mut bytes = self.tokenizer.token_slice(id)?;
        if special && !self.show_special {
            return Some(&[]);
        }
        if self.droppable > 0 {
            let spaces = if special {
                0
            } else {
                bytes
                    .iter()
                    .take(self.droppable)
                    .take_while(|&&byte| byte == b' ')
                    .count()
            };
            bytes = &bytes[spaces..];
            self.droppable = if bytes.is_empty() {
                self.droppable - spaces
            } else {
                0
            };
        }
        Some(bytes)
    }
}

/// Turns token ids into text as they come.
///
/// The pieces joined, with [`finish`](Self::finish) at the end, are [`Tokenizer::decode`] of all the
/// ids, because decoding is done by this type. A piece never ends inside a character: bytes that may
/// still become one wait for the next token. Bytes that no continuation can make well-formed come
/// out as U+FFFD, one for each maximal part of a character, as the Unicode standard recommends
/// (section 3.9, "U+FFFD Substitution of Maximal Subparts") and [`String::from_utf8_lossy`] does. Each token costs
/// its own bytes; nothing is decoded twice.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    hearing: Hearing,
    /// The beginning of a character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text; special tokens are hidden.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            hearing: Hearing::new(tokenizer),
            pending: Vec::new(),
        }
    }

    /// Whether special tokens are part of the text.
    #[must_use]
    pub fn show_special(mut self, show: bool) -> Self {
        self.hearing.show_special = show;
        self
    }

    /// The text goes on from a prompt: a leading space is part of it. Without this, tokenizers of the
    /// SentencePiece family lose the space before the first word, as at the beginning of a text.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.hearing.continuing();
        self
    }

    /// Takes one token and returns the characters that are complete now, possibly none.
    ///
    /// # Errors
    /// [`TextError::NoText`] if the id is outside the vocabulary or a hole in it. The detokenizer is
    /// as it was before, and goes on with the next token.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let mut piece = String::new();
        self.push_to(id, &mut piece)?;
        Ok(piece)
    }

    /// Like [`push`](Self::push), appending to a string.
    ///
    /// # Errors
    /// [`TextError::NoText`], as for [`push`](Self::push); the string is unchanged then.
    pub fn push_to(&mut self, id: u32, text: &mut String) -> Result<()> {
        let vocab_size = self.hearing.tokenizer.vocab_size();
        let Some(bytes) = self.hearing.hear(id) else {
            return Err(TextError::NoText { id, vocab_size });
        };
        if self.pending.is_empty() {
            let rest = complete(bytes, text);
            self.pending.extend_from_slice(&bytes[rest..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let rest = complete(&self.pending, text);
            self.pending.drain(..rest);
        }
        Ok(())
    }

    /// Ends the text. A character that was begun and never completed comes out as one U+FFFD; otherwise the
    /// piece is empty. The detokenizer is then at the beginning of a new text.
    pub fn finish(&mut self) -> String {
        self.hearing.restart();
        if std::mem::take(&mut self.pending).is_empty() {
            String::new()
        } else {
            String::from('\u{FFFD}')
        }
    }
}

/// Appends what is complete, and returns where the beginning of a last, unfinished character starts.
fn complete(bytes: &[u8], text: &mut String) -> usize {
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        at += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            break;
        }
        // Only the last chunk can be a beginning; `from_utf8` tells it from an error.
        let unfinished = at + invalid.len() == bytes.len()
            && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if unfinished {
            break;
        }
        text.push('\u{FFFD}');
        at += invalid.len();
    }
    at
}
