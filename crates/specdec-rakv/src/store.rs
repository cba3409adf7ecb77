pub(crate) mod atomic;
mod block;
mod disk;
mod documents;
mod files;
mod identity;
mod index;
mod lease;
mod options;
mod prefixes;

pub use documents::{Documents, Similarity, TokenOverlap, preload};
pub use identity::Identity;
pub use index::Eviction;
pub use lease::Lease;
pub use options::{DiskOptions, StoreOptions, StoreStats, Write};
pub use prefixes::StoredPrefixes;

use crate::costs::Tier;
use crate::error::{RakvError, Result};
pub(crate) use block::{Block, HostSegment};
use disk::{Disk, Label, name_of};
use index::{Fresh, Index};
use specdec_core::{KvSegment, Token};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most refusals that are kept to be read.
const KEPT_REFUSALS: usize = 64;

/// Keys and values of the prefixes of earlier sequences of one model, found by their exact token ids.
///
/// A tree of blocks of tokens: a look-up compares tokens, never hashes of them. A prefix that ends
/// inside a block uses the block's first positions. Payloads are copies on the host and never change
/// while anybody reads them; clones share one store, and any number of threads may read and write it.
#[derive(Debug, Clone)]
pub struct PrefixStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    identity: Identity,
    digest: u128,
    options: StoreOptions,
    disk: Option<Disk>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    index: Index,
    stats: StoreStats,
    refusals: Vec<RakvError>,
}

impl State {
    fn refuse(&mut self, error: RakvError) {
        self.stats.refused += 1;
        if self.refusals.len() == KEPT_REFUSALS {
            self.refusals.remove(0);
        }
        self.refusals.push(error);
    }
}

/// How much of some tokens is stored, before anything is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Tokens.
    pub tokens: usize,
    /// Bytes of their entries, in whole blocks.
    pub bytes: usize,
    /// Where they lie; [`Tier::Disk`] if any of them does.
    pub tier: Tier,
}

impl PrefixStore {
    /// A store for a model, empty or with what its folder holds. Files that are damaged or not this
    /// model's are left out and counted: see [`Self::refusals`].
    ///
    /// # Errors
    /// [`RakvError::Setting`] for a block of 0 tokens; [`RakvError::Io`] when the folder cannot be
    /// read.
    pub fn open(identity: Identity, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let mut state = State::default();
        let disk = match &options.disk {
            None => None,
            Some(at) => {
                let (disk, found) = Disk::open(&at.folder, &identity)?;
                let mut places = std::collections::HashMap::new();
                for error in found.refused {
                    state.refuse(error);
                }
                for (name, label, bytes) in found.blocks {
                    let parent = places.get(&label.parent).copied();
                    if label.start > 0 && parent.is_none() {
                        let path = disk.path(name);
                        state.refuse(RakvError::damaged(&path, "the block before it is missing"));
                        continue;
                    }
                    let fits = parent.is_none_or(|id| {
                        state
                            .index
                            .node(id)
                            .is_some_and(|n| n.end() == label.start && n.scope == label.scope)
                    });
                    if !fits || (label.start == 0) != (label.parent == 0) {
                        let path = disk.path(name);
                        state.refuse(RakvError::damaged(&path, "it does not follow its parent"));
                        continue;
                    }
                    let fresh = Fresh {
                        scope: label.scope,
                        start: label.start,
                        tokens: label.tokens.into(),
                        name,
                        seconds: 0.0,
                    };
                    let (id, replaced) = state.index.insert(parent, fresh, None, Some(bytes));
                    if let Some(shorter) = replaced {
                        disk.delete(shorter);
                    }
                    if let (Some(&(last, hits)), Some(node)) =
                        (found.used.get(&name), state.index.node_mut(id))
                    {
                        (node.last, node.hits) = (last, hits);
                    }
                    places.insert(name, id);
                }
                Some(disk)
            }
        };
        Ok(Self(Arc::new(Shared {
            digest: identity.digest(),
            identity,
            options,
            disk,
            state: Mutex::new(state),
        })))
    }

    /// Whose entries these are.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// What happened so far, and what is held now.
    pub fn stats(&self) -> StoreStats {
        let mut state = self.lock();
        let mut stats = state.stats;
        stats.memory_bytes = state.index.memory;
        stats.zombie_bytes = state.index.zombie_bytes();
        stats.disk_bytes = state.index.disk;
        stats.evicted = state.index.evicted;
        stats.blocks = state.index.nodes().count();
        stats.pins = state.index.nodes().map(|(_, n)| n.pins as usize).sum();
        stats
    }

    /// Why files were refused, the last 64 of them, in words.
    pub fn refusals(&self) -> Vec<String> {
        self.lock()
            .refusals
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// How many of the tokens (at most `limit`) have stored entries. Reads nothing.
    pub fn stored(&self, scope: u64, tokens: &[Token], limit: usize) -> Option<Stored> {
        let state = self.lock();
        let path = state.index.walk(scope, tokens, limit);
        let mut stored = Stored {
            tokens: 0,
            bytes: 0,
            tier: Tier::Memory,
        };
        for (id, used) in path {
            let node = state.index.node(id)?;
            stored.tokens += used;
            match &node.block {
                Some(block) => stored.bytes += block.size(),
                None => {
                    stored.bytes += node.file.unwrap_or(0);
                    stored.tier = Tier::Disk;
                }
            }
        }
        (stored.tokens > 0).then_some(stored)
    }

    /// The entries of the longest stored prefix of the tokens, at most `limit` of them. What lies on
    /// disk is read, and refused where it is not exactly what was stored.
    pub fn lookup(&self, scope: u64, tokens: &[Token], limit: usize) -> Option<Lease> {
        let mut lease = Lease {
            store: self.clone(),
            nodes: Vec::new(),
            blocks: Vec::new(),
        };
        let mut wanted = Vec::new();
        {
            let mut state = self.lock();
            state.stats.lookups += 1;
            let path = state.index.walk(scope, tokens, limit);
            state.index.touch(&path);
            let mut parent = 0;
            for &(id, used) in &path {
                state.index.pin(id);
                lease.nodes.push(id);
                let node = state.index.node(id)?;
                let label = Label {
                    scope,
                    start: node.start,
                    parent,
                    tokens: node.tokens.to_vec(),
                };
                parent = node.name;
                wanted.push((id, used, node.block.clone(), node.name, label));
            }
        }
        for (id, used, block, name, label) in wanted {
            let block = match block {
                Some(block) => block,
                None => match self.0.disk.as_ref().map(|disk| disk.read(name, &label)) {
                    Some(Ok(block)) => {
                        let block = Arc::new(block);
                        let mut state = self.lock();
                        let (budget, how) = (self.0.options.memory, self.0.options.eviction);
                        if state.index.make_room(block.size(), budget, how) {
                            state.index.fill(id, &block);
                        }
                        state.stats.read += 1;
                        block
                    }
                    refused => {
                        let mut state = self.lock();
                        if let Some(Err(error)) = refused {
                            if !matches!(error, RakvError::Io { .. })
                                && let Some(disk) = &self.0.disk
                            {
                                disk.delete(name);
                            }
                            state.refuse(error);
                        }
                        state.index.lose_file(id);
                        break;
                    }
                },
            };
            lease.blocks.push((block, used));
        }
        let tokens = lease.tokens();
        if tokens == 0 {
            return None;
        }
        let mut state = self.lock();
        state.stats.hits += 1;
        state.stats.reused += tokens as u64;
        drop(state);
        Some(lease)
    }

    /// Which entries of these tokens (all of them have one) are not stored yet: from the beginning of
    /// a block to their end.
    pub fn missing(&self, scope: u64, tokens: &[Token]) -> Range<usize> {
        let state = self.lock();
        let path = state.index.walk(scope, tokens, tokens.len());
        let matched: usize = path.iter().map(|(_, used)| used).sum();
        if matched == tokens.len() {
            return matched..matched;
        }
        self.boundary(&state.index, &path)..tokens.len()
    }

    /// Where the last whole block of a path ends.
    fn boundary(&self, index: &Index, path: &[(usize, usize)]) -> usize {
        let whole = |(id, used): &(usize, usize)| {
            let node = index.node(*id)?;
            let full = *used == node.tokens.len() && *used == self.0.options.block;
            Some(if full { node.end() } else { node.start })
        };
        path.last().and_then(whole).unwrap_or(0)
    }

    /// Stores committed, exact entries of `tokens`, over the range asked for by [`Self::missing`].
    /// `seconds` is what computing them took, or is predicted to take. Where memory is short, what
    /// does not fit is left out and counted.
    ///
    /// # Errors
    /// [`RakvError::Entries`] for entries of another shape or of a type that cannot be stored, or of
    /// a range that does not end with the tokens; [`RakvError::Io`] when a file cannot be written
    /// (memory then holds them).
    pub fn insert(
        &self,
        scope: u64,
        tokens: &[Token],
        entries: KvSegment,
        seconds: f64,
    ) -> Result<()> {
        let block = self.0.options.block;
        let range = entries.range.clone();
        if range.end > tokens.len() || !range.start.is_multiple_of(block) || range.is_empty() {
            let what = format!("entries {range:?} of {} tokens", tokens.len());
            return Err(RakvError::Entries(what));
        }
        let (layers, heads) = (self.0.identity.layers(), self.0.identity.heads());
        let host = HostSegment::read(entries, layers, heads)?;
        let pieces: Vec<(Range<usize>, Arc<Block>)> = range
            .clone()
            .step_by(block)
            .map(|from| from..(from + block).min(range.end))
            .map(|piece| (piece.clone(), Arc::new(host.block(piece))))
            .collect();
        let each = seconds.max(0.0) / range.len() as f64;
        let mut changed = Vec::new();
        {
            let mut state = self.lock();
            let state = &mut *state;
            let path = state.index.walk(scope, &tokens[..range.end], range.end);
            let from = self.boundary(&state.index, &path);
            if from < range.start {
                // The blocks before were given up meanwhile.
                state.stats.skipped += 1;
                return Ok(());
            }
            let mut parents: Vec<usize> = Vec::new();
            for (id, _) in path {
                if state.index.node(id).is_some_and(|node| node.end() <= from) {
                    parents.push(id);
                    state.index.pin(id);
                }
            }
            for (piece, payload) in pieces.into_iter().filter(|(p, _)| p.start >= from) {
                let (budget, how) = (self.0.options.memory, self.0.options.eviction);
                if !state.index.make_room(payload.size(), budget, how) {
                    state.stats.skipped += 1;
                    break;
                }
                let parent = parents.last().copied();
                let above = parent
                    .and_then(|id| state.index.node(id))
                    .map_or(0, |n| n.name);
                let own = &tokens[piece.clone()];
                let name = name_of(self.0.digest, scope, above, own);
                let fresh = Fresh {
                    scope,
                    start: piece.start,
                    tokens: own.into(),
                    name,
                    seconds: each * piece.len() as f64,
                };
                let (id, replaced) =
                    state
                        .index
                        .insert(parent, fresh, Some(Arc::clone(&payload)), None);
                if let (Some(shorter), Some(disk)) = (replaced, &self.0.disk) {
                    disk.delete(shorter);
                }
                state.stats.stored += 1;
                state.index.pin(id);
                parents.push(id);
                let label = Label {
                    scope,
                    start: piece.start,
                    parent: above,
                    tokens: own.to_vec(),
                };
                changed.push((id, name, label, payload));
            }
            for id in parents {
                state.index.unpin(id);
            }
        }
        match &self.0.options.disk {
            Some(disk) if disk.write == Write::OnStore => self.write_out(changed),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
