mod index;

use index::ChainIndex;
use specdec_core::{
    BuildError, Draft, DraftContext, DraftRow, Drafter, Result, RowDraft, SeqId, Token,
};
use std::collections::HashMap;
use std::sync::Arc;

/// How the n-gram drafter looks things up.
///
/// | setting | default | range |
/// |---|---|---|
/// | `min_match` | 2 | tokens that must agree before anything is proposed; 1 or more |
/// | `max_match` | 16 | longest agreement that is counted; at least `min_match` |
/// | `candidates` | 32 | earlier places to look at; 1 or more |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramSettings {
    /// Tokens that must agree.
    pub min_match: usize,
    /// Longest agreement that is counted.
    pub max_match: usize,
    /// Earlier places to look at.
    pub candidates: usize,
}

impl Default for NgramSettings {
    fn default() -> Self {
        Self {
            min_match: 2,
            max_match: 16,
            candidates: 32,
        }
    }
}

/// A text that is searched but does not grow.
#[derive(Debug)]
struct Text {
    tokens: Vec<Token>,
    index: ChainIndex,
}

/// Prompt look-up: proposes what followed the last time the newest tokens occurred, in the prompt,
/// in the output, or in texts given beforehand. Costs microseconds, needs no model, and pays where
/// output repeats input: summaries, edits, code, answers out of documents.
///
/// The place that agrees over the most tokens wins; the sequence's own text wins over other texts,
/// and of equal places the latest wins. A proposal that reaches the end of the text goes on with
/// its own beginning, so a text with a period is continued as long as asked for.
#[derive(Debug)]
pub struct NgramDrafter {
    settings: NgramSettings,
    texts: Arc<[Text]>,
    own: HashMap<SeqId, ChainIndex>,
}

impl Default for NgramDrafter {
    /// With the default settings and no other texts.
    fn default() -> Self {
        Self {
            settings: NgramSettings::default(),
            texts: Arc::new([]),
            own: HashMap::new(),
        }
    }
}

impl NgramDrafter {
    /// With these settings.
    ///
    /// # Errors
    /// [`BuildError::Setting`] naming the setting that is out of range.
    pub fn new(settings: NgramSettings) -> Result<Self, BuildError> {
        let wrong = |setting, value: usize, allowed| BuildError::Setting {
            setting,
            value: value.to_string(),
            allowed,
        };
        if settings.min_match == 0 {
            return Err(wrong("min_match", 0, "1 or more"));
        }
        if settings.max_match < settings.min_match {
            return Err(wrong("max_match", settings.max_match, "at least min_match"));
        }
        if settings.candidates == 0 {
            return Err(wrong("candidates", 0, "1 or more"));
        }
        Ok(Self {
            settings,
            ..Self::default()
        })
    }

    /// Searches these token sequences too, such as documents the answer will quote.
    pub fn with_texts(mut self, texts: impl IntoIterator<Item = Vec<Token>>) -> Self {
        self.texts = texts
            .into_iter()
            .map(|tokens| {
                let mut index = ChainIndex::default();
                index.extend(&tokens, self.settings.min_match);
                Text { tokens, index }
            })
            .collect();
        self
    }

    fn propose(&mut self, row: &DraftRow<'_>) -> RowDraft {
        let NgramSettings {
            min_match: n,
            max_match: most,
            candidates,
        } = self.settings;
        let own = self.own.entry(row.seq).or_default();
        if own.indexed() > row.tokens.len() {
            // Not the text that was indexed under this name.
            *own = ChainIndex::default();
        }
        own.extend(row.tokens, n);
        let mut best = own
            .longest(row.tokens, row.tokens, n, most, candidates)
            .map(|found| (found, row.tokens));
        for text in self.texts.iter() {
            let found = text
                .index
                .longest(&text.tokens, row.tokens, n, most, candidates);
            if let Some(found) = found
                && best.is_none_or(|(b, _)| found.len > b.len)
            {
                best = Some((found, &text.tokens));
            }
        }
        let Some((found, text)) = best else {
            return RowDraft::default();
        };
        let continuation = text[found.next..].iter().copied().cycle().take(row.k);
        RowDraft::deterministic(continuation.collect())
    }
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        Ok(Draft {
            rows: cx.rows.iter().map(|row| self.propose(row)).collect(),
        })
    }

    fn evict(&mut self, seq: SeqId) {
        self.own.remove(&seq);
    }
}
