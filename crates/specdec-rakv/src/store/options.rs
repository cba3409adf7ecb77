use super::index::Eviction;
use crate::error::{RakvError, Result};
use std::path::PathBuf;

/// When blocks are written to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Write {
    /// When [`flush`](super::PrefixStore::flush) is called. What memory gives up before that is lost.
    #[default]
    OnFlush,
    /// When they are stored: costs the flush of a file for each block.
    OnStore,
}

/// Where blocks are kept beyond the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; each model has its own folder in it.
    pub folder: PathBuf,
    /// Most bytes of this model's files.
    pub budget: usize,
    /// When they are written.
    pub write: Write,
}

impl DiskOptions {
    /// At most 4 GiB in a folder, written when the store is flushed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            budget: 4 << 30,
            write: Write::default(),
        }
    }
}

/// Settings of a prefix store.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `block` | 64 | tokens of a block, the unit of storing; 1 or more |
/// | `memory` | 1 GiB | most bytes of blocks in memory |
/// | `eviction` | least recent | which block goes first |
/// | `disk` | none | where blocks are kept beyond the process |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Tokens of a block.
    pub block: usize,
    /// Most bytes of blocks in memory.
    pub memory: usize,
    /// Which block goes first.
    pub eviction: Eviction,
    /// Where blocks are kept beyond the process.
    pub disk: Option<DiskOptions>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            block: 64,
            memory: 1 << 30,
            eviction: Eviction::default(),
            disk: None,
        }
    }
}

impl StoreOptions {
    pub(super) fn check(&self) -> Result<()> {
        if self.block == 0 {
            return Err(RakvError::Setting {
                setting: "block",
                value: "0".into(),
                allowed: "1 or more",
            });
        }
        Ok(())
    }
}

/// What a store did, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StoreStats {
    /// Look-ups.
    pub lookups: u64,
    /// Look-ups that found something.
    pub hits: u64,
    /// Tokens found by them.
    pub reused: u64,
    /// Blocks stored, longer ones in place of shorter ones included.
    pub stored: u64,
    /// Times entries were not stored for want of room, or because what was before them had gone.
    pub skipped: u64,
    /// Times a cache would not give entries.
    pub unexported: u64,
    /// Times stored entries were left alone because computing them is faster.
    pub declined: u64,
    /// Times a cache did not take entries.
    pub failed: u64,
    /// Blocks read from files.
    pub read: u64,
    /// Files refused: torn, damaged or another model's.
    pub refused: u64,
    /// Blocks given up.
    pub evicted: u64,
    /// Blocks held, in memory or on disk.
    pub blocks: usize,
    /// Bytes of blocks in memory.
    pub memory_bytes: usize,
    /// Bytes of blocks that were replaced while somebody still reads them.
    pub zombie_bytes: usize,
    /// Bytes of files.
    pub disk_bytes: usize,
    /// Blocks that are being read, each counted once a reader.
    pub pins: usize,
}
