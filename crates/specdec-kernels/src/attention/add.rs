//! Weighted values of one block of columns, and joining them to those of the blocks before.

use core::ops::Range;

use super::{
    block::{STEP, Scores},
    columns::{Ahead, Columns},
};
use crate::vector::{Kernel, Line, Vector, by_count, each, exp};

/// Columns whose values are added for all batches before the next ones.
const ADDED: usize = 32;

/// Adds the weighted values of some columns to the outputs of queries that all see them.
pub(super) struct Add<'a, 'm> {
    pub(super) columns: Columns<'a>,
    /// Runs within the block that starts at `block`.
    pub(super) runs: &'a [Range<usize>],
    pub(super) block: usize,
    /// Queries that are taken together, at most [`QUERIES`](super::block::QUERIES).
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
            by_count!(
                6,
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
