//! Many byte strings, searched at once (Aho and Corasick, 1975), one byte at a time.
//!
//! The depth of the state is the length of the longest suffix read so far that begins a pattern;
//! that is exactly what a stop matcher must hold back.

/// A state of an [`Automaton`]; plain data, so that a search can be stopped, copied and resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State(u32);

#[derive(Debug, Clone, Default)]
struct Node {
    /// Sorted by byte.
    children: Vec<(u8, u32)>,
    /// The node of the longest proper suffix that is in the trie.
    fail: u32,
    depth: u32,
    /// The pattern that ends here.
    pattern: Option<u32>,
    /// The nearest node on the way of `fail` that ends a pattern; 0 for none.
    output: u32,
}

/// The compiled patterns.
#[derive(Debug, Clone)]
pub(crate) struct Automaton {
    nodes: Vec<Node>,
    /// The root's children, by byte; 0 for none.
    first: Box<[u32; 256]>,
}

impl Automaton {
    /// Compiles the patterns; empty ones never match, and of equal ones the first is reported.
    pub(crate) fn new<'a>(patterns: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut nodes = vec![Node::default()];
        for (index, pattern) in (0u32..).zip(patterns) {
            let mut at = 0;
            for &byte in pattern {
                let found = nodes[at]
                    .children
                    .binary_search_by_key(&byte, |&(byte, _)| byte);
                at = match found {
                    Ok(place) => nodes[at].children[place].1 as usize,
                    Err(place) => {
                        let new = nodes.len();
                        let depth = nodes[at].depth + 1;
                        nodes[at].children.insert(place, (byte, new as u32));
                        nodes.push(Node {
                            depth,
                            ..Node::default()
                        });
                        new
                    }
                };
            }
            if at != 0 && nodes[at].pattern.is_none() {
                nodes[at].pattern = Some(index);
            }
        }
        let mut first = Box::new([0u32; 256]);
        for &(byte, node) in &nodes[0].children {
            first[usize::from(byte)] = node;
        }
        let mut automaton = Self { nodes, first };
        automaton.link();
        automaton
    }

    /// Sets the failure and output links, breadth first.
    fn link(&mut self) {
        let mut queue: std::collections::VecDeque<usize> = self.nodes[0]
            .children
            .iter()
            .map(|&(_, node)| node as usize)
            .collect();
        while let Some(at) = queue.pop_front() {
            let fail = self.nodes[at].fail as usize;
            self.nodes[at].output = if self.nodes[fail].pattern.is_some() {
                fail as u32
            } else {
                self.nodes[fail].output
            };
            for place in 0..self.nodes[at].children.len() {
                let (byte, child) = self.nodes[at].children[place];
                self.nodes[child as usize].fail = self.step(State(fail as u32), byte).0;
                queue.push_back(child as usize);
            }
        }
    }

    /// The state after one more byte.
    pub(crate) fn step(&self, state: State, byte: u8) -> State {
        let mut at = state.0 as usize;
        while at != 0 {
            let node = &self.nodes[at];
            if let Ok(place) = node.children.binary_search_by_key(&byte, |&(byte, _)| byte) {
                return State(node.children[place].1);
            }
            at = node.fail as usize;
        }
        State(self.first[usize::from(byte)])
    }

    /// How many of the bytes read last could still become a pattern, or are one.
    pub(crate) fn depth(&self, state: State) -> usize {
        self.nodes[state.0 as usize].depth as usize
    }

    /// The patterns that end at this state, longest first: (pattern, its length).
    pub(crate) fn matches(&self, state: State) -> impl Iterator<Item = (usize, usize)> + '_ {
        let here = state.0;
        let start = if self.nodes[here as usize].pattern.is_some() {
            here
        } else {
            self.nodes[here as usize].output
        };
        std::iter::successors((start != 0).then_some(start), |&at| {
            let next = self.nodes[at as usize].output;
            (next != 0).then_some(next)
        })
        .filter_map(|at| {
            let node = &self.nodes[at as usize];
            node.pattern
                .map(|pattern| (pattern as usize, node.depth as usize))
        })
    }
}
