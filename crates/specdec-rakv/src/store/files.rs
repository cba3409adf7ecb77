use super::PrefixStore;
use super::block::Block;
use super::disk::Label;
use crate::error::Result;
use std::sync::Arc;

impl PrefixStore {
    /// Writes blocks to files, parents first, and then the index. All that can be written is, even
    /// where something cannot; the first error then.
    pub(super) fn write_out(&self, blocks: Vec<(usize, u128, Label, Arc<Block>)>) -> Result<()> {
        let (Some(disk), Some(options)) = (&self.0.disk, &self.0.options.disk) else {
            return Ok(());
        };
        let mut result = Ok(());
        for (id, name, label, block) in blocks {
            match disk.write(&label, &block) {
                Ok(bytes) => {
                    if !self.lock().index.written(id, name, bytes) {
                        disk.delete(name);
                    }
                }
                Err(error) => result = result.and(Err(error)),
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
        result.and(disk.write_index(contents))
    }

    /// Writes what is in memory only to files, where the store has a folder. A block that cannot be
    /// written keeps no other from being written, and is tried again by the next flush; what follows
    /// it in its text is found again only when it is there.
    ///
    /// # Errors
    /// [`crate::RakvError::Io`] when a file cannot be written: the first one's.
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
