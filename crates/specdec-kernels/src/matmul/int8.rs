//! Products of quantised weights with activations rounded to bytes: see [`crate::Activations::Int8`].

use super::{
    encoding::{Encoding, Visit},
    strip::{STRIP, even_groups, write},
};
use crate::vector::{Cell, Dot, DotKernel, Line};

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

/// Rows of bytes, in groups of rows whose sums fit the registers.
#[derive(Debug)]
pub(super) struct IntRows {
    /// Four bytes each, `[K / 4][M]` for each group of rows. Where the weight holds nibbles, the words of eight inputs are
    /// the even ones, then the odd ones, as masking and shifting the weight brings them up.
    words: Vec<u32>,
    /// What a quant of one stands for, `[K / group][M]` for each group of rows.
    steps: Vec<f32>,
    /// Sums of the quants, `[K / group][M]` for each group of rows.
    totals: Vec<i32>,
    /// Rows of each group.
    groups: Vec<usize>,
    inputs: usize,
    layout: IntLayout,
}

/// The part of one group of M rows.
pub(super) struct IntGroup<'a, const M: usize> {
    pub(super) words: &'a [[u32; M]],
    pub(super) steps: &'a [[f32; M]],
    pub(super) totals: &'a [[i32; M]],
}

impl IntRows {
    /// Quantises `x [T, K]`, in groups of at most `most` rows.
    pub(super) fn new(x: &[f32], inputs: usize, layout: IntLayout, most: usize) -> Self {
        let rows = x.len() / inputs;
        let groups = even_groups(rows, most);
        let (words, scales) = (inputs / 4, inputs / layout.group);
        let mut all = Self {
            words: vec![0; rows * words],
            steps: vec![0.0; rows * scales],
            totals: vec![0; rows * scales],
            groups,
            inputs,
            layout,
        };
        let mut quants = vec![0; layout.group];
        let mut first = 0;
        for &count in &all.groups {
            let group = x[first * inputs..][..count * inputs].chunks_exact(inputs);
            for (m, row) in group.enumerate() {
                for (index, values) in row.chunks_exact(layout.group).enumerate() {
                    let at = first * scales + index * count + m;
                    all.steps[at] = quantise(values, &mut quants);
                    all.totals[at] = quants.iter().map(|&q| i32::from(q)).sum();
                    let word = first * words + index * layout.group / 4 * count + m;
                    let places = all.words[word..].iter_mut().step_by(count);
                    for (place, bytes) in places.zip(in_words(&quants, layout.nibbles)) {
                        *place = bytes;
                    }
                }
            }
            first += count;
        }
        all
    }

    pub(super) fn rows(&self) -> usize {
        self.groups.iter().sum()
    }

    /// The group of M rows that starts with row `first`.
    #[inline(always)]
    fn group<const M: usize>(&self, first: usize) -> IntGroup<'_, M> {
        let (words, scales) = (self.inputs / 4, self.inputs / self.layout.group);
        IntGroup {
            words: self.words[first * words..][..M * words].as_chunks().0,
            steps: self.steps[first * scales..][..M * scales].as_chunks().0,
            totals: self.totals[first * scales..][..M * scales].as_chunks().0,
        }
    }
}

/// Rounds values to multiples of the step it returns. A value that is not finite makes the step NaN, and so the result.
fn quantise(values: &[f32], quants: &mut [i8]) -> f32 {
    let mut most = 0.0_f32;
    for lanes in values.as_chunks::<16>().0 {
        let mut line = Line::ZERO;
        for (to, &x) in line.0.iter_mut().zip(lanes) {
            // Not `max`, which would lose a NaN: what is not at most `MAX` becomes infinite.
            *to = if x.abs() <= f32::MAX {
                x.abs()
            } else {
                f32::INFINITY
            };
        }
        most = line.0.iter().fold(most, |a, &b| a.max(b));
    }
    let step = if most.is_finite() {
        most / MOST
    } else {
        f32::NAN
    };
    let inverse = if step > 0.0 { MOST / most } else { 0.0 };
    for (quant, &x) in quants.iter_mut().zip(values) {
        // To the nearest, halves to even, by adding what leaves no bits below one.
        const SHIFT: f32 = 1.5 * (1 << 23) as f32;
        let rounded = (x * inverse).clamp(-MOST, MOST) + SHIFT;
        *quant = (rounded.to_bits() as i32 - SHIFT.to_bits() as i32) as i8;
    }
    step
}

/// Bytes in fours, as [`IntRows::words`] has them.
fn in_words(quants: &[i8], nibbles: bool) -> impl Iterator<Item = u32> + '_ {
    let word = move |at: usize| {
        let byte = |i: usize| match nibbles {
            true => quants[at / 2 * 8 + 2 * i + at % 2] as u8,
            false => quants[4 * at + i] as u8,
        };
        u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
    };
    (0..quants.len() / 4).map(word)
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
        if self.x.groups == [1] && D::STRIPS == 2 {
            while at + 2 * STRIP <= self.cell.width() {
                self.strips::<D, 1, 4>(d, (self.strip + at / STRIP, 0), (0, at));
                at += 2 * STRIP;
            }
        }
        let x = self.x;
        for at in (at..self.cell.width()).step_by(STRIP) {
            let strip = self.strip + at / STRIP;
            let mut row = 0;
            for &group in &x.groups {
                let to = (row, at);
                match group {
                    1 => self.rows::<D, 1>(d, strip, to),
                    2 => self.rows::<D, 2>(d, strip, to),
                    3 => self.rows::<D, 3>(d, strip, to),
                    4 => self.rows::<D, 4>(d, strip, to),
                    5 => self.rows::<D, 5>(d, strip, to),
                    _ => self.rows::<D, 6>(d, strip, to),
                }
                row += group;
            }
        }
    }
}

impl MultiplyQuants<'_> {
    #[inline(always)]
    fn rows<D: Dot, const M: usize>(&mut self, d: D, strip: usize, to: (usize, usize)) {
        // Groups are never larger than D::ROWS; the bound keeps the code for larger M out of the narrower sets.
        if M > D::ROWS {
            return;
        }
        if D::STRIPS == 2 {
            self.strips::<D, M, 2>(d, (strip, 0), to);
        } else {
            self.strips::<D, M, 1>(d, (strip, 0), to);
            self.strips::<D, M, 1>(d, (strip, 1), (to.0, to.1 + STRIP / 2));
        }
    }

    #[inline(always)]
    fn strips<D: Dot, const M: usize, const W: usize>(
        &mut self,
        d: D,
        (strip, half): (usize, usize),
        to: (usize, usize),
    ) {
        let visit = Visit {
            v: d.vector(),
            strip,
            half,
            inputs: self.x.inputs,
        };
        let sums = self.encoding.dots::<D, M, W>(d, visit, &self.x.group(to.0));
        write(d.vector(), &mut self.cell, &sums, to);
    }
}
