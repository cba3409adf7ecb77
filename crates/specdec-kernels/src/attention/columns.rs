//! Where the columns of one key/value head lie.

use core::ops::Range;

use super::{
    block::BLOCK,
    host_store::{HostStore, TILE},
};
use crate::vector::{Line, Vector};

/// One head's columns of one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) store: &'a HostStore,
    pub(super) table: &'a [u32],
    /// Places of the table before column 0.
    pub(super) padding: usize,
    pub(super) layer: usize,
    pub(super) head: usize,
}

impl<'a> Columns<'a> {
    /// Runs of the block that starts at `block`, each grown to whole tiles of its chunks, those that touch made one.
    pub(super) fn widened(self, runs: &[Range<usize>], block: usize) -> Vec<Range<usize>> {
        let chunk = self.store.shape().chunk;
        let first = |column: usize| {
            let place = self.padding + column;
            (place - place % chunk % TILE)
                .saturating_sub(self.padding)
                .max(block)
        };
        let end = |last: usize| {
            let place = self.padding + last;
            let tile = place - place % chunk % TILE + TILE;
            let chunk_end = place - place % chunk + chunk;
            (tile.min(chunk_end) - self.padding).min(block + BLOCK)
        };
        let mut wide: Vec<Range<usize>> = Vec::new();
        for run in runs {
            let run = first(run.start)..end(run.end - 1);
            match wide.last_mut() {
                Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                _ => wide.push(run),
            }
        }
        wide
    }

    /// Cuts a run of columns at the ends of chunks: for each piece its first column, its offset in the chunk, its
    /// length, and the chunk's keys and values.
    #[inline(always)]
    pub(super) fn pieces(self, run: Range<usize>) -> impl Iterator<Item = Piece<'a>> {
        let chunk = self.store.shape().chunk;
        let mut column = run.start;
        core::iter::from_fn(move || {
            if column >= run.end {
                return None;
            }
            let place = self.padding + column;
            let offset = place % chunk;
            let len = (chunk - offset).min(run.end - column);
            let (keys, values) = self
                .store
                .head(self.table[place / chunk], self.layer, self.head);
            let piece = Piece {
                column,
                offset,
                len,
                keys,
                values,
            };
            column += len;
            Some(piece)
        })
    }
}

/// Columns that lie side by side in one chunk.
pub(super) struct Piece<'a> {
    pub(super) column: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) keys: &'a [Line],
    pub(super) values: &'a [Line],
}

/// Lines that are read soon, asked for a few at a time while other work goes on: so the memory fetches one block while
/// the block before it is computed.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    spans: Vec<&'a [Line]>,
    next: core::slice::Iter<'a, Line>,
    /// Lines of work done and not yet matched by lines asked for.
    credit: usize,
    /// Lines of work for each line asked for.
    share: usize,
}

impl<'a> Ahead<'a> {
    /// The keys and values of `run`, one line for every `share` lines of work.
    pub(super) fn new(columns: Columns<'a>, run: Range<usize>, share: usize) -> Self {
        let shape = columns.store.shape();
        let mut spans = Vec::new();
        for piece in columns.pieces(run) {
            let (from, end) = (piece.offset, piece.offset + piece.len);
            let lines = columns.store.value_lines();
            let tiles = from / TILE * shape.head_dim..end.div_ceil(TILE) * shape.head_dim;
            spans.push(&piece.keys[tiles]);
            spans.push(&piece.values[from * lines..end * lines]);
        }
        spans.reverse();
        Self {
            spans,
            next: [].iter(),
            credit: 0,
            share: share.max(1),
        }
    }

    /// Nothing.
    pub(super) fn none() -> Self {
        Self {
            spans: Vec::new(),
            next: [].iter(),
            credit: 0,
            share: 1,
        }
    }

    /// Asks for what `work` lines of work have earned.
    #[inline(always)]
    pub(super) fn ask<V: Vector>(&mut self, v: V, work: usize) {
        self.credit += work;
        while self.credit >= self.share {
            self.credit -= self.share;
            match self.next.next() {
                Some(line) => v.prefetch(line),
                None => match self.spans.pop() {
                    Some(span) => self.next = span.iter(),
                    None => return,
                },
            }
        }
    }
}
