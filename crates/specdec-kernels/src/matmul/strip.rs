//! A weight cut into strips of 32 outputs, and the loop that multiplies one strip with a few rows.
//!
//! Within a strip the values lie input by input: the 32 weights of one input next to each other. So one input's weights
//! are two vectors, an activation is a scalar that multiplies both, and each output is a lane that adds its products
//! in the order of the inputs. No sum is ever split, which is what makes a row's result independent of all else.

use core::ops::Range;

use super::encoding::{Encoding, Pair, Visit};
use crate::vector::{Cell, Kernel, Vector, by_count, each};

/// Outputs of one strip.
pub(super) const STRIP: usize = 32;

/// Receives the weights of a strip, input by input: W vectors of sixteen outputs.
pub(super) trait Sink<V: Vector, const W: usize> {
    /// Must be `#[inline(always)]`.
    fn take(&mut self, v: V, weights: [V::F; W]);
}

/// Multiplies each input's weights with the input's value in M rows.
struct Multiply<'a, V: Vector, const M: usize, const W: usize> {
    x: core::slice::Iter<'a, [f32; M]>,
    sums: [[V::F; W]; M],
}

impl<V: Vector, const M: usize, const W: usize> Sink<V, W> for Multiply<'_, V, M, W> {
    #[inline(always)]
    fn take(&mut self, v: V, weights: [V::F; W]) {
        let Some(x) = self.x.next() else { return };
        add_products(v, weights, x, &mut self.sums);
    }
}

/// Adds the products of one input's weights with its value in M rows.
#[inline(always)]
pub(super) fn add_products<V: Vector, const M: usize, const W: usize>(
    v: V,
    weights: [V::F; W],
    x: &[f32; M],
    sums: &mut [[V::F; W]; M],
) {
    for (sums, &x) in sums.iter_mut().zip(x) {
        let x = v.splat(x);
        for (sum, &weight) in sums.iter_mut().zip(&weights) {
            *sum = v.fma(weight, x, *sum);
        }
    }
}

/// Writes the weights out as f32, in the same arrangement.
struct Expand<'a>(core::slice::IterMut<'a, Pair<f32>>);

impl<V: Vector> Sink<V, 2> for Expand<'_> {
    #[inline(always)]
    fn take(&mut self, v: V, weights: [V::F; 2]) {
        let Some(pair) = self.0.next() else { return };
        for (half, &weight) in pair.0.iter_mut().zip(&weights) {
            v.store(weight, half);
        }
    }
}

/// Writes strip `strip` of a weight to `out`, one pair of lines for each input.
pub(super) struct ExpandStrip<'a> {
    pub(super) encoding: &'a Encoding,
    pub(super) strip: usize,
    pub(super) out: &'a mut [Pair<f32>],
}

impl Kernel for ExpandStrip<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let inputs = self.out.len();
        let mut sink = Expand(self.out.iter_mut());
        let visit = Visit::new(v, (self.strip, 0), inputs);
        self.encoding.visit(visit, &mut sink);
    }
}

/// Activations in groups of rows whose sums fit the registers, each group input by input: `[K][M]` values.
#[derive(Debug)]
pub(super) struct FloatRows {
    values: Vec<f32>,
    /// Rows of each group.
    groups: Vec<usize>,
    inputs: usize,
}

impl FloatRows {
    /// Arranges `x [T, K]` in groups of at most `most` rows, as even as can be.
    pub(super) fn new(x: &[f32], inputs: usize, most: usize) -> Self {
        let groups = even_groups(x.len() / inputs, most);
        let mut values = vec![0.0; x.len()];
        let mut done = 0;
        for &group in &groups {
            let part = &mut values[done * inputs..][..group * inputs];
            for (m, row) in x[done * inputs..]
                .chunks_exact(inputs)
                .take(group)
                .enumerate()
            {
                for (value, &x) in part[m..].iter_mut().step_by(group).zip(row) {
                    *value = x;
                }
            }
            done += group;
        }
        Self {
            values,
            groups,
            inputs,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.groups.iter().sum()
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Rows of each group.
    pub(super) fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// The values of some inputs of the group of M rows that starts with row `first`.
    #[inline(always)]
    pub(super) fn part<const M: usize>(&self, first: usize, inputs: Range<usize>) -> &[[f32; M]] {
        let group = &self.values[first * self.inputs..][..M * self.inputs];
        &group.as_chunks::<M>().0[inputs]
    }
}

/// `rows` in groups of at most `most`, as even as can be.
pub(super) fn even_groups(rows: usize, most: usize) -> Vec<usize> {
    let count = rows.div_ceil(most);
    (0..count)
        .map(|i| rows / count + usize::from(i < rows % count))
        .collect()
}

/// Writes M rows of sums to the rows of a cell from `row` and its columns from `column`, as far as it has columns.
#[inline(always)]
pub(super) fn write<V: Vector, const M: usize, const W: usize>(
    v: V,
    cell: &mut Cell<'_>,
    sums: &[[V::F; W]; M],
    (row, column): (usize, usize),
) {
    for (m, sums) in sums.iter().enumerate() {
        let out = cell.row(row + m);
        for (i, &sum) in sums.iter().enumerate() {
            let Some(out) = out.get_mut(column + 16 * i..) else {
                continue;
            };
            if let Some(out) = out.first_chunk_mut::<16>() {
                v.store(sum, out);
            } else {
                let mut lanes = [0.0; 16];
                v.store(sum, &mut lanes);
                let len = out.len();
                out.copy_from_slice(&lanes[..len]);
            }
        }
    }
}

/// Multiplies all rows with the strips of one cell of the result.
pub(super) struct MultiplyStrips<'a> {
    pub(super) encoding: &'a Encoding,
    pub(super) x: &'a FloatRows,
    /// The first strip of the cell.
    pub(super) strip: usize,
    pub(super) cell: Cell<'a>,
    /// Room for one strip in f32, filled once where there is more than one group of rows; empty where the weights are
    /// decoded for each group.
    pub(super) scratch: &'a mut [Pair<f32>],
}

impl Kernel for MultiplyStrips<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(mut self, v: V) {
        let inputs = self.x.inputs;
        let mut at = 0;
        // One row has too few sums for the units to work on while one waits: then two strips at a time.
        if self.x.groups == [1] && V::STRIPS == 2 && self.scratch.is_empty() {
            while at + 2 * STRIP <= self.cell.width() {
                let x = self.x.values.as_chunks::<1>().0;
                let sums = self.sums::<V, 1, 4>(v, (self.strip + at / STRIP, 0), x);
                write(v, &mut self.cell, &sums, (0, at));
                at += 2 * STRIP;
            }
        }
        for at in (at..self.cell.width()).step_by(STRIP) {
            let strip = self.strip + at / STRIP;
            if !self.scratch.is_empty() {
                let visit = Visit::new(v, (strip, 0), inputs);
                self.encoding
                    .visit(visit, &mut Expand(self.scratch.iter_mut()));
            }
            let x = self.x;
            let mut row = 0;
            for &group in &x.groups {
                by_count!(8, group, |M| self.group::<V, M>(
                    v,
                    strip,
                    x.part(row, 0..inputs),
                    (row, at)
                ));
                row += group;
            }
        }
    }
}

impl MultiplyStrips<'_> {
    /// One group of M rows, written to the cell's rows from `to.0` and columns from `to.1`.
    #[inline(always)]
    fn group<V: Vector, const M: usize>(
        &mut self,
        v: V,
        strip: usize,
        x: &[[f32; M]],
        to: (usize, usize),
    ) {
        // Groups are never larger than V::ROWS; the bound keeps the code for larger M out of the narrower sets.
        if M > V::ROWS {
            return;
        }
        if V::STRIPS == 2 {
            let sums = self.sums::<V, M, 2>(v, (strip, 0), x);
            write(v, &mut self.cell, &sums, to);
        } else {
            for half in 0..2 {
                let sums = self.sums::<V, M, 1>(v, (strip, half), x);
                write(v, &mut self.cell, &sums, (to.0, to.1 + 16 * half));
            }
        }
    }

    #[inline(always)]
    fn sums<V: Vector, const M: usize, const W: usize>(
        &self,
        v: V,
        (strip, half): (usize, usize),
        x: &[[f32; M]],
    ) -> [[V::F; W]; M] {
        let mut sink = Multiply::<V, M, W> {
            x: x.iter(),
            sums: [[v.splat(0.0); W]; M],
        };
        if self.scratch.is_empty() {
            let visit = Visit::new(v, (strip, half), self.x.inputs);
            self.encoding.visit(visit, &mut sink);
        } else {
            for pair in &*self.scratch {
                let weights = each!(v.splat(0.0); W, |i| v.load(&pair.0[half + i % 2]));
                sink.take(v, weights);
            }
        }
        sink.sums
    }
}
