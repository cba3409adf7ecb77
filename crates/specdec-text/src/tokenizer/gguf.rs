//! The vocabulary inside a GGUF file.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper,
    models::bpe::{BPE, Merges, Vocab},
    normalizers::{Prepend, Replace, Sequence},
};

use super::{
    Entry, Settings, Tokenizer,
    folder::names_by_id,
    pre_split::pre_split,
    table::{Spelling, VISIBLE_SPACE, fallback_byte},
};
use crate::error::{Result, TextError};

/// What a GGUF file says about its tokenizer: the keys under `tokenizer.ggml`, as they are.
///
/// ```
/// use specdec_text::GgufVocabulary;
///
/// let vocabulary = GgufVocabulary { model: "t5".to_owned(), ..GgufVocabulary::default() };
/// let error = specdec_text::Tokenizer::from_gguf(&vocabulary).unwrap_err();
/// assert!(error.to_string().contains("t5"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct GgufVocabulary {
    /// `model`: the kind, `gpt2` or `llama`.
    pub model: String,
    /// `pre`: how text is cut before merging; `gpt2` needs it.
    pub pre: Option<String>,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. All normal
    /// where absent.
    pub token_types: Option<Vec<i32>>,
    /// `scores`; `llama` needs them.
    pub scores: Option<Vec<f32>>,
    /// `merges`, each two tokens with a space between; `gpt2` needs them.
    pub merges: Option<Vec<String>>,
    /// `bos_token_id`.
    pub bos_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_id: Option<u32>,
    /// `eot_token_id`: the end of a turn.
    pub eot_id: Option<u32>,
    /// `eom_token_id`: the end of a message.
    pub eom_id: Option<u32>,
    /// `unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `padding_token_id`.
    pub pad_id: Option<u32>,
    /// `add_bos_token`. Absent: true for `llama` and for the pre-tokenizers `llama-bpe` and `tekken` with their
    /// synonyms, false otherwise.
    pub add_bos: Option<bool>,
    /// `add_eos_token`. Absent: false.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`. Absent: true for `llama`. `gpt2` has no use for it.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`, without `ggml`.
    pub chat_template: Option<String>,
}

/// `token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// `gpt2` is byte-level BPE; `llama` is SentencePiece BPE, whose merges follow from the scores. Of two merges
    /// of equal score the one of the token with the lower id comes first.
    ///
    /// # Errors
    /// [`TextError::Unsupported`] for another kind or pre-tokenizer, with its name; [`TextError::MissingKey`],
    /// [`TextError::LengthMismatch`], [`TextError::IdOutOfRange`] and [`TextError::Malformed`] for metadata that does not
    /// fit together.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self> {
        let kind = vocabulary.model.as_str();
        if !matches!(kind, "gpt2" | "llama") {
            let kind = kind.to_owned();
            return Err(TextError::Unsupported {
                part: "GGUF tokenizer kind (tokenizer.ggml.model)",
                kind,
            });
        }
        let kinds = vocabulary.kinds()?;
        vocabulary.check_ids()?;
        let (mut engine, spelling, add_bos) = if kind == "gpt2" {
            vocabulary.byte_level(&kinds)?
        } else {
            vocabulary.sentence_piece(&kinds)?
        };
        let mut added = Vec::new();
        let mut entries = Vec::with_capacity(kinds.len());
        for (text, &kind) in vocabulary.tokens.iter().zip(&kinds) {
            let special = matches!(kind, Kind::Control | Kind::Unknown);
            let beside = special || kind == Kind::UserDefined;
            if beside && !text.is_empty() {
                added.push(AddedToken::from(text.as_str(), special).normalized(false));
            }
            let bytes = if beside {
                spelling.added_bytes(text, special)
            } else {
                spelling.bytes(text)
            };
            entries.push((kind != Kind::Unused).then_some(Entry { bytes, special }));
        }
        engine
            .add_tokens(added)
            .map_err(|error| TextError::malformed("tokenizer.ggml.tokens", error))?;
        let ends: BTreeSet<u32> = [vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id]
            .into_iter()
            .flatten()
            .collect();
        let names = names_by_id(
            &vocabulary.tokens,
            &[
                ("bos_token", vocabulary.bos_id),
                ("eos_token", vocabulary.eos_id),
                ("unk_token", vocabulary.unk_id),
                ("pad_token", vocabulary.pad_id),
            ],
        );
        let templates = vocabulary
            .chat_template
            .iter()
            .map(|source| ("default".to_owned(), source.clone()));
        let settings = Settings {
            bos: vocabulary.bos_id,
            ends,
            add_bos: vocabulary.add_bos.unwrap_or(add_bos),
            add_eos: vocabulary.add_eos.unwrap_or(false),
            names,
            templates: templates.collect::<BTreeMap<_, _>>(),
        };
        Self::assemble(engine, &entries, spelling.leading_spaces, settings)
    }
}

impl GgufVocabulary {
    fn check_length(&self, key: &'static str, found: usize) -> Result<()> {
        let tokens = self.tokens.len();
        if found == tokens {
            Ok(())
        } else {
            Err(TextError::LengthMismatch { key, found, tokens })
        }
    }

    fn missing(&self, key: &'static str) -> TextError {
        TextError::MissingKey {
            key,
            kind: self.model.clone(),
        }
    }

    /// The token types, with what else the file says about them.
    fn kinds(&self) -> Result<Vec<Kind>> {
        if self.tokens.is_empty() {
            return Err(self.missing("tokenizer.ggml.tokens"));
        }
        let mut kinds = vec![Kind::Normal; self.tokens.len()];
        if let Some(types) = &self.token_types {
            self.check_length("tokenizer.ggml.token_type", types.len())?;
            for (kind, &number) in kinds.iter_mut().zip(types) {
                *kind = match number {
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    _ => Kind::Normal,
                };
            }
        }
        Ok(kinds)
    }

    fn check_ids(&self) -> Result<()> {
        let ids = [
            ("tokenizer.ggml.bos_token_id", self.bos_id),
            ("tokenizer.ggml.eos_token_id", self.eos_id),
            ("tokenizer.ggml.eot_token_id", self.eot_id),
            ("tokenizer.ggml.eom_token_id", self.eom_id),
            ("tokenizer.ggml.unknown_token_id", self.unk_id),
            ("tokenizer.ggml.padding_token_id", self.pad_id),
        ];
        let vocab_size = self.tokens.len();
        for (key, id) in ids {
            if let Some(id) = id
                && id as usize >= vocab_size
            {
                return Err(TextError::IdOutOfRange {
                    key,
                    id,
                    vocab_size,
                });
            }
        }
        Ok(())
    }

    /// Ids by text, the first where a text occurs twice.
    fn ids(&self, wanted: impl Fn(usize) -> bool) -> HashMap<&str, u32> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for ((index, text), id) in self.tokens.iter().enumerate().zip(0u32..) {
            if wanted(index) && !text.is_empty() {
                ids.entry(text.as_str()).or_insert(id);
            }
        }
        ids
    }

    fn byte_level(&self, kinds: &[Kind]) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
        let pre = self
            .pre
            .as_deref()
            .ok_or_else(|| self.missing("tokenizer.ggml.pre"))?;
        let split = pre_split(pre)?;
        let lines = self
            .merges
            .as_ref()
            .ok_or_else(|| self.missing("tokenizer.ggml.merges"))?;
        let ids = self.ids(|index| kinds[index] != Kind::Unused);
        let unused: BTreeSet<&str> = self
            .tokens
            .iter()
            .zip(kinds)
            .filter(|&(_, &kind)| kind == Kind::Unused)
            .map(|(text, _)| text.as_str())
            .collect();
        let mut merges: Merges = Vec::with_capacity(lines.len());
        for line in lines {
            // A token may begin with a space, so the separator is not the first character.
            let first = line.chars().next().map_or(0, char::len_utf8);
            let place = line[first..].find(' ').map(|place| place + first);
            let Some((left, right)) = place.map(|place| (&line[..place], &line[place + 1..]))
            else {
                return Err(TextError::malformed(
                    "tokenizer.ggml.merges",
                    format!("{line:?} is not two tokens"),
                ));
            };
            let whole = format!("{left}{right}");
            if ![left, right, &whole]
                .iter()
                .any(|text| unused.contains(text))
            {
                merges.push((left.to_owned(), right.to_owned()));
            }
        }
        let model = BPE::builder()
            .vocab_and_merges(vocab(&ids), merges)
            .ignore_merges(split.ignore_merges)
            .build()
            .map_err(|error| TextError::malformed("tokenizer.ggml.merges", error))?;
        let mut engine = tokenizers::Tokenizer::new(ModelWrapper::BPE(model));
        engine.with_pre_tokenizer(Some(split.pre_tokenizer()?));
        engine
            .with_normalizer(split.normalizer())
            .map_err(|error| TextError::malformed("tokenizer.ggml.pre", error))?;
        Ok((engine, Spelling::byte_level(), split.add_bos))
    }

    fn sentence_piece(&self, kinds: &[Kind]) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
        let scores = self
            .scores
            .as_ref()
            .ok_or_else(|| self.missing("tokenizer.ggml.scores"))?;
        self.check_length("tokenizer.ggml.scores", scores.len())?;
        let byte = |index: usize| {
            kinds[index] == Kind::Byte
                || (self.token_types.is_none() && fallback_byte(&self.tokens[index]).is_some())
        };
        let mergeable = self
            .ids(|index| matches!(kinds[index], Kind::Normal | Kind::UserDefined) && !byte(index));
        let ids = self.ids(|index| kinds[index] != Kind::Unused);
        let mut model = BPE::builder()
            .vocab_and_merges(vocab(&ids), scored_merges(&mergeable, scores))
            .byte_fallback(true)
            .fuse_unk(true);
        let unknown = kinds.iter().position(|&kind| kind == Kind::Unknown);
        if let Some(unknown) = self.unk_id.map(|id| id as usize).or(unknown) {
            model = model.unk_token(self.tokens[unknown].clone());
        }
        let model = model
            .build()
            .map_err(|error| TextError::malformed("tokenizer.ggml.tokens", error))?;
        let mut engine = tokenizers::Tokenizer::new(ModelWrapper::BPE(model));
        let prefix = self.add_space_prefix.unwrap_or(true);
        let space = VISIBLE_SPACE.to_string();
        let replace = Replace::new(" ", space.clone())
            .map_err(|error| TextError::malformed("normalizer", error))?;
        let mut steps: Vec<NormalizerWrapper> = Vec::new();
        if prefix {
            steps.push(Prepend::new(space).into());
        }
        steps.push(replace.into());
        engine
            .with_normalizer(Some(NormalizerWrapper::Sequence(Sequence::new(steps))))
            .map_err(|error| TextError::malformed("normalizer", error))?;
        Ok((engine, Spelling::sentence_piece(usize::from(prefix)), true))
    }
}

fn vocab(ids: &HashMap<&str, u32>) -> Vocab {
    ids.iter()
        .map(|(&text, &id)| (text.to_owned(), id))
        .collect()
}

/// The merges that SentencePiece makes: always the neighbours whose union has the highest score. Ordered by that score,
/// every way to cut a token into two tokens is a merge.
fn scored_merges(ids: &HashMap<&str, u32>, scores: &[f32]) -> Merges {
    let mut ranked = Vec::new();
    for (&text, &id) in ids {
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(&a), Some(&b)) = (ids.get(left), ids.get(right)) {
                ranked.push((scores[id as usize], id, a, b, left, right));
            }
        }
    }
    ranked.sort_by(|x, y| {
        y.0.total_cmp(&x.0)
            .then((x.1, x.2, x.3).cmp(&(y.1, y.2, y.3)))
    });
    ranked
        .into_iter()
        .map(|(_, _, _, _, left, right)| (left.to_owned(), right.to_owned()))
        .collect()
}
