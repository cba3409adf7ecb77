//! Documents by key: which stored prefixes to have at hand. What is reused is always an exact prefix
//! of token ids; a wrong guess costs time and nothing else.

use super::PrefixStore;
use crate::error::{RakvError, Result};
use specdec_core::{Block, Error, KvCache, Phase, SeqId, TargetModel, Token};
use std::collections::{BTreeMap, BTreeSet};

/// How much a document has to do with a query.
pub trait Similarity: Send + Sync {
    /// A score; the larger, the more alike. NaN counts as nothing.
    fn score(&self, query: &[Token], document: &[Token]) -> f64;
}

/// The share of a query's pairs of neighbouring tokens that the document has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenOverlap;

impl Similarity for TokenOverlap {
    fn score(&self, query: &[Token], document: &[Token]) -> f64 {
        let pairs = |tokens: &[Token]| -> BTreeSet<(Token, Token)> {
            tokens.windows(2).map(|w| (w[0], w[1])).collect()
        };
        let (query, document) = (pairs(query), pairs(document));
        if query.is_empty() {
            return 0.0;
        }
        query.intersection(&document).count() as f64 / query.len() as f64
    }
}

/// Named documents whose entries are to be at hand when a prompt begins with them.
#[derive(Debug)]
pub struct Documents<S = TokenOverlap> {
    store: PrefixStore,
    scope: u64,
    similarity: S,
    texts: BTreeMap<String, Vec<Token>>,
}

impl<S: Similarity> Documents<S> {
    /// No documents yet, in a scope of a store.
    pub fn new(store: PrefixStore, scope: u64, similarity: S) -> Self {
        Self {
            store,
            scope,
            similarity,
            texts: BTreeMap::new(),
        }
    }

    /// Names a document (again: its text may have changed).
    pub fn insert(&mut self, key: impl Into<String>, tokens: impl Into<Vec<Token>>) {
        self.texts.insert(key.into(), tokens.into());
    }

    /// Tokens of a document; `None` for a key nobody gave.
    pub fn tokens(&self, key: &str) -> Option<&[Token]> {
        self.texts.get(key).map(Vec::as_slice)
    }

    /// Brings a document's stored entries from disk into memory, where there is room. How many of its
    /// tokens are stored; 0 for a key nobody gave.
    pub fn fetch(&self, key: &str) -> usize {
        let Some(tokens) = self.texts.get(key) else {
            return 0;
        };
        let lease = self.store.lookup(self.scope, tokens, tokens.len());
        lease.map_or(0, |lease| lease.tokens())
    }

    /// The keys of the documents most like a query, best first.
    pub fn similar(&self, query: &[Token], most: usize) -> Vec<&str> {
        let mut scores: Vec<(f64, &str)> = self
            .texts
            .iter()
            .map(|(key, text)| (self.similarity.score(query, text), key.as_str()))
            .filter(|(score, _)| *score > 0.0)
            .collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        scores.into_iter().take(most).map(|(_, key)| key).collect()
    }

    /// Fetches the documents most like a query; their keys and how many tokens of each are stored.
    pub fn fetch_similar(&self, query: &[Token], most: usize) -> Vec<(&str, usize)> {
        let keys = self.similar(query, most).into_iter();
        keys.map(|key| (key, self.fetch(key))).collect()
    }
}

/// Computes and stores the entries of a text that prompts will begin with, `chunk` tokens at a time,
/// in a cache that knows nothing of [`SeqId`] `u64::MAX`. How many tokens had to be computed.
///
/// # Errors
/// [`RakvError::Setting`] for a chunk of 0; [`RakvError::Decoding`] for a token outside the
/// vocabulary and when target or cache fails (the cache is then as before); those of
/// [`PrefixStore::insert`].
pub fn preload(
    store: &PrefixStore,
    scope: u64,
    target: &dyn TargetModel,
    cache: &mut dyn KvCache,
    (tokens, chunk): (&[Token], usize),
) -> Result<usize> {
    if chunk == 0 {
        return Err(RakvError::Setting {
            setting: "chunk",
            value: "0".into(),
            allowed: "1 or more",
        });
    }
    let spec = target.spec();
    if let Some(index) = tokens.iter().position(|&t| t as usize >= spec.vocab) {
        let (token, vocab) = (tokens[index], spec.vocab);
        let error = specdec_core::RequestError::PromptToken {
            index,
            token,
            vocab,
        };
        return Err(Error::from(error).into());
    }
    let seq = SeqId(u64::MAX);
    let missing = store.missing(scope, tokens);
    if missing.is_empty() {
        return Ok(0);
    }
    cache.evict(seq);
    let done = fill(store, scope, target, cache, (tokens, chunk, missing.start));
    let done = done.and_then(|computed| {
        let entries = cache.export(seq, missing.clone())?;
        Ok((computed, entries))
    });
    cache.evict(seq);
    let (computed, entries) = done?;
    // Attention makes late tokens dearer; for one text the mean will do.
    store.insert(scope, tokens, entries, missing.len() as f64 * 1e-3)?;
    Ok(computed)
}

/// Gives the cache the entries of all tokens, those before `from` out of the store.
fn fill(
    store: &PrefixStore,
    scope: u64,
    target: &dyn TargetModel,
    cache: &mut dyn KvCache,
    (tokens, chunk, from): (&[Token], usize, usize),
) -> Result<usize, Error> {
    let seq = SeqId(u64::MAX);
    let device = &target.spec().device;
    let lease = store.lookup(scope, tokens, from);
    if let Some(segment) = lease.and_then(|lease| lease.segment(device)) {
        cache.import(seq, &segment)?;
    }
    let mut at = cache.len(seq);
    let first = at;
    while at < tokens.len() {
        let end = (at + chunk).min(tokens.len());
        let block = Block::single(seq, at, &tokens[at..end], device);
        let mut attend = cache.begin(block.rows(), Phase::Prefill)?;
        let forward = target.forward(&block, &mut *attend, &[]);
        drop(attend);
        if let Err(error) = forward {
            cache.rollback();
            return Err(error);
        }
        cache.commit(&[end - at])?;
        at = end;
    }
    Ok(tokens.len() - first)
}
