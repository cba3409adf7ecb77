//! Products of a few groups of rows with f32 weights: a strip is taken in panels of inputs that stay in the nearest
//! cache while all groups are multiplied with them, and meanwhile the next panel is asked for.
//!
//! Sums wait in memory from one panel to the next. Each still adds its products in the order of the inputs, so that its
//! bits are those of [`MultiplyStrips`](super::strip::MultiplyStrips).

use super::{
    encoding::Pair,
    strip::{FloatRows, STRIP, add_products},
};
use crate::vector::{Cell, Kernel, Vector, by_count, each};

/// Inputs of a panel, 16 KiB.
const PANEL: usize = 128;

/// Most rows: beyond, products take so long that memory does not matter, and keeping sums costs more than it gains.
pub(super) const MOST_ROWS: usize = 64;

/// Inputs multiplied between two looks at what comes next.
const STEP: usize = 8;

/// Multiplies all groups of rows with the strips of one cell of the result.
pub(super) struct MultiplyPanels<'a> {
    pub(super) weights: &'a [Pair<f32>],
    pub(super) x: &'a FloatRows,
    /// The first strip of the cell.
    pub(super) strip: usize,
    pub(super) cell: Cell<'a>,
    /// Room for the sums of all rows.
    pub(super) sums: &'a mut [Pair<f32>],
}

impl Kernel for MultiplyPanels<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(mut self, v: V) {
        for at in (0..self.cell.width()).step_by(STRIP) {
            self.sums.fill(Pair::ZERO);
            for from in (0..self.x.inputs()).step_by(PANEL) {
                self.panel(v, self.strip + at / STRIP, from);
            }
            for (row, sums) in self.sums.iter().enumerate() {
                let out = self.cell.row(row)[at..].chunks_mut(16);
                for (out, sums) in out.zip(&sums.0) {
                    let lanes = out.len();
                    out.copy_from_slice(&sums[..lanes]);
                }
            }
        }
    }
}

impl MultiplyPanels<'_> {
    /// Adds what all groups make of the inputs from `from` on.
    #[inline(always)]
    fn panel<V: Vector>(&mut self, v: V, strip: usize, from: usize) {
        let inputs = self.x.inputs();
        let many = PANEL.min(inputs - from);
        let (weights, after) = self.weights[strip * inputs + from..].split_at(many);
        let next = &after[..after.len().min(PANEL)];
        let groups = self.x.groups();
        let mut first = 0;
        for (number, &group) in groups.iter().enumerate() {
            let share = |number| number * next.len() / groups.len();
            let next = &next[share(number)..share(number + 1)];
            by_count!(8, group, |M| if M <= V::ROWS {
                let x = self.x.part::<M>(first, from..from + many);
                add::<V, M>(v, (weights, x), &mut self.sums[first..first + M], next);
            });
            first += group;
        }
    }
}

/// Adds the products of some inputs' weights with M rows, and asks for what is `next`.
#[inline(always)]
fn add<V: Vector, const M: usize>(
    v: V,
    (weights, x): (&[Pair<f32>], &[[f32; M]]),
    sums: &mut [Pair<f32>],
    next: &[Pair<f32>],
) {
    if V::STRIPS == 2 {
        add_lines::<V, M, 2>(v, (weights, x, 0), sums, next);
    } else {
        add_lines::<V, M, 1>(v, (weights, x, 0), sums, next);
        add_lines::<V, M, 1>(v, (weights, x, 1), sums, &[]);
    }
}

/// The same for W lines of the outputs, from `half` on.
#[inline(always)]
fn add_lines<V: Vector, const M: usize, const W: usize>(
    v: V,
    (weights, x, half): (&[Pair<f32>], &[[f32; M]], usize),
    sums: &mut [Pair<f32>],
    next: &[Pair<f32>],
) {
    let Some(sums) = sums.first_chunk_mut::<M>() else {
        return;
    };
    let mut acc = each!([v.splat(0.0); W]; M, |m| {
        each!(v.splat(0.0); W, |i| v.load(&sums[m].0[half + i]))
    });
    let steps = x.len().div_ceil(STEP);
    let mut next = next.chunks(next.len().div_ceil(steps).max(1));
    for (weights, x) in weights.chunks(STEP).zip(x.chunks(STEP)) {
        for pair in next.next().unwrap_or_default() {
            v.prefetch(&pair.0[0]);
            v.prefetch(&pair.0[1]);
        }
        if let (Some(weights), Some(x)) = (weights.first_chunk::<STEP>(), x.first_chunk::<STEP>()) {
            // The same with a constant length, which leaves no loop.
            multiply(v, (weights, x, half), &mut acc);
        } else {
            multiply(v, (weights, x, half), &mut acc);
        }
    }
    for (sums, acc) in sums.iter_mut().zip(&acc) {
        for (i, &sum) in acc.iter().enumerate() {
            v.store(sum, &mut sums.0[half + i]);
        }
    }
}

#[inline(always)]
fn multiply<V: Vector, const M: usize, const W: usize>(
    v: V,
    (weights, x, half): (&[Pair<f32>], &[[f32; M]], usize),
    acc: &mut [[V::F; W]; M],
) {
    for (pair, x) in weights.iter().zip(x) {
        let weights = each!(v.splat(0.0); W, |i| v.load(&pair.0[half + i]));
        add_products(v, weights, x, acc);
    }
}
