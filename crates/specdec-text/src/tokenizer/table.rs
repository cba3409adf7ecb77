//! What each token id says, in bytes.

use serde_json::Value;

use crate::error::{Result, TextError};

/// SentencePiece's visible space.
pub(crate) const VISIBLE_SPACE: char = '\u{2581}';

/// How the vocabulary's strings stand for bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// Each character stands for one byte, after GPT-2.
    pub(crate) byte_level: bool,
    /// Strings to be replaced, in order.
    pub(crate) replace: Vec<(String, String)>,
    /// `<0xNN>` stands for the byte NN.
    pub(crate) byte_fallback: bool,
    /// How many spaces the beginning of a text loses.
    pub(crate) leading_spaces: usize,
}

impl Spelling {
    pub(crate) fn byte_level() -> Self {
        Self {
            byte_level: true,
            replace: Vec::new(),
            byte_fallback: false,
            leading_spaces: 0,
        }
    }

    pub(crate) fn sentence_piece(leading_spaces: usize) -> Self {
        Self {
            byte_level: false,
            replace: vec![(VISIBLE_SPACE.to_string(), " ".to_owned())],
            byte_fallback: true,
            leading_spaces,
        }
    }

    /// Reads the `decoder` of a tokenizer.json; `pre_tokenizer` decides where there is none.
    pub(crate) fn read(decoder: &Value, pre_tokenizer: &Value) -> Result<Self> {
        if decoder.is_null() {
            return if mentions(pre_tokenizer, "ByteLevel") {
                Ok(Self::byte_level())
            } else {
                Err(TextError::Unsupported {
                    part: "tokenizer decoder",
                    kind: "none".to_owned(),
                })
            };
        }
        let mut spelling = Self {
            byte_level: false,
            replace: Vec::new(),
            byte_fallback: false,
            leading_spaces: 0,
        };
        spelling.read_step(decoder)?;
        Ok(spelling)
    }

    fn read_step(&mut self, step: &Value) -> Result<()> {
        let kind = step["type"].as_str().unwrap_or("unnamed");
        let unsupported = |detail: &str| {
            let kind = if detail.is_empty() {
                kind.to_owned()
            } else {
                format!("{kind} ({detail})")
            };
            TextError::Unsupported {
                part: "tokenizer decoder",
                kind,
            }
        };
        match kind {
            "Sequence" => {
                for step in step["decoders"].as_array().into_iter().flatten() {
                    self.read_step(step)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Replace" => {
                let from = step["pattern"]["String"]
                    .as_str()
                    .ok_or_else(|| unsupported("with a regex"))?;
                let to = step["content"].as_str().unwrap_or_default();
                self.replace.push((from.to_owned(), to.to_owned()));
            }
            "Strip" => {
                if step["content"].as_str() != Some(" ") || step["stop"].as_u64().unwrap_or(0) != 0
                {
                    return Err(unsupported("of something other than leading spaces"));
                }
                self.leading_spaces +=
                    usize::try_from(step["start"].as_u64().unwrap_or(0)).unwrap_or(0);
            }
            "Metaspace" => {
                let from = step["replacement"].as_str().unwrap_or("\u{2581}");
                self.replace.push((from.to_owned(), " ".to_owned()));
                if step["prepend_scheme"].as_str() != Some("never") {
                    self.leading_spaces += 1;
                }
            }
            _ => return Err(unsupported("")),
        }
        Ok(())
    }

    /// The bytes that a vocabulary entry stands for.
    pub(crate) fn bytes(&self, entry: &str) -> Vec<u8> {
        if self.byte_level {
            let bytes: Option<Vec<u8>> = entry.chars().map(byte_of).collect();
            return bytes.unwrap_or_else(|| entry.as_bytes().to_vec());
        }
        if self.byte_fallback
            && let Some(byte) = fallback_byte(entry)
        {
            return vec![byte];
        }
        self.replaced(entry).into_bytes()
    }

    /// The text of a token that stands beside the model's vocabulary.
    pub(crate) fn added_bytes(&self, content: &str, special: bool) -> Vec<u8> {
        if special || self.byte_level {
            content.as_bytes().to_vec()
        } else {
            self.bytes(content)
        }
    }

    fn replaced(&self, entry: &str) -> String {
        self.replace
            .iter()
            .fold(entry.to_owned(), |text, (from, to)| {
                text.replace(from.as_str(), to)
            })
    }
}

/// Whether a `type` of this name occurs anywhere inside.
fn mentions(value: &Value, kind: &str) -> bool {
    match value {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(kind)
                || map.values().any(|v| mentions(v, kind))
        }
        Value::Array(list) => list.iter().any(|v| mentions(v, kind)),
        _ => false,
    }
}

/// The byte that `<0xNN>` stands for.
pub(crate) fn fallback_byte(entry: &str) -> Option<u8> {
    let digits = entry.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// GPT-2's alphabet backwards: printable Latin-1 characters stand for themselves, and U+0100 and up for the
/// other 68 byte values in order.
fn byte_of(character: char) -> Option<u8> {
    let printable = |code: u32| matches!(code, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = u32::from(character);
    if printable(code) {
        return u8::try_from(code).ok();
    }
    let place = code.checked_sub(0x100)?;
    let byte = match place {
        0..=0x20 => place,                  // 00..=20
        0x21..=0x42 => place - 0x21 + 0x7F, // 7F..=A0
        0x43 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// One entry of the vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) bytes: Vec<u8>,
    pub(crate) special: bool,
}

/// The bytes of all tokens, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// `bytes[ends[id - 1]..ends[id]]` are the bytes of `id`.
    ends: Vec<usize>,
    special: Vec<bool>,
}

impl TokenTable {
    /// A table of the entries by id; `None` and empty entries are ids without text.
    pub(crate) fn new(entries: &[Option<Entry>]) -> Self {
        let mut bytes = Vec::new();
        let ends = entries
            .iter()
            .map(|entry| {
                bytes.extend_from_slice(entry.as_ref().map_or(&[], |entry| &entry.bytes));
                bytes.len()
            })
            .collect();
        let special = entries
            .iter()
            .map(|entry| entry.as_ref().is_some_and(|entry| entry.special))
            .collect();
        Self {
            bytes,
            ends,
            special,
        }
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token, if it has any.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        (start != end).then(|| &self.bytes[start..end])
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Hides a token with the special ones.
    pub(crate) fn set_special(&mut self, id: u32) {
        if let Some(special) = self.special.get_mut(id as usize) {
            *special = true;
        }
    }

    pub(crate) fn without_text(&self) -> Vec<u32> {
        (0u32..)
            .take(self.len())
            .filter(|&id| self.get(id).is_none())
            .collect()
    }

    /// One more than the largest id that has text.
    pub(crate) fn len_with_text(&self) -> usize {
        (0u32..)
            .take(self.len())
            .filter(|&id| self.get(id).is_some())
            .last()
            .map_or(0, |id| id as usize + 1)
    }
}
