//! Scores of a few queries over one block of columns, and the weights they turn into.

use core::ops::Range;

use super::{
    block::{STEP, Scores},
    columns::{Ahead, Columns, Piece},
    host_store::TILE,
};
use crate::vector::{Kernel, Line, Vector, by_count, each, exp, greatest, sum};

/// Up to [`QUERIES`](super::block::QUERIES) queries that are scored together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) queries: usize,
    /// `[D][queries]`.
    pub(super) q: Vec<f32>,
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
            by_count!(6, batch.queries, |M| self.tiles::<V, M, N>(
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
