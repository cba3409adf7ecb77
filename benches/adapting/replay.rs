//! A drafter that is right as often as it is told to be, at a real drafter's cost.

use specdec::core::{
    BuildError, Draft, DraftContext, DraftRow, Drafter, ModelSpec, Observation, Result, RowDraft,
    SeqId, Token,
};
use specdec::draft::ModelDrafter;
use specdec_testkit::scripted::Mistakes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Outputs by prompt.
pub type Known = HashMap<Vec<Token>, Vec<Token>>;

/// Two tokens of plain text, one of which is not the right one.
const WRONG: [Token; 2] = [300, 301];

/// The probability that a drafted token is right; clones share it.
#[derive(Debug, Clone)]
pub struct Right(Arc<AtomicU64>);

impl Right {
    pub fn new(probability: f64) -> Self {
        Self(Arc::new(AtomicU64::new(probability.to_bits())))
    }

    pub fn set(&self, probability: f64) {
        self.0.store(probability.to_bits(), Ordering::Relaxed);
    }

    /// Where drafts are wrong: a function of seed, prompt and output index.
    pub fn mistakes(&self, seed: u64) -> Mistakes {
        let right = f64::from_bits(self.0.load(Ordering::Relaxed));
        Mistakes::Sometimes { right, seed }
    }
}

/// Lets a model draft, if there is one, and replaces what it says: by the token that will be emitted, or by another
/// one. Where nothing is known of a prompt (when costs are measured) the model's own drafts stand.
#[derive(Debug)]
pub struct Replay {
    inner: Option<ModelDrafter>,
    known: Arc<Known>,
    right: Right,
    seed: u64,
}

impl Replay {
    pub fn new(inner: Option<ModelDrafter>, known: Arc<Known>, right: Right, seed: u64) -> Self {
        Self {
            inner,
            known,
            right,
            seed,
        }
    }

    fn replace(&self, row: &DraftRow<'_>, draft: RowDraft) -> RowDraft {
        let (prompt, emitted) = row.tokens.split_at(row.prompt_len);
        let Some(output) = self.known.get(prompt) else {
            return draft;
        };
        let mistakes = self.right.mistakes(self.seed);
        let say = |(i, own): (usize, Token)| {
            let place = emitted.len() + i;
            match output.get(place) {
                None => own,
                Some(&token) if !mistakes.wrong(prompt, place) => token,
                Some(&token) => WRONG[usize::from(token == WRONG[0])],
            }
        };
        let tokens = draft.tokens.into_iter().enumerate().map(say);
        RowDraft::deterministic(tokens.collect())
    }
}

impl Drafter for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let rows = cx.rows;
        let draft = match &mut self.inner {
            Some(inner) => inner.draft(cx)?,
            None => Draft {
                rows: rows
                    .iter()
                    .map(|row| RowDraft::deterministic(vec![WRONG[0]; row.k]))
                    .collect(),
            },
        };
        let pairs = rows.iter().zip(draft.rows);
        Ok(Draft {
            rows: pairs.map(|(row, own)| self.replace(row, own)).collect(),
        })
    }

    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        self.inner
            .as_mut()
            .map_or(Ok(()), |inner| inner.observe(observation))
    }

    fn look_back(&mut self, cx: DraftContext<'_>) -> Result<Option<Vec<Vec<bool>>>> {
        let rows = cx.rows;
        let Some(inner) = &mut self.inner else {
            return Ok(None);
        };
        let mut seen = inner.look_back(cx)?;
        let mistakes = self.right.mistakes(self.seed);
        for (row, seen) in rows.iter().zip(seen.iter_mut().flatten()) {
            let (prompt, emitted) = row.tokens.split_at(row.prompt_len);
            if self.known.contains_key(prompt) {
                let first = emitted.len() - seen.len();
                for (place, seen) in (first..).zip(seen) {
                    *seen = !mistakes.wrong(prompt, place);
                }
            }
        }
        Ok(seen)
    }

    fn evict(&mut self, seq: SeqId) {
        if let Some(inner) = &mut self.inner {
            inner.evict(seq);
        }
    }

    fn check(&self, target: &ModelSpec) -> std::result::Result<(), BuildError> {
        self.inner
            .as_ref()
            .map_or(Ok(()), |inner| inner.check(target))
    }
}
