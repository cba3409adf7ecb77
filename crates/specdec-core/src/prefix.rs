//! The seam to stored keys and values of prefixes.

use crate::{BuildError, CacheError, KvCache, KvSegment, ModelSpec, Result, SeqId, Token};
use burn::prelude::*;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Whether a request takes part in prefix reuse. It never changes the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reuse {
    /// It takes stored prefixes and leaves its own for others.
    #[default]
    Shared,
    /// The same, with requests of this scope only (a tenant, a user): nothing is shared with others.
    Within(u64),
    /// It is prefilled from its first token and leaves nothing.
    Off,
}

impl Reuse {
    /// The scope of its entries (`Shared` is scope 0); `None` when it takes no part.
    pub fn scope(self) -> Option<u64> {
        match self {
            Self::Shared => Some(0),
            // Scope 0 belongs to everybody.
            Self::Within(scope) => Some(scope.saturating_add(1)),
            Self::Off => None,
        }
    }
}

/// A sequence's content, for a look at what is stored of it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PrefixQuery<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Its content, from position 0. When entries are stored: exactly the tokens whose entries are
    /// committed.
    pub tokens: &'a [Token],
    /// Most entries that may be supplied; less than `tokens.len()`, since the last token is always
    /// computed.
    pub limit: usize,
    /// Entries of other scopes do not exist for it.
    pub scope: u64,
}

impl<'a> PrefixQuery<'a> {
    /// A query about content of which all but the last token may be supplied, in scope 0.
    pub fn new(seq: SeqId, tokens: &'a [Token]) -> Self {
        Self {
            seq,
            tokens,
            limit: tokens.len().saturating_sub(1),
            scope: 0,
        }
    }

    /// Sets the scope.
    pub fn within(mut self, scope: u64) -> Self {
        self.scope = scope;
        self
    }
}

/// How the entries a [`PrefixCache`] supplied were taken in.
#[derive(Debug)]
#[non_exhaustive]
pub struct PrefixImport<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Entries it starts with; 0 when the import failed.
    pub tokens: usize,
    /// Time of fetching and importing.
    pub time: Duration,
    /// Why the import failed.
    pub error: Option<&'a crate::Error>,
}

/// Keys and values of earlier sequences, for later ones with the same beginning.
///
/// What it supplies must be what a prefill of the query's tokens in an exact cache gives; the output
/// then does not depend on it. It never fails a sequence: what it cannot supply is computed.
pub trait PrefixCache: Send {
    /// The entries of the longest stored prefix of the query's tokens, from position 0 on, for as
    /// long as taking them is cheaper than computing them. Asked once when a sequence starts and
    /// again when it starts anew after it lost its memory.
    fn fetch(&mut self, query: &PrefixQuery<'_>) -> Option<KvSegment>;

    /// Learns how what it supplied was taken in. Called after every [`fetch`](Self::fetch) that gave
    /// something.
    fn imported(&mut self, import: &PrefixImport<'_>) {
        let _ = import;
    }

    /// Which of the query's entries it would like to have; an empty range for none. Asked when a
    /// sequence has been prefilled, when it ends and when it loses its memory.
    fn missing(&self, query: &PrefixQuery<'_>) -> Range<usize>;

    /// Takes committed, exact entries of the query's tokens over the range asked for, or learns that
    /// the cache would not give them (it no longer holds them, for one).
    fn store(&mut self, query: &PrefixQuery<'_>, entries: Result<KvSegment>);

    /// Checks that its entries are those of this target; called once when the decoder is built.
    ///
    /// # Errors
    /// [`BuildError::Prefixes`] with the reason.
    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        let _ = target;
        Ok(())
    }
}

impl fmt::Debug for dyn PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixCache").finish_non_exhaustive()
    }
}

impl dyn PrefixCache {
    /// Fetches what is stored for a sequence without entries and imports it. `None` when nothing
    /// was fetched. After a failure the sequence has no entries, as before.
    ///
    /// # Errors
    /// The cache's, or [`crate::Error::Contract`] for entries that do not start at position 0.
    pub fn load(
        &mut self,
        cache: &mut dyn KvCache,
        query: &PrefixQuery<'_>,
    ) -> Option<Result<PrefixImport<'static>>> {
        let started = Instant::now();
        let segment = self.fetch(query)?.truncated(query.limit);
        let tokens = segment.range.end;
        let result = take_in(cache, query.seq, &segment);
        if result.is_err() {
            cache.evict(query.seq);
        }
        let mut import = PrefixImport {
            seq: query.seq,
            tokens: if result.is_ok() { tokens } else { 0 },
            time: started.elapsed(),
            error: result.as_ref().err(),
        };
        self.imported(&import);
        import.error = None;
        let PrefixImport {
            seq, tokens, time, ..
        } = import;
        Some(result.map(|()| PrefixImport {
            seq,
            tokens,
            time,
            error: None,
        }))
    }

    /// Stores what is missing of a sequence's committed entries, whose tokens are the query's.
    pub fn save(&mut self, cache: &dyn KvCache, query: &PrefixQuery<'_>) {
        let Range { start, end } = self.missing(query);
        let end = end.min(query.tokens.len());
        if start < end {
            self.store(query, cache.export(query.seq, start..end));
        }
    }
}

fn take_in(cache: &mut dyn KvCache, seq: SeqId, segment: &KvSegment) -> Result<()> {
    if segment.range.start != 0 {
        return Err(CacheError::Start {
            row: 0,
            seq,
            start: segment.range.start,
            len: 0,
        }
        .into());
    }
    cache.import(seq, segment)?;
    let (got, want) = (cache.len(seq), segment.range.end);
    if got == want {
        return Ok(());
    }
    Err(crate::Error::Contract {
        part: "cache",
        what: format!("{got} entries after an import of {want}"),
    })
}

impl KvSegment {
    /// The same entries up to position `end`, at most.
    pub fn truncated(mut self, end: usize) -> Self {
        if end >= self.range.end {
            return self;
        }
        let len = end.saturating_sub(self.range.start);
        self.range.end = self.range.start + len;
        for (k, v) in &mut self.layers {
            let [_, heads, dim] = k.dims();
            let cut = |t: &Tensor<3>| t.clone().slice([0..len, 0..heads, 0..dim]);
            (*k, *v) = (cut(k), cut(v));
        }
        self
    }
}
