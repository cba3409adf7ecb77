//! A drafter whose raw proposals are judged, before the decoder mends them.

use specdec_core::{
    BuildError, Draft, DraftContext, Drafter, ModelSpec, Observation, Proposal, Result, RowDraft,
    SeqId, Token,
};
use std::sync::{Arc, Mutex, PoisonError};

/// What a [`Watched`] drafter did wrong first, by check and in words. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<Mutex<Option<(&'static str, String)>>>);

impl Faults {
    pub(super) fn first(&self) -> Option<(&'static str, String)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn add(&self, check: &'static str, what: String) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert((check, what));
    }
}

pub(super) struct Watched<D> {
    inner: D,
    vocab: usize,
    faults: Faults,
}

impl<D: Drafter> Watched<D> {
    pub(super) fn new(inner: D, vocab: usize, faults: &Faults) -> Self {
        Self {
            inner,
            vocab,
            faults: faults.clone(),
        }
    }

    fn judge(&self, k: usize, draft: &RowDraft) {
        let n = draft.tokens.len();
        if n > k {
            self.faults
                .add("at most k tokens are drafted", format!("{n} for k = {k}"));
        }
        if let Some(t) = draft.tokens.iter().find(|t| **t as usize >= self.vocab) {
            let what = format!("token {t}, vocabulary of {}", self.vocab);
            self.faults
                .add("drafted tokens are in the vocabulary", what);
        }
        let stated = match &draft.proposal {
            Proposal::Deterministic => return,
            Proposal::Sparse { ids, probs } => {
                let paired = ids.iter().zip(probs).all(|(i, p)| i.len() == p.len());
                if !paired || ids.len() != probs.len() {
                    let what = "candidates and probabilities differ in number".into();
                    self.faults.add("each drafted token has its q", what);
                }
                probs
            }
            Proposal::Dense(rows) => rows,
        };
        if stated.len() != n {
            let what = format!("{} for {n} tokens", stated.len());
            self.faults.add("each drafted token has its q", what);
        }
        for (i, (q, &token)) in stated.iter().zip(&draft.tokens).enumerate() {
            let sum: f64 = q.iter().map(|&p| f64::from(p)).sum();
            if (sum - 1.0).abs() > 1e-4 || q.iter().any(|p| !(0.0..=1.0001).contains(p)) {
                let what = format!("place {i}: the sum is {sum}");
                self.faults.add("q is a distribution", what);
            }
            if draft.proposal.at(i).probability(token, token) <= 0.0 {
                let what = format!("place {i}: q gives token {token} nothing");
                self.faults
                    .add("a drafted token has a chance in its q", what);
            }
        }
    }
}

impl<D: Drafter> Drafter for Watched<D> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let (rows, target, cache) = (cx.rows, cx.target, cx.cache);
        let before: Vec<(SeqId, usize)> = rows
            .iter()
            .map(|row| (row.seq, cache.len(row.seq)))
            .collect();
        let wanted: Vec<usize> = rows.iter().map(|row| row.k).collect();
        let draft = self.inner.draft(DraftContext {
            rows,
            target,
            cache: &mut *cache,
        })?;
        for (seq, len) in before {
            let now = cache.len(seq);
            if now != len {
                let what = format!("sequence {seq} had {len} entries and has {now}");
                self.faults
                    .add("the target's cache is left as it was", what);
            }
        }
        if draft.rows.len() != wanted.len() {
            let what = format!("{} drafts for {} rows", draft.rows.len(), wanted.len());
            self.faults.add("one draft comes for each row", what);
        }
        for (&k, row) in wanted.iter().zip(&draft.rows) {
            self.judge(k, row);
        }
        Ok(draft)
    }

    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        self.inner.observe(observation)
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        self.inner.check(target)
    }
}

/// The tokens of a vocabulary, for prompts.
pub(super) fn random_prompt(
    draws: &mut crate::seeded::Seeded,
    vocab: usize,
    len: usize,
) -> Vec<Token> {
    (0..len).map(|_| draws.below(vocab) as Token).collect()
}
