//! Attention of a few queries over one block of columns of one key/value head.

use core::ops::Range;

use super::host_store::{HostStore, TILE};
use crate::vector::{Kernel, Line, Vector, each, exp, greatest, sum};

/// Columns of a block. Softmax is taken block by block, and the blocks joined in order; which block a column belongs
/// to depends on its number only.
pub(super) const BLOCK: usize = 256;

/// Dimensions, or columns, computed between two looks at [`Ahead`].
const STEP: usize = 8;

/// Queries scored together.
pub(super) const QUERIES: usize = 6;

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
    fn widened(self, runs: &[Range<usize>], block: usize) -> Vec<Range<usize>> {
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
    fn pieces(self, run: Range<usize>) -> impl Iterator<Item = Piece<'a>> {
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

struct Piece<'a> {
    column: usize,
    offset: usize,
    len: usize,
    keys: &'a [Line],
    values: &'a [Line],
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
    fn ask<V: Vector>(&mut self, v: V, work: usize) {
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

/// What some queries have gathered: for each, softmax over the columns seen so far, not yet divided by its sum.
#[derive(Debug, Clone)]
pub(super) struct Gathering {
    /// The greatest score and the sum of `exp(score - greatest)`.
    pub(super) folds: Vec<(f32, f32)>,
    /// The same sum over the values, some lines for each query.
    pub(super) out: Vec<Line>,
    /// Weights of the queries that were asked for, block by block.
    pub(super) kept: Vec<Kept>,
}

/// The weights of one query in one block, as the block by itself has them.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) query: usize,
    pub(super) block: usize,
    /// What the query sees of the block.
    pub(super) runs: Vec<Range<usize>>,
    /// The greatest score in it.
    pub(super) most: f32,
    pub(super) weights: Box<Scores>,
}

impl Gathering {
    pub(super) fn new(queries: usize, lines: usize) -> Self {
        Self {
            folds: vec![(f32::NEG_INFINITY, 0.0); queries],
            out: vec![Line::ZERO; queries * lines],
            kept: Vec::new(),
        }
    }
}

/// Up to [`QUERIES`] queries that are scored together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) queries: usize,
    /// `[D][queries]`.
    pub(super) q: Vec<f32>,
}

/// The scores of one query in a block, then its weights.
pub(super) type Scores = [f32; BLOCK];

/// Calls `$call` with the number of queries of a batch as a constant.
macro_rules! by_queries {
    ($queries:expr, |$m:ident| $call:expr) => {
        match $queries {
            1 => by_queries!(@ 1, $m, $call),
            2 => by_queries!(@ 2, $m, $call),
            3 => by_queries!(@ 3, $m, $call),
            4 => by_queries!(@ 4, $m, $call),
            5 => by_queries!(@ 5, $m, $call),
            _ => by_queries!(@ 6, $m, $call),
        }
    };
    (@ $n:literal, $m:ident, $call:expr) => {{
        const $m: usize = $n;
        $call
    }};
}

/// Scores batches of queries against columns of a block: each tile once for each batch, whichever of its columns are
/// seen, and all batches before the next tiles, which then are in the nearest cache.
pub(super) struct Score<'a, 'm> {
    pub(super) columns: Columns<'a>,
    /// Ascending runs within the block that starts at `block`.
    pub(super) runs: &'a [Range<usize>],
    pub(super) block: usize,
    pub(super) batches: &'a [Batch],
    pub(super) scale: f32,
    /// One for each query of the batches, place `column - block`.
    pub(super) scores: &'a mut [Scores],
    pub(super) ahead: &'a mut Ahead<'m>,
}

impl Kernel for Score<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(mut self, v: V) {
        // Whole tiles are scored, each once: what is not seen of them is hidden later.
        let wide = (self.runs.len() > 1).then(|| self.columns.widened(self.runs, self.block));
        let runs = wide.as_deref().unwrap_or(self.runs);
        for run in runs {
            for piece in self.columns.pieces(run.clone()) {
                let end = (piece.offset + piece.len).div_ceil(TILE);
                let mut tile = piece.offset / TILE;
                // Two tiles at a time where the registers allow: more sums to work on while one waits.
                while V::STRIPS == 2 && tile + 2 <= end {
                    self.score::<V, 2>(v, &piece, tile);
                    tile += 2;
                }
                for tile in tile..end {
                    self.score::<V, 1>(v, &piece, tile);
                }
            }
        }
    }
}

impl Score<'_, '_> {
    #[inline(always)]
    fn score<V: Vector, const N: usize>(&mut self, v: V, piece: &Piece<'_>, tile: usize) {
        let mut first = 0;
        for batch in self.batches {
            let queries = first..first + batch.queries;
            first = queries.end;
            by_queries!(batch.queries, |M| self.tiles::<V, M, N>(
                v,
                (&batch.q, queries),
                (piece, tile)
            ));
        }
    }

    #[inline(always)]
    fn tiles<V: Vector, const M: usize, const N: usize>(
        &mut self,
        v: V,
        (q, queries): (&[f32], Range<usize>),
        (piece, first): (&Piece<'_>, usize),
    ) {
        let (q, dim) = (q.as_chunks::<M>().0, q.len() / M);
        let mut sums = [[v.splat(0.0); M]; N];
        let keys = &piece.keys[first * dim..][..N * dim];
        let tiles = each!(&keys[..dim]; N, |n| &keys[n * dim..][..dim]);
        for d in (0..dim).step_by(STEP) {
            let end = dim.min(d + STEP);
            if let Some(q) = q[d..end].first_chunk::<STEP>() {
                // The same with a constant length, which leaves no loop.
                let lines = each!(&tiles[0][d..end]; N, |n| &tiles[n][d..end]);
                multiply(v, q, lines, &mut sums);
            } else {
                let lines = each!(&tiles[0][d..end]; N, |n| &tiles[n][d..end]);
                multiply(v, &q[d..end], lines, &mut sums);
            }
            self.ahead.ask(v, (end - d) * N);
        }
        let scale = v.splat(self.scale);
        let scores = &mut self.scores[queries];
        for (tile, sums) in (first..).zip(&sums) {
            // The part of the tile that belongs to the piece.
            let from = piece.offset.max(tile * TILE);
            let to = (piece.offset + piece.len).min(tile * TILE + TILE);
            let at = piece.column + from - piece.offset - self.block;
            for (sum, scores) in sums.iter().zip(scores.iter_mut()) {
                let sum = v.mul(*sum, scale);
                let scores = &mut scores[at..][..to - from];
                if let Some(scores) = scores.first_chunk_mut::<TILE>() {
                    v.store(sum, scores);
                } else {
                    let mut lanes = [0.0; TILE];
                    v.store(sum, &mut lanes);
                    let lane = from - tile * TILE;
                    scores.copy_from_slice(&lanes[lane..][..to - from]);
                }
            }
        }
    }
}

/// Adds the products of some dimensions: of M queries and the columns of N tiles.
#[inline(always)]
fn multiply<V: Vector, const M: usize, const N: usize>(
    v: V,
    q: &[[f32; M]],
    tiles: [&[Line]; N],
    sums: &mut [[V::F; M]; N],
) {
    for (d, q) in q.iter().enumerate() {
        for (sums, tile) in sums.iter_mut().zip(tiles) {
            let keys = v.load(&tile[d].0);
            for (sum, &q) in sums.iter_mut().zip(q) {
                *sum = v.fma(keys, v.splat(q), *sum);
            }
        }
    }
}

/// Turns the scores of one query into weights: hides what it does not see, then takes `exp(score - max)`. Returns the
/// greatest score and the sum of the weights.
pub(super) struct Weigh<'a> {
    /// Ascending runs the query sees, within the block that starts at `block`.
    pub(super) runs: &'a [Range<usize>],
    pub(super) block: usize,
    pub(super) scores: &'a mut Scores,
}

impl Kernel for Weigh<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> (f32, f32) {
        let Self {
            runs,
            block,
            scores,
        } = self;
        let mut end = 0;
        for run in runs {
            scores[end..run.start - block].fill(f32::NEG_INFINITY);
            end = run.end - block;
        }
        scores[end..].fill(f32::NEG_INFINITY);
        let used = end.div_ceil(16);
        let lanes = &mut scores.as_chunks_mut::<16>().0[..used];
        let mut most = v.splat(f32::NEG_INFINITY);
        for lanes in &*lanes {
            most = v.max(v.load(lanes), most);
        }
        let max = greatest(v, most);
        let shift = v.splat(max);
        let mut total = v.splat(0.0);
        for lanes in lanes {
            let weights = exp(v, v.sub(v.load(lanes), shift));
            total = v.add(total, weights);
            v.store(weights, lanes);
        }
        (max, sum(v, total))
    }
}

/// Columns whose values are added for all batches before the next ones.
const ADDED: usize = 32;

/// Adds the weighted values of some columns to the outputs of queries that all see them.
pub(super) struct Add<'a, 'm> {
    pub(super) columns: Columns<'a>,
    /// Runs within the block that starts at `block`.
    pub(super) runs: &'a [Range<usize>],
    pub(super) block: usize,
    /// Queries that are taken together, at most [`QUERIES`].
    pub(super) most: usize,
    pub(super) weights: &'a [Scores],
    /// `[queries][D / 16]`.
    pub(super) out: &'a mut [Line],
    pub(super) ahead: &'a mut Ahead<'m>,
}

impl Kernel for Add<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(mut self, v: V) {
        let lines = self.out.len() / self.weights.len();
        for run in self.runs {
            for piece in self.columns.pieces(run.clone()) {
                let values = &piece.values[piece.offset * lines..][..piece.len * lines];
                let parts = values.chunks(ADDED * lines);
                for (part, values) in parts.enumerate() {
                    let at = piece.column - self.block + part * ADDED;
                    self.add(v, at, values);
                }
            }
        }
    }
}

impl Add<'_, '_> {
    /// Some columns, of which the first has place `at` in the block. As many lines at a time as fit the registers.
    #[inline(always)]
    fn add<V: Vector>(&mut self, v: V, at: usize, values: &[Line]) {
        let lines = self.out.len() / self.weights.len();
        let batches = self.weights.chunks(self.most);
        for (weights, out) in batches.zip(self.out.chunks_mut(self.most * lines)) {
            let ahead = &mut *self.ahead;
            by_queries!(
                weights.len(),
                |M| if let Some(weights) = weights.first_chunk::<M>() {
                    let mut line = 0;
                    while V::STRIPS == 2 && line + 4 <= lines {
                        add_lines::<V, M, 4>(v, (weights, at), (values, line), out, ahead);
                        line += 4;
                    }
                    for line in line..lines {
                        add_lines::<V, M, 1>(v, (weights, at), (values, line), out, ahead);
                    }
                }
            );
        }
    }
}

/// `L` lines of the outputs of `M` queries, from `first` on.
#[inline(always)]
fn add_lines<V: Vector, const M: usize, const L: usize>(
    v: V,
    (weights, at): (&[Scores; M], usize),
    (values, first): (&[Line], usize),
    out: &mut [Line],
    ahead: &mut Ahead<'_>,
) {
    let lines = out.len() / M;
    let mut sums = each!([v.splat(0.0); L]; M, |m| {
        each!(v.splat(0.0); L, |l| v.load(&out[m * lines + first + l].0))
    });
    for (step, values) in values.chunks(STEP * lines).enumerate() {
        let columns = values.len() / lines;
        let at = at + step * STEP;
        let own = each!(&weights[0][at..at + columns]; M, |m| &weights[m][at..at + columns]);
        if columns == STEP {
            let own = each!(&own[0][..STEP]; M, |m| &own[m][..STEP]);
            add_columns(v, own, (&values[..STEP * lines], lines, first), &mut sums);
        } else {
            add_columns(v, own, (values, lines, first), &mut sums);
        }
        ahead.ask(v, columns * L);
    }
    for (m, sums) in sums.iter().enumerate() {
        for (l, &sum) in sums.iter().enumerate() {
            v.store(sum, &mut out[m * lines + first + l].0);
        }
    }
}

/// Adds the values of some columns, one after the other, to L lines of M queries' outputs.
#[inline(always)]
fn add_columns<V: Vector, const M: usize, const L: usize>(
    v: V,
    weights: [&[f32]; M],
    (values, lines, first): (&[Line], usize, usize),
    sums: &mut [[V::F; L]; M],
) {
    for (index, values) in values.chunks_exact(lines).enumerate() {
        let values = &values[first..first + L];
        let values = each!(v.splat(0.0); L, |l| v.load(&values[l].0));
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = v.splat(weights[index]);
            for (sum, &value) in sums.iter_mut().zip(&values) {
                *sum = v.fma(value, weight, *sum);
            }
        }
    }
}

/// Joins what a later block gave to what the earlier ones did.
pub(super) struct Join<'a> {
    /// Greatest score and sum so far.
    pub(super) into: &'a mut (f32, f32),
    pub(super) into_out: &'a mut [Line],
    /// Greatest score and sum of the block.
    pub(super) fold: (f32, f32),
    pub(super) out: &'a [Line],
}

impl Kernel for Join<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Self {
            into,
            into_out,
            fold,
            out,
        } = self;
        if fold.0 == f32::NEG_INFINITY {
            return;
        }
        let new = if fold.0 > into.0 { fold.0 } else { into.0 };
        let mut shifts = [0.0; 16];
        (shifts[0], shifts[1]) = (into.0 - new, fold.0 - new);
        let shifted = exp(v, v.load(&shifts));
        v.store(shifted, &mut shifts);
        let [old, this] = [shifts[0], shifts[1]];
        *into = (new, into.1 * old + fold.1 * this);
        let (old, this) = (v.splat(old), v.splat(this));
        for (into, out) in into_out.iter_mut().zip(out) {
            let joined = v.fma(v.load(&into.0), old, v.mul(v.load(&out.0), this));
            v.store(joined, &mut into.0);
        }
    }
}
