//! Finding the tokens that stand beside the model's vocabulary, and not finding them where text is only
//! text.

use std::{collections::BTreeSet, ops::Range};

use tokenizers::{
    AddedToken, NormalizedString, Normalizer, NormalizerWrapper, Token,
    tokenizer::normalizer::Range as Referential,
};

use crate::{
    automaton::{Automaton, State},
    error::{Result, TextError},
};

/// A token to be found in text.
#[derive(Debug, Clone)]
struct Needle {
    id: u32,
    /// Not to be found in protected text.
    guarded: bool,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
}

/// The needles of one pass over the text.
#[derive(Debug, Clone)]
struct Haystack {
    automaton: Automaton,
    needles: Vec<Needle>,
}

/// Parts of a text in which special tokens are ordinary text: byte ranges, sorted, not overlapping.
#[derive(Debug, Clone, Default)]
pub(crate) struct Protected(Vec<Range<usize>>);

impl Protected {
    /// All of a text.
    pub(crate) fn all(text: &str) -> Self {
        let mut whole = Self::default();
        whole.add(0..text.len());
        whole
    }

    /// Protects one more range, which begins no earlier than the last one.
    pub(crate) fn add(&mut self, range: Range<usize>) {
        match self.0.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    pub(crate) fn touches(&self, range: &Range<usize>) -> bool {
        let place = self
            .0
            .partition_point(|protected| protected.end <= range.start);
        self.0
            .get(place)
            .is_some_and(|protected| protected.start < range.end)
    }
}

/// All added tokens of a tokenizer.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    /// Those that are looked for in the text as it is.
    raw: Haystack,
    /// Those that are looked for after normalising.
    normalized: Haystack,
    /// The texts of the guarded ones.
    guarded: Vec<String>,
    guarded_ids: BTreeSet<u32>,
    /// Whether normalising could turn other characters into a guarded token.
    normalizing_guards: bool,
}

impl AddedTokens {
    /// Sorts the tokens into the passes. `ends` are guarded whatever the file says of them.
    pub(crate) fn new(
        tokens: &[(u32, AddedToken)],
        normalizer: Option<&NormalizerWrapper>,
        ends: &BTreeSet<u32>,
    ) -> Result<Self> {
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        let (mut guarded, mut guarded_ids) = (Vec::new(), BTreeSet::new());
        let mut normalizing_guards = false;
        for (id, token) in tokens {
            // A single character is never worth a guard: it could not be written at all any more.
            let guard =
                (token.special || ends.contains(id)) && token.content.chars().nth(1).is_some();
            let needle = Needle {
                id: *id,
                guarded: guard,
                single_word: token.single_word,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
            };
            if guard {
                guarded.push(token.content.clone());
                guarded_ids.insert(*id);
            }
            if token.normalized {
                let mut content = NormalizedString::from(token.content.as_str());
                if let Some(normalizer) = normalizer {
                    normalizer
                        .normalize(&mut content)
                        .map_err(TextError::encode)?;
                    normalizing_guards |= guard;
                }
                normalized.push((content.get().to_owned(), needle));
            } else {
                raw.push((token.content.clone(), needle));
            }
        }
        Ok(Self {
            raw: Haystack::new(raw),
            normalized: Haystack::new(normalized),
            guarded,
            guarded_ids,
            normalizing_guards,
        })
    }

    /// The texts of the tokens that protected text must not become.
    pub(crate) fn guarded(&self) -> &[String] {
        &self.guarded
    }

    pub(crate) fn is_guarded(&self, id: u32) -> bool {
        self.guarded_ids.contains(&id)
    }

    /// Whether other characters than those of a guarded token may become it.
    pub(crate) fn normalizing_guards(&self) -> bool {
        self.normalizing_guards
    }

    /// Cuts the text as it came at its added tokens.
    pub(crate) fn split_raw(&self, text: NormalizedString, protected: &Protected) -> Split {
        self.raw.split(text, protected)
    }

    /// Cuts normalised text at its added tokens.
    pub(crate) fn split_normalized(&self, text: NormalizedString, protected: &Protected) -> Split {
        self.normalized.split(text, protected)
    }
}

/// The parts of a text, with the token where a part is one.
type Split = tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>>;

/// An occurrence of a needle, in bytes of the text searched.
struct Found {
    start: usize,
    end: usize,
    needle: usize,
}

impl Haystack {
    fn new(tokens: Vec<(String, Needle)>) -> Self {
        let automaton = Automaton::new(tokens.iter().map(|(content, _)| content.as_bytes()));
        Self {
            automaton,
            needles: tokens.into_iter().map(|(_, needle)| needle).collect(),
        }
    }

    /// All occurrences that may be tokens, leftmost first and longest first.
    fn occurrences(&self, text: &NormalizedString, protected: &Protected) -> Vec<Found> {
        let mut found = Vec::new();
        let mut state = State::default();
        let shift = text.offsets_original().0;
        for (index, &byte) in text.get().as_bytes().iter().enumerate() {
            state = self.automaton.step(state, byte);
            for (needle, length) in self.automaton.matches(state) {
                let (start, end) = (index + 1 - length, index + 1);
                let allowed = !self.needles[needle].guarded || protected.0.is_empty() || {
                    // Text that the normaliser made of nothing comes with no place; protect it.
                    text.convert_offsets(Referential::Normalized(start..end))
                        .is_some_and(|range| {
                            !protected.touches(&(range.start + shift..range.end + shift))
                        })
                };
                if allowed {
                    found.push(Found { start, end, needle });
                }
            }
        }
        found.sort_by_key(|found| (found.start, std::cmp::Reverse(found.end)));
        found
    }

    fn split(&self, text: NormalizedString, protected: &Protected) -> Split {
        let sentence = text.get();
        let mut parts = Vec::new();
        let (mut searched, mut written) = (0, 0);
        for Found {
            mut start,
            mut end,
            needle,
        } in self.occurrences(&text, protected)
        {
            if start < searched {
                continue;
            }
            searched = end;
            let needle = &self.needles[needle];
            let (before, after) = (&sentence[..start], &sentence[end..]);
            if needle.single_word && (before.ends_with(is_word) || after.starts_with(is_word)) {
                continue;
            }
            if needle.lstrip {
                start = before.trim_end().len().max(written);
            }
            if needle.rstrip {
                end = sentence.len() - after.trim_start().len();
            }
            if start < written {
                continue;
            }
            if written < start {
                parts.push((written..start, None));
            }
            parts.push((start..end, Some(needle.id)));
            written = end;
        }
        if written < sentence.len() {
            parts.push((written..sentence.len(), None));
        }
        parts
            .into_iter()
            .map(|(range, id)| {
                let part = text
                    .slice(Referential::Normalized(range.clone()))
                    .ok_or_else(|| {
                        format!("the added token at bytes {range:?} cannot be cut out")
                    })?;
                let tokens = id.map(|id| {
                    let value = part.get().to_owned();
                    let length = value.len();
                    vec![Token::new(id, value, (0, length))]
                });
                Ok((part, tokens))
            })
            .collect()
    }
}

/// A character of a word, as `single_word` understands it.
fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
