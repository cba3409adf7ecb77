//! A tree of token blocks: every path from a root is a prefix whose entries are stored.

use super::block::Block;
use specdec_core::Token;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Which block goes first when memory is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The one not used for longest; of a sequence's blocks the last one first.
    #[default]
    LeastRecent,
    /// The one whose loss costs least: seconds to compute it, times its uses, per byte (GreedyDual).
    CostAware,
}

/// A stored block and its place in the tree.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<usize>,
    pub(super) scope: u64,
    /// Position of its first token.
    pub(super) start: usize,
    pub(super) tokens: Box<[Token]>,
    pub(super) kids: HashMap<Token, Vec<usize>>,
    pub(super) block: Option<Arc<Block>>,
    /// Bytes of its file, when there is one.
    pub(super) file: Option<usize>,
    /// The digest of all tokens up to its end, which is its file's name.
    pub(super) name: u128,
    pub(super) pins: u32,
    pub(super) last: u64,
    pub(super) hits: u32,
    /// Seconds to compute it.
    pub(super) seconds: f64,
    /// Priority by cost when it was last used.
    value: f64,
}

impl Node {
    pub(super) fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    fn is_leaf(&self) -> bool {
        self.kids.is_empty()
    }
}

/// What is new about a block.
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) scope: u64,
    pub(super) start: usize,
    pub(super) tokens: Box<[Token]>,
    pub(super) name: u128,
    pub(super) seconds: f64,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    roots: HashMap<u64, HashMap<Token, Vec<usize>>>,
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    /// Bytes of blocks in memory, and of files.
    pub(super) memory: usize,
    pub(super) disk: usize,
    /// Blocks that were replaced while somebody read them.
    zombies: Vec<Weak<Block>>,
    clock: u64,
    /// Value of the last block given up, the floor of new ones.
    age: f64,
    pub(super) evicted: u64,
}

impl Index {
    pub(super) fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.get(id)?.as_ref()
    }

    pub(super) fn node_mut(&mut self, id: usize) -> Option<&mut Node> {
        self.nodes.get_mut(id)?.as_mut()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (usize, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(id, node)| Some((id, node.as_ref()?)))
    }

    /// The longest stored prefix of the tokens, at most `limit` of them: nodes and how many
    /// positions of each. The last one may be used in part.
    pub(super) fn walk(&self, scope: u64, tokens: &[Token], limit: usize) -> Vec<(usize, usize)> {
        let limit = limit.min(tokens.len());
        let mut path = Vec::new();
        let Some(mut kids) = self.roots.get(&scope) else {
            return path;
        };
        let mut at = 0;
        while at < limit {
            let mut best = (0, 0);
            for &id in kids.get(&tokens[at]).into_iter().flatten() {
                let Some(node) = self.node(id) else { continue };
                if node.block.is_none() && node.file.is_none() {
                    continue;
                }
                let same = node.tokens.iter().zip(&tokens[at..limit]);
                let same = same.take_while(|(a, b)| a == b).count();
                if same > best.1 {
                    best = (id, same);
                }
            }
            let (id, same) = best;
            let Some(node) = self.node(id).filter(|_| same > 0) else {
                break;
            };
            path.push((id, same));
            at += same;
            if same < node.tokens.len() {
                break;
            }
            kids = &node.kids;
        }
        path
    }

    /// Marks a path as used now.
    pub(super) fn touch(&mut self, path: &[(usize, usize)]) {
        self.clock += 1;
        let (clock, age) = (self.clock, self.age);
        for &(id, _) in path {
            if let Some(node) = self.node_mut(id) {
                node.last = clock;
                node.hits = node.hits.saturating_add(1);
                let mib =
                    (node.block.as_ref().map_or(0, |b| b.size()) as f64 / 1048576.0).max(1e-6);
                node.value = age + f64::from(node.hits) * node.seconds / mib;
            }
        }
    }

    pub(super) fn pin(&mut self, id: usize) {
        if let Some(node) = self.node_mut(id) {
            node.pins += 1;
        }
    }

    pub(super) fn unpin(&mut self, id: usize) {
        if let Some(node) = self.node_mut(id) {
            node.pins = node.pins.saturating_sub(1);
        }
        self.prune(id);
    }

    /// Puts a block below a node (or a root). One with the same tokens is filled where it is empty;
    /// a shorter one whose tokens are its beginning is replaced. Its place in the tree, and the file
    /// name of what was replaced.
    pub(super) fn insert(
        &mut self,
        parent: Option<usize>,
        fresh: Fresh,
        block: Option<Arc<Block>>,
        file: Option<usize>,
    ) -> (usize, Option<u128>) {
        let first = fresh.tokens[0];
        let siblings = match parent {
            Some(id) => self.node(id).and_then(|n| n.kids.get(&first)),
            None => self.roots.get(&fresh.scope).and_then(|r| r.get(&first)),
        };
        let found = siblings.into_iter().flatten().copied().find(|&id| {
            self.node(id).is_some_and(|n| {
                n.is_leaf() && fresh.tokens.starts_with(&n.tokens) || n.tokens == fresh.tokens
            })
        });
        let size = block.as_ref().map_or(0, |b| b.size());
        self.clock += 1;
        let (clock, age) = (self.clock, self.age);
        if let Some(id) = found {
            let mut replaced = None;
            let (mut freed, mut zombie, mut unlinked) = (0, None, 0);
            if let Some(node) = self.node_mut(id) {
                if node.tokens != fresh.tokens {
                    replaced = node.file.take().map(|bytes| {
                        unlinked = bytes;
                        node.name
                    });
                }
                if let Some(block) = block {
                    if let Some(old) = node.block.replace(block) {
                        freed = old.size();
                        zombie = (Arc::strong_count(&old) > 1).then(|| Arc::downgrade(&old));
                    }
                } else {
                    freed = 0;
                }
                node.tokens = fresh.tokens;
                node.name = fresh.name;
                node.seconds = fresh.seconds;
                node.last = clock;
                if let (None, Some(bytes)) = (node.file, file) {
                    node.file = Some(bytes);
                    unlinked = unlinked.wrapping_sub(bytes);
                }
            }
            self.zombies.extend(zombie);
            self.memory = self.memory + size - freed;
            self.disk = self.disk.wrapping_sub(unlinked);
            return (id, replaced);
        }
        let node = Node {
            parent,
            scope: fresh.scope,
            start: fresh.start,
            kids: HashMap::new(),
            block,
            file,
            name: fresh.name,
            pins: 0,
            last: clock,
            hits: 0,
            seconds: fresh.seconds,
            value: age,
            tokens: fresh.tokens,
        };
        let scope = node.scope;
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        self.memory += size;
        self.disk += file.unwrap_or(0);
        self.kids_of(parent, scope)
            .entry(first)
            .or_default()
            .push(id);
        (id, None)
    }

    fn kids_of(&mut self, parent: Option<usize>, scope: u64) -> &mut HashMap<Token, Vec<usize>> {
        match parent {
            Some(id) if self.node(id).is_some() => match self.nodes[id].as_mut() {
                Some(node) => &mut node.kids,
                None => self.roots.entry(scope).or_default(),
            },
            _ => self.roots.entry(scope).or_default(),
        }
    }

    /// Gives a node its block back, read from its file.
    pub(super) fn fill(&mut self, id: usize, block: &Arc<Block>) {
        let size = block.size();
        if let Some(node) = self.node_mut(id)
            && node.block.is_none()
        {
            node.block = Some(Arc::clone(block));
            self.memory += size;
        }
    }

    /// Notes a file that was written for a node, unless the node has changed since.
    pub(super) fn written(&mut self, id: usize, name: u128, bytes: usize) -> bool {
        let Some(node) = self.node_mut(id) else {
            return false;
        };
        if node.name != name || node.file.is_some() {
            return node.name == name;
        }
        node.file = Some(bytes);
        self.disk += bytes;
        true
    }

    /// Its file is no good or gone.
    pub(super) fn lose_file(&mut self, id: usize) {
        if let Some(bytes) = self.node_mut(id).and_then(|node| node.file.take()) {
            self.disk -= bytes;
        }
        self.prune(id);
    }

    /// Takes an empty leaf that nobody reads out of the tree, and its parents that become such.
    fn prune(&mut self, mut id: usize) {
        while let Some(node) = self.node(id) {
            let empty = node.block.is_none() && node.file.is_none();
            if !(empty && node.is_leaf() && node.pins == 0) {
                return;
            }
            let (parent, scope, first) = (node.parent, node.scope, node.tokens[0]);
            let kids = self.kids_of(parent, scope);
            if let Some(same) = kids.get_mut(&first) {
                same.retain(|kid| *kid != id);
                if same.is_empty() {
                    kids.remove(&first);
                }
            }
            self.nodes[id] = None;
            self.free.push(id);
            match parent {
                Some(parent) => id = parent,
                None => return,
            }
        }
    }

    /// Bytes of replaced blocks that somebody still reads.
    pub(super) fn zombie_bytes(&mut self) -> usize {
        self.zombies.retain(|z| z.strong_count() > 0);
        let held = self.zombies.iter().filter_map(Weak::upgrade);
        held.map(|block| block.size()).sum()
    }

    /// Gives up blocks until `more` bytes fit into `budget`; false when what is in use leaves no
    /// room. A block that has a file only leaves memory; one without leaves the tree, leaves first.
    pub(super) fn make_room(&mut self, more: usize, budget: usize, how: Eviction) -> bool {
        loop {
            let zombies = self.zombie_bytes();
            if self.memory + zombies + more <= budget {
                return true;
            }
            let victim = self
                .nodes()
                .filter(|(_, n)| n.block.is_some() && n.pins == 0)
                .filter(|(_, n)| n.file.is_some() || n.is_leaf())
                .min_by(|(_, a), (_, b)| {
                    let value = match how {
                        Eviction::LeastRecent => std::cmp::Ordering::Equal,
                        Eviction::CostAware => a.value.total_cmp(&b.value),
                    };
                    let by_use = a.last.cmp(&b.last).then(b.start.cmp(&a.start));
                    value.then(by_use)
                })
                .map(|(id, node)| (id, node.value));
            let Some((id, value)) = victim else {
                return false;
            };
            self.age = self.age.max(value);
            self.evicted += 1;
            if let Some(block) = self.node_mut(id).and_then(|node| node.block.take()) {
                self.memory -= block.size();
            }
            self.prune(id);
        }
    }

    /// The names of files to give up so that no more than `budget` bytes stay: leaves first, the
    /// longest unused first. Their nodes forget them.
    pub(super) fn trim_files(&mut self, budget: usize) -> Vec<u128> {
        let mut gone = Vec::new();
        while self.disk > budget {
            let below = |n: &Node| {
                let mut kids = n.kids.values().flatten();
                kids.any(|id| self.node(*id).is_some_and(|kid| kid.file.is_some()))
            };
            let victim = self
                .nodes()
                .filter(|(_, n)| n.file.is_some() && n.pins == 0 && !below(n))
                .min_by_key(|(_, n)| (n.last, std::cmp::Reverse(n.start)))
                .map(|(id, node)| (id, node.name));
            let Some((id, name)) = victim else { break };
            gone.push(name);
            self.lose_file(id);
        }
        gone
    }
}
