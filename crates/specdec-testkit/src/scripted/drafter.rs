use crate::oracle::Continuations;
use crate::seeded::happens;
use specdec_core::{Draft, DraftContext, DraftRow, Drafter, Result, RowDraft, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where a [`ScriptedDrafter`] is wrong.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Mistakes {
    /// Nowhere: the oracle.
    Never,
    /// Everywhere: the adversary.
    Always,
    /// At these output indices.
    At(BTreeSet<usize>),
    /// At a share of all places, chosen by a hash of (seed, prompt, output index): where it is
    /// wrong does not depend on how drafts are cut.
    Sometimes {
        /// Probability of being right.
        right: f64,
        /// Seed of the hash.
        seed: u64,
    },
}

impl Mistakes {
    /// Whether the draft for an output index of this prompt is wrong.
    pub fn wrong(&self, prompt: &[Token], index: usize) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::At(places) => places.contains(&index),
            Self::Sometimes { right, seed } => {
                let prompt = prompt.iter().map(|&t| u64::from(t) + 1);
                let place = [*seed, index as u64];
                happens(1.0 - right, place.into_iter().chain([0]).chain(prompt))
            }
        }
    }
}

/// Drafts what the target is known to say, except where it is told to be wrong: there it drafts the
/// next id (modulo the vocabulary), and goes on along the right continuation.
#[derive(Debug, Clone)]
pub struct ScriptedDrafter {
    known: Continuations,
    vocab: usize,
    mistakes: Mistakes,
    of_prompts: BTreeMap<Vec<Token>, Mistakes>,
}

impl ScriptedDrafter {
    /// A drafter for a target of `vocab` tokens.
    pub fn new(known: Continuations, vocab: usize, mistakes: Mistakes) -> Self {
        Self {
            known,
            vocab,
            mistakes,
            of_prompts: BTreeMap::new(),
        }
    }

    /// Always what the target wants.
    pub fn oracle(known: Continuations) -> Self {
        Self::new(known, 0, Mistakes::Never)
    }

    /// Never what the target wants.
    pub fn adversary(known: Continuations, vocab: usize) -> Self {
        Self::new(known, vocab, Mistakes::Always)
    }

    /// What the target wants with probability `right`.
    pub fn sometimes(known: Continuations, vocab: usize, right: f64, seed: u64) -> Self {
        Self::new(known, vocab, Mistakes::Sometimes { right, seed })
    }

    /// What the target wants except at these output indices.
    pub fn wrong_at(
        known: Continuations,
        vocab: usize,
        places: impl IntoIterator<Item = usize>,
    ) -> Self {
        Self::new(known, vocab, Mistakes::At(places.into_iter().collect()))
    }

    /// Other mistakes for rows with this prompt.
    pub fn with_prompt(mut self, prompt: impl Into<Vec<Token>>, mistakes: Mistakes) -> Self {
        self.of_prompts.insert(prompt.into(), mistakes);
        self
    }

    fn row(&self, row: &DraftRow<'_>) -> RowDraft {
        let prompt = &row.tokens[..row.prompt_len];
        let emitted = row.tokens.len() - row.prompt_len;
        let mistakes = self.of_prompts.get(prompt).unwrap_or(&self.mistakes);
        let after = self.known.after(row.tokens, row.prompt_len);
        let tokens = after.iter().take(row.k).enumerate().map(|(i, &token)| {
            if mistakes.wrong(prompt, emitted + i) {
                (token + 1) % (self.vocab.max(1) as Token)
            } else {
                token
            }
        });
        RowDraft::deterministic(tokens.collect())
    }
}

impl Drafter for ScriptedDrafter {
    fn name(&self) -> &'static str {
        match self.mistakes {
            Mistakes::Never => "oracle",
            Mistakes::Always => "adversary",
            _ => "scripted",
        }
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        Ok(Draft {
            rows: cx.rows.iter().map(|row| self.row(row)).collect(),
        })
    }
}

/// Drafts exactly what the test lists, sane or not: too long, outside the vocabulary, beyond an
/// end. Each call takes the next list, for all rows of the step; after the last one it drafts
/// nothing.
#[derive(Debug, Clone, Default)]
pub struct Listed(VecDeque<Vec<RowDraft>>);

impl Listed {
    /// For each call one draft a row, in the order of rows; rows without one get none.
    pub fn new(calls: impl IntoIterator<Item = Vec<RowDraft>>) -> Self {
        Self(calls.into_iter().collect())
    }

    /// For a single row: the tokens of each call.
    pub fn tokens<T: Into<Vec<Token>>>(calls: impl IntoIterator<Item = T>) -> Self {
        Self::new(
            calls
                .into_iter()
                .map(|t| vec![RowDraft::deterministic(t.into())]),
        )
    }
}

impl Drafter for Listed {
    fn name(&self) -> &'static str {
        "listed"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let mut rows = self.0.pop_front().unwrap_or_default();
        rows.resize(cx.rows.len(), RowDraft::default());
        Ok(Draft { rows })
    }
}
