use super::PrefixStore;
use super::block::Block;
use burn::prelude::*;
use specdec_core::KvSegment;
use std::sync::Arc;

/// Entries that were found and cannot be given up while this lives.
#[derive(Debug)]
pub struct Lease {
    pub(super) store: PrefixStore,
    pub(super) nodes: Vec<usize>,
    pub(super) blocks: Vec<(Arc<Block>, usize)>,
}

impl Lease {
    /// Tokens whose entries it holds.
    pub fn tokens(&self) -> usize {
        self.blocks.iter().map(|(_, used)| used).sum()
    }

    /// The entries as a segment from position 0 on; `None` when there are none.
    pub fn segment(&self, device: &Device) -> Option<KvSegment> {
        let identity = &self.store.0.identity;
        let blocks = self.blocks.iter().map(|(block, used)| (&**block, *used));
        Block::assemble(blocks, identity.layers(), identity.heads(), device)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        for &id in &self.nodes {
            state.index.unpin(id);
        }
    }
}
