//! Products of quantised weights with activations rounded to bytes: see [`crate::Activations::Int8`].

use std::sync::OnceLock;

use super::{
    encoding::{Encoding, Visit},
    strip::{STRIP, even_groups, write},
};
use crate::{
    threads::for_each,
    vector::{Cell, Dot, DotKernel, Kernel, Level, Vector, by_count, greatest, run_at, sum},
};

/// What a weight asks of the activations.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntLayout {
    /// Inputs that share a scale.
    pub(super) group: usize,
    /// Whether a word of the weight holds eight quants of four bits, or four of eight.
    pub(super) nibbles: bool,
}

/// Greatest quantised magnitude.
const MOST: f32 = 127.0;

/// Added to a float, leaves no bits below one: it is rounded to the nearest whole number, halves to even.
const SHIFT: f32 = 1.5 * (1 << 23) as f32;

/// Rows of bytes, in groups of rows whose sums fit the registers.
#[derive(Debug)]
pub(super) struct IntRows {
    groups: Vec<Quantised>,
    inputs: usize,
}

/// One group of rows, as many as `rows`.
#[derive(Debug)]
struct Quantised {
    rows: usize,
    /// Four bytes each, `[K / 4][rows]`. Where the weight holds nibbles, the words of eight inputs are the even ones, then
    /// the odd ones, as masking and shifting the weight brings them up.
    words: Vec<u32>,
    /// What a quant of one stands for, `[K / group][rows]`; NaN where a value is not finite, and so is the result.
    steps: Vec<f32>,
    /// Sums of the quants, `[K / group][rows]`.
    totals: Vec<i32>,
}

/// The same, of M rows.
pub(super) struct IntGroup<'a, const M: usize> {
    pub(super) words: &'a [[u32; M]],
    pub(super) steps: &'a [[f32; M]],
    pub(super) totals: &'a [[i32; M]],
}

impl IntRows {
    /// Quantises `x [T, K]`, in groups of at most `most` rows.
    pub(super) fn new(
        level: Level,
        x: &[f32],
        inputs: usize,
        layout: IntLayout,
        most: usize,
    ) -> Self {
        let mut parts = Vec::new();
        let mut first = 0;
        for rows in even_groups(x.len() / inputs, most) {
            parts.push(&x[first * inputs..][..rows * inputs]);
            first += rows;
        }
        let cells: Vec<_> = parts.iter().map(|_| OnceLock::new()).collect();
        for_each(parts.len(), |number| {
            let quantise = Quantise {
                x: parts[number],
                inputs,
                layout,
            };
            // Each part is quantised once, so its cell is free.
            let _ = cells[number].set(run_at(level, quantise));
        });
        let groups = cells.into_iter().filter_map(OnceLock::into_inner);
        Self {
            groups: groups.collect(),
            inputs,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows).sum()
    }
}

impl Quantised {
    #[inline(always)]
    fn group<const M: usize>(&self) -> IntGroup<'_, M> {
        IntGroup {
            words: self.words.as_chunks().0,
            steps: self.steps.as_chunks().0,
            totals: self.totals.as_chunks().0,
        }
    }
}

/// Rounds some rows to bytes.
struct Quantise<'a> {
    /// `[rows, K]`.
    x: &'a [f32],
    inputs: usize,
    layout: IntLayout,
}

impl Kernel for Quantise<'_> {
    type Output = Quantised;
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> Quantised {
        let Self { x, inputs, layout } = self;
        let IntLayout { group, nibbles } = layout;
        let rows = x.len() / inputs;
        let mut all = Quantised {
            rows,
            words: vec![0; rows * inputs / 4],
            steps: vec![0.0; rows * inputs / group],
            totals: vec![0; rows * inputs / group],
        };
        let mut quants = [[0.0; 16]; MOST_IN_GROUP / 16];
        for (m, row) in x.chunks_exact(inputs).enumerate() {
            let finite = flaw(v, row.as_chunks().0) == 0.0;
            for (index, values) in row.chunks_exact(group).enumerate() {
                let at = index * rows + m;
                let values = values.as_chunks().0;
                (all.steps[at], all.totals[at]) = quantise(v, values, &mut quants);
                if !finite {
                    all.steps[at] += flaw(v, values);
                }
                let bytes = quants.as_flattened();
                let words = all.words[index * group / 4 * rows + m..].iter_mut();
                for (at, word) in words.step_by(rows).take(group / 4).enumerate() {
                    let (first, step) = match nibbles {
                        true => (at / 2 * 8 + at % 2, 2),
                        false => (4 * at, 1),
                    };
                    // The low byte of a shifted quant is the quant.
                    let byte = |i: usize| bytes[first + i * step].to_bits() & 0xff;
                    *word = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
                }
            }
        }
        all
    }
}

/// Most inputs that share a scale.
const MOST_IN_GROUP: usize = 32;

/// Zero, or NaN if a value is not finite.
#[inline(always)]
fn flaw<V: Vector>(v: V, values: &[[f32; 16]]) -> f32 {
    let mut flaw = v.splat(0.0);
    for lanes in values {
        let x = v.load(lanes);
        flaw = v.add(flaw, v.sub(x, x));
    }
    sum(v, flaw)
}

/// Rounds values to multiples of the step it returns, beside the sum of the quants. The quants come as floats, with
/// [`SHIFT`] added. Where a value is not finite, step and quants are of no use.
#[inline(always)]
fn quantise<V: Vector>(v: V, values: &[[f32; 16]], quants: &mut [[f32; 16]]) -> (f32, i32) {
    let mut most = v.splat(0.0);
    for lanes in values {
        let x = v.load(lanes);
        most = v.max(v.max(x, v.sub(v.splat(0.0), x)), most);
    }
    let most = greatest(v, most);
    let step = most / MOST;
    let inverse = v.splat(if step > 0.0 { MOST / most } else { 0.0 });
    let shift = v.splat(SHIFT);
    let mut total = v.splat(0.0);
    for (quants, lanes) in quants.iter_mut().zip(values) {
        let rounded = v.add(v.mul(v.load(lanes), inverse), shift);
        v.store(rounded, quants);
        total = v.add(total, v.sub(rounded, shift));
    }
    (step, sum(v, total) as i32)
}

/// Multiplies all rows with the strips of one cell of the result.
pub(super) struct MultiplyQuants<'a> {
    pub(super) encoding: &'a Encoding,
    pub(super) x: &'a IntRows,
    /// The first strip of the cell.
    pub(super) strip: usize,
    pub(super) cell: Cell<'a>,
}

impl DotKernel for MultiplyQuants<'_> {
    #[inline(always)]
    fn run<D: Dot>(mut self, d: D) {
        let mut at = 0;
        // One row has too few sums for the units to work on while one waits: then two strips at a time.
        if let [one] = &self.x.groups[..]
            && one.rows == 1
            && D::STRIPS == 2
        {
            while at + 2 * STRIP <= self.cell.width() {
                self.strips::<D, 1, 4>(d, (self.strip + at / STRIP, 0), &one.group(), (0, at));
                at += 2 * STRIP;
            }
        }
        for at in (at..self.cell.width()).step_by(STRIP) {
            let strip = self.strip + at / STRIP;
            let mut row = 0;
            for group in &self.x.groups {
                let to = (row, at);
                by_count!(6, group.rows, |M| self.rows::<D, M>(d, strip, group, to));
                row += group.rows;
            }
        }
    }
}

impl MultiplyQuants<'_> {
    #[inline(always)]
    fn rows<D: Dot, const M: usize>(
        &mut self,
        d: D,
        strip: usize,
        x: &Quantised,
        to: (usize, usize),
    ) {
        // Groups are never larger than D::ROWS; the bound keeps the code for larger M out of the narrower sets.
        if M > D::ROWS {
            return;
        }
        let x = x.group::<M>();
        if D::STRIPS == 2 {
            self.strips::<D, M, 2>(d, (strip, 0), &x, to);
        } else {
            self.strips::<D, M, 1>(d, (strip, 0), &x, to);
            self.strips::<D, M, 1>(d, (strip, 1), &x, (to.0, to.1 + STRIP / 2));
        }
    }

    #[inline(always)]
    fn strips<D: Dot, const M: usize, const W: usize>(
        &mut self,
        d: D,
        place: (usize, usize),
        x: &IntGroup<'_, M>,
        to: (usize, usize),
    ) {
        let visit = Visit::new(d.vector(), place, self.x.inputs);
        let sums = self.encoding.dots::<D, M, W>(d, visit, x);
        write(d.vector(), &mut self.cell, &sums, to);
    }
}
