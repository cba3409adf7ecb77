//! Drafts and verify passes along a text that is known: what would have been accepted.

use anyhow::{Context, Result};
use specdec::core::sampling::{argmax, probabilities};
use specdec::core::{Block, KvCache, KvSegment, Phase, SeqId, TargetModel, Token};
use specdec::ragged::SlotCache;
use specdec::vegas::{Candidates, Select};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const SEQ: SeqId = SeqId(0);
/// Prompt tokens of a pass.
const PIECE: usize = 512;

/// A prompt, the target's own greedy continuation of it, and the prompt's entries.
pub struct Text {
    tokens: Vec<Token>,
    prompt: usize,
    entries: KvSegment,
}

/// What came of the drafts of one rule in a text, round by round.
#[derive(Default)]
pub struct Rounds {
    /// Share of the drafted tokens that are the target's.
    pub greedy: Vec<f64>,
    /// Mean sum of min(p, q): what speculative sampling accepts at temperature 1.
    pub overlap: Vec<f64>,
}

/// One pass over tokens from `start` on; the logits of each.
fn pass(
    target: &dyn TargetModel,
    cache: &mut dyn KvCache,
    (start, tokens): (usize, &[Token]),
    phase: Phase,
) -> Result<Vec<Vec<f32>>> {
    let block = Block::single(SEQ, start, tokens, &target.spec().device);
    let mut attend = cache.begin(block.rows(), phase)?;
    let hidden = target.forward(&block, &mut *attend, &[])?.hidden;
    drop(attend);
    if phase == Phase::Prefill {
        return Ok(Vec::new());
    }
    let logits = target.logits(hidden).into_data().try_into_vec_as::<f32>();
    let logits = logits.ok().context("logits cannot be read")?;
    let vocab = logits.len() / tokens.len();
    Ok(logits.chunks(vocab).map(<[f32]>::to_vec).collect())
}

impl Text {
    /// Continues a prompt by up to `most` tokens.
    pub fn new(
        target: &dyn TargetModel,
        prompt: Vec<Token>,
        (most, ends): (usize, &BTreeSet<Token>),
    ) -> Result<Self> {
        let mut cache = SlotCache::new(target.spec())?;
        let last = prompt.len() - 1;
        for start in (0..last).step_by(PIECE) {
            let end = last.min(start + PIECE);
            pass(
                target,
                &mut cache,
                (start, &prompt[start..end]),
                Phase::Prefill,
            )?;
            cache.commit(&[end - start])?;
        }
        let entries = cache.export(SEQ, 0..last)?;
        let (mut tokens, prompt) = (prompt, last + 1);
        while tokens.len() < prompt + most {
            let anchor = tokens.len() - 1;
            let logits = pass(
                target,
                &mut cache,
                (anchor, &tokens[anchor..]),
                Phase::Verify,
            )?;
            cache.commit(&[1])?;
            let next = argmax(&logits[0]).context("no logit is a number")?;
            if ends.contains(&next) {
                break;
            }
            tokens.push(next);
        }
        Ok(Self {
            tokens,
            prompt,
            entries,
        })
    }

    /// Tokens of the prompt, and of its continuation.
    pub fn len(&self) -> (usize, usize) {
        (self.prompt, self.tokens.len() - self.prompt)
    }

    /// Share of the continuation's runs of eight tokens that stand in the prompt.
    pub fn quoted(&self) -> f64 {
        let (prompt, continuation) = self.tokens.split_at(self.prompt);
        let held: BTreeSet<&[Token]> = prompt.windows(8).collect();
        let found = continuation.windows(8).filter(|run| held.contains(run));
        found.count() as f64 / continuation.windows(8).len().max(1) as f64
    }

    /// Drafts of `gamma` tokens along the continuation, each round after one in which all were accepted.
    pub fn measure(
        &self,
        target: &dyn TargetModel,
        cache: &mut dyn KvCache,
        gamma: usize,
    ) -> Result<Rounds> {
        cache.import(SEQ, &self.entries)?;
        let mut rounds = Rounds::default();
        // The anchor of the round. The first one only ranks.
        let mut at = self.prompt - 1;
        while at + gamma < self.tokens.len() {
            let mut drafted = Vec::new();
            for token in at..at + gamma {
                if at >= self.prompt {
                    let token = (token, &self.tokens[token..=token]);
                    drafted.extend(pass(target, cache, token, Phase::Draft)?);
                }
            }
            cache.rollback();
            let block = (at, &self.tokens[at..=at + gamma]);
            let verified = pass(target, cache, block, Phase::Verify)?;
            cache.commit(&[gamma + 1])?;
            at += gamma + 1;
            if drafted.is_empty() {
                continue;
            }
            let pairs = || drafted.iter().zip(&verified);
            let agreed = pairs().filter(|(q, p)| argmax(q) == argmax(p)).count();
            let overlap = pairs().map(|(q, p)| {
                let (q, p) = (probabilities(q), probabilities(p));
                q.iter().zip(&p).map(|(q, p)| q.min(*p)).sum::<f64>()
            });
            rounds.overlap.push(overlap.sum::<f64>() / gamma as f64);
            rounds.greedy.push(agreed as f64 / gamma as f64);
        }
        Ok(rounds)
    }
}

/// Key sets in the order they were chosen, each with its number of candidates.
pub type Sets = Arc<Mutex<Vec<(usize, Vec<u32>)>>>;

/// A rule that writes down what it chose.
#[derive(Debug)]
pub struct Noted<S> {
    pub rule: S,
    pub sets: Sets,
}

impl<S: Select> Select for Noted<S> {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn needs_weights(&self) -> bool {
        self.rule.needs_weights()
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        let chosen = self.rule.select(from);
        if let (Some(keys), Ok(mut sets)) = (&chosen, self.sets.lock()) {
            sets.push((from.count, keys.clone()));
        }
        chosen
    }
}

/// The share of the keys of `of` that `found` has too, the mean over their sets; keys below `first` and the
/// `last` candidates apart, which are in all of them.
pub fn recall(found: &Sets, of: &Sets, (first, last): (usize, usize)) -> f64 {
    let (Ok(found), Ok(of)) = (found.lock(), of.lock()) else {
        return f64::NAN;
    };
    let shares = found.iter().zip(of.iter()).filter_map(|(found, of)| {
        let found: BTreeSet<u32> = found.1.iter().copied().collect();
        let ranked = first as u32..of.0.saturating_sub(last) as u32;
        let of: Vec<u32> =
            of.1.iter()
                .copied()
                .filter(|key| ranked.contains(key))
                .collect();
        let both = of.iter().filter(|key| found.contains(key)).count();
        (!of.is_empty()).then(|| both as f64 / of.len() as f64)
    });
    let shares: Vec<f64> = shares.collect();
    shares.iter().sum::<f64>() / shares.len() as f64
}
