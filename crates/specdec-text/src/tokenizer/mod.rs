//! Text to token ids and back.

mod added;
mod difference;
mod ends;
mod folder;
mod gguf;
mod pre_split;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde_json::Value;
use tokenizers::{Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token};

pub(crate) use self::added::Protected;
use self::{
    added::AddedTokens,
    table::{Entry, TokenTable},
};
pub use self::{difference::VocabularyDifference, gguf::GgufVocabulary};
use crate::{
    Detokenizer,
    error::{Result, TextError},
};

/// What becomes of text that spells a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// It becomes the token: for prompts that the caller has written.
    Parse,
    /// It stays text: for words of somebody else, which must not end a turn or begin another.
    Text,
}

/// A tokenizer with what its files say about beginning, ending and chatting. Cloning it is cheap.
///
/// *Special tokens* are the tokens that the file flags as special (control tokens of a GGUF), the begin token and
/// the [end tokens](Self::eos_ids). Other added tokens, runs of spaces or `<think>` in many vocabularies, are text
/// like any other and are recognised everywhere, as their models expect. A special token of one single
/// character is found by [`Special::Text`] too, since text could not have that character otherwise.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    engine: tokenizers::Tokenizer,
    table: TokenTable,
    added: AddedTokens,
    leading_spaces: usize,
    settings: Settings,
}

/// What the files beside the vocabulary say.
#[derive(Debug, Clone, Default)]
struct Settings {
    bos: Option<u32>,
    ends: BTreeSet<u32>,
    add_bos: bool,
    add_eos: bool,
    /// Special tokens by the name that chat templates use.
    names: BTreeMap<String, Value>,
    /// Chat templates by name; the unnamed one is `default`.
    templates: BTreeMap<String, String>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos_id", &self.bos_id())
            .field("eos_ids", self.eos_ids())
            .field("add_bos", &self.add_bos())
            .finish_non_exhaustive()
    }
}

/// Runs the engine, which panics on some settings that it should refuse: an error, then.
fn guarded<T>(
    work: impl FnOnce() -> Result<T>,
    error: impl FnOnce(&'static str) -> TextError,
) -> Result<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    result.unwrap_or_else(|_| Err(error("the tokenizer library panicked")))
}

impl Tokenizer {
    /// Puts the parts together. Well-known end tokens are added to those in the settings.
    fn assemble(
        engine: tokenizers::Tokenizer,
        entries: &[Option<Entry>],
        leading_spaces: usize,
        mut settings: Settings,
    ) -> Result<Self> {
        let mut tokens: Vec<_> = engine.get_added_tokens_decoder().into_iter().collect();
        tokens.sort_by_key(|&(id, _)| id);
        let named = tokens
            .iter()
            .map(|(id, token)| (*id, token.content.as_str(), token.special));
        settings.ends.extend(ends::well_known(named));
        let guarded: BTreeSet<u32> = settings.ends.iter().copied().chain(settings.bos).collect();
        let added = AddedTokens::new(&tokens, engine.get_normalizer(), &guarded)?;
        let mut table = TokenTable::new(entries);
        for id in guarded {
            table.set_special(id);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                engine,
                table,
                added,
                leading_spaces,
                settings,
            }),
        })
    }

    fn table(&self) -> &TokenTable {
        &self.inner.table
    }

    pub(crate) fn token_slice(&self, id: u32) -> Option<&[u8]> {
        self.table().get(id)
    }

    pub(crate) fn leading_spaces(&self) -> usize {
        self.inner.leading_spaces
    }

    pub(crate) fn guarded_tokens(&self) -> &[String] {
        self.inner.added.guarded()
    }

    pub(crate) fn normalizing_guards(&self) -> bool {
        self.inner.added.normalizing_guards()
    }

    pub(crate) fn names(&self) -> &BTreeMap<String, Value> {
        &self.inner.settings.names
    }

    /// The ids of a text, with nothing added before or after.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot express the text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        let protected = match special {
            Special::Parse => Protected::default(),
            Special::Text => Protected::all(text),
        };
        self.encode_protected(text, &protected)
    }

    /// The ids of a raw prompt: special tokens are recognised, and the begin token goes first where the tokenizer
    /// [wants one](Self::add_bos) and the text does not begin with it. The end token is never added.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot express the text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.encode(text, Special::Parse)?;
        Ok(self.begun(ids))
    }

    /// Puts the begin token first, where the tokenizer wants one and there is none.
    pub(crate) fn begun(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos_id()
            && self.add_bos()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The ids of a text in which some parts cannot become special tokens.
    pub(crate) fn encode_protected(&self, text: &str, protected: &Protected) -> Result<Vec<u32>> {
        guarded(|| self.encode_unguarded(text, protected), TextError::encode)
    }

    fn encode_unguarded(&self, text: &str, protected: &Protected) -> Result<Vec<u32>> {
        let Inner { engine, added, .. } = &*self.inner;
        let mut parts = PreTokenizedString::from(text);
        parts
            .split(|_, part| added.split_raw(part, protected))
            .map_err(TextError::encode)?;
        parts
            .split(|_, mut part| {
                if let Some(normalizer) = engine.get_normalizer() {
                    normalizer.normalize(&mut part)?;
                }
                added.split_normalized(part, protected)
            })
            .map_err(TextError::encode)?;
        if let Some(pre_tokenizer) = engine.get_pre_tokenizer() {
            pre_tokenizer
                .pre_tokenize(&mut parts)
                .map_err(TextError::encode)?;
        }
        parts
            .tokenize(|part| {
                let (start, end) = part.offsets_original();
                if protected.touches(&(start..end)) {
                    self.tokenize_text(part.get())
                } else {
                    engine.get_model().tokenize(part.get())
                }
            })
            .map_err(TextError::encode)?;
        let encoding = parts
            .into_encoding(None, 0, OffsetType::None)
            .map_err(TextError::encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The model's tokens of a word, none of them a special token that the word spells: some models
    /// have their special tokens among their words.
    fn tokenize_text(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.inner.engine.get_model();
        let tokens = model.tokenize(word)?;
        let forged = tokens.iter().find(|token| {
            self.inner.added.is_guarded(token.id)
                && word.get(token.offsets.0..token.offsets.1)
                    == model.id_to_token(token.id).as_deref()
        });
        let Some(forged) = forged else {
            return Ok(tokens);
        };
        let Some(first) = word[forged.offsets.0..].chars().next() else {
            return Ok(tokens);
        };
        let (before, after) = word.split_at(forged.offsets.0 + first.len_utf8());
        if after.is_empty() {
            return Err(format!("{word:?} can only be written with a special token").into());
        }
        let mut tokens = self.tokenize_text(before)?;
        tokens.extend(self.tokenize_text(after)?);
        Ok(tokens)
    }

    /// The text of the ids, as a [`Detokenizer`] writes it.
    ///
    /// With `show_special` false, special tokens leave no trace. Incomplete characters become U+FFFD. Spaces are
    /// never "cleaned up".
    ///
    /// # Errors
    /// [`TextError::NoText`] for an id outside the vocabulary or a hole in it.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> Result<String> {
        let mut detokenizer = Detokenizer::new(self).show_special(show_special);
        let mut text = String::new();
        for &id in ids {
            detokenizer.push_to(id, &mut text)?;
        }
        text.push_str(&detokenizer.finish());
        Ok(text)
    }

    /// The bytes that a token stands for: part of a character, perhaps. A special token stands for its name.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.token_slice(id).map(<[u8]>::to_vec)
    }

    /// The id of a token by its name in the vocabulary (for byte-level vocabularies, in their alphabet).
    #[must_use]
    pub fn token_id(&self, name: &str) -> Option<u32> {
        self.inner.engine.token_to_id(name)
    }

    /// One more than the largest id.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.table().len()
    }

    /// The ids below [`vocab_size`](Self::vocab_size) that have no text: holes, and entries that a file marks as
    /// unused. They must never be generated, nor may any id of the model's padding above.
    #[must_use]
    pub fn ids_without_text(&self) -> Vec<u32> {
        self.table().without_text()
    }

    /// Whether the id is a special token.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.table().is_special(id)
    }

    /// The tokens that end an answer, from every source there is: `eos_token_id` of generation_config.json and of
    /// config.json (one or several), `eos_token` of tokenizer_config.json, the end-of-sequence, end-of-turn and
    /// end-of-message ids of a GGUF, and these names where the vocabulary has them as added tokens: `<|im_end|>`, `<|eot_id|>`,
    /// `<|eom_id|>`, `<|eot|>`, `<|end_of_text|>`, `<|endoftext|>`, `<|end_of_turn|>`, `<end_of_turn>`,
    /// `<|END_OF_TURN_TOKEN|>`, `<end_of_utterance>`, `<|return|>`, `<|call|>`, `[|endofturn|]`,
    /// `<｜end▁of▁sentence｜>`; `<|end|>` unless there is a `<|return|>`; and, only where flagged as special, `</s>`, `<eos>`,
    /// `<EOT>` and `[EOS]`.
    #[must_use]
    pub fn eos_ids(&self) -> &BTreeSet<u32> {
        &self.inner.settings.ends
    }

    /// The begin token.
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.inner.settings.bos
    }

    /// Whether prompts begin with the begin token.
    #[must_use]
    pub fn add_bos(&self) -> bool {
        self.inner.settings.add_bos && self.inner.settings.bos.is_some()
    }

    /// Whether the tokenizer was made to end texts with the end token, in training. Nothing here does.
    #[must_use]
    pub fn add_eos(&self) -> bool {
        self.inner.settings.add_eos
    }

    /// The source of the chat template that is used when none is named.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template_named("default")
    }

    /// The source of a chat template by name; some models have one for `tool_use`.
    #[must_use]
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        self.inner.settings.templates.get(name).map(String::as_str)
    }
}
