use super::PrefixStore;
use super::block::Block;
use super::disk::Label;
use crate::error::Result;
use std::sync::Arc;

impl PrefixStore {
    /// Writes blocks to files, parents first, and then the index.
    pub(super) fn write_out(&self, blocks: Vec<(usize, u128, Label, Arc<Block>)>) -> Result<()> {
        let (Some(disk), Some(options)) = (&self.0.disk, &self.0.options.disk) else {
            return Ok(());
        };
        for (id, name, label, block) in blocks {
            let bytes = disk.write(&label, &block)?;
            if !self.lock().index.written(id, name, bytes) {
                disk.delete(name);
            }
        }
        let (gone, contents) = {
            let mut state = self.lock();
            let gone = state.index.trim_files(options.budget);
            let kept = state.index.nodes().filter(|(_, n)| n.file.is_some());
            let contents: Vec<(u128, u64, u32)> =
                kept.map(|(_, n)| (n.name, n.last, n.hits)).collect();
            (gone, contents)
        };
        gone.into_iter().for_each(|name| disk.delete(name));
        disk.write_index(contents)
    }

    /// Writes what is in memory only to files, where the store has a folder.
    ///
    /// # Errors
    /// [`crate::RakvError::Io`] when a file cannot be written.
    pub fn flush(&self) -> Result<()> {
        let blocks = {
            let state = self.lock();
            let mut blocks: Vec<_> = state
                .index
                .nodes()
                .filter(|(_, node)| node.file.is_none())
                .filter_map(|(id, node)| {
                    let above = node.parent.and_then(|id| state.index.node(id));
                    let label = Label {
                        scope: node.scope,
                        start: node.start,
                        parent: above.map_or(0, |n| n.name),
                        tokens: node.tokens.to_vec(),
                    };
                    Some((id, node.name, label, Arc::clone(node.block.as_ref()?)))
                })
                .collect();
            blocks.sort_by_key(|(_, _, label, _)| label.start);
            blocks
        };
        self.write_out(blocks)
    }
}
