//! A weight in host memory, packed for the CPU's vector units.

use super::{
    encoding::{Encoding, Pair},
    int8::{IntRows, MultiplyQuants},
    pack::{pack_blocks, pack_f32},
    panels::{MOST_ROWS, MultiplyPanels},
    strip::{ExpandStrip, FloatRows, MultiplyStrips, STRIP},
};
use crate::{
    Activations, BlockFormat,
    threads::threads,
    vector::{Cell, Level, dot_rows, for_each_cell, run_at, run_dot_at},
};

/// The packed form of a weight `[N, K]`.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    encoding: Encoding,
    outputs: usize,
    inputs: usize,
}

impl PackedMatrix {
    pub(super) fn from_f32(data: &[f32], [outputs, inputs]: [usize; 2]) -> Self {
        Self {
            encoding: pack_f32(data, inputs),
            outputs,
            inputs,
        }
    }

    pub(super) fn from_blocks(
        format: BlockFormat,
        bytes: &[u8],
        [outputs, inputs]: [usize; 2],
    ) -> Self {
        Self {
            encoding: pack_blocks(format, bytes, inputs),
            outputs,
            inputs,
        }
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        [self.outputs, self.inputs]
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.encoding.memory_bytes()
    }

    /// `x [T, K]` times the transposed weight, `[T, N]`.
    pub(crate) fn multiply(&self, x: &[f32], activations: Activations) -> Vec<f32> {
        self.multiply_at(Level::best(), x, activations)
    }

    pub(super) fn multiply_at(
        &self,
        level: Level,
        x: &[f32],
        activations: Activations,
    ) -> Vec<f32> {
        let layout = self.encoding.int_layout();
        match layout.filter(|_| activations == Activations::Int8) {
            Some(layout) => {
                let x = IntRows::new(level, x, self.inputs, layout, dot_rows(level));
                self.for_each_strips(x.rows(), |strip, cell| {
                    run_dot_at(
                        level,
                        MultiplyQuants {
                            encoding: &self.encoding,
                            x: &x,
                            strip,
                            cell,
                        },
                    );
                })
            }
            None => {
                let x = FloatRows::new(x, self.inputs, level.rows());
                let groups = x.groups().len();
                match &self.encoding {
                    Encoding::F32(weights) if groups > 1 && x.rows() <= MOST_ROWS => self
                        .for_each_strips(x.rows(), |strip, cell| {
                            let kernel = MultiplyPanels {
                                weights,
                                x: &x,
                                strip,
                                cell,
                                sums: &mut vec![Pair::ZERO; x.rows()],
                            };
                            run_at(level, kernel);
                        }),
                    encoding => self.for_each_strips(x.rows(), |strip, cell| {
                        let expand = groups > 1 && !matches!(encoding, Encoding::F32(_));
                        let mut scratch = match expand {
                            true => vec![Pair::ZERO; self.inputs],
                            false => Vec::new(),
                        };
                        let kernel = MultiplyStrips {
                            encoding,
                            x: &x,
                            strip,
                            cell,
                            scratch: &mut scratch,
                        };
                        run_at(level, kernel);
                    }),
                }
            }
        }
    }

    /// The result `[rows, N]`, filled by calls of `work` with a first strip and the cell that it and those after it fill.
    fn for_each_strips(&self, rows: usize, work: impl Fn(usize, Cell<'_>) + Sync) -> Vec<f32> {
        let mut out = vec![0.0; rows * self.outputs];
        if rows == 0 {
            return out;
        }
        let strips = self.outputs.div_ceil(STRIP);
        // Strips to take at a time: enough bytes to be worth the asking, few enough that threads end together.
        let strip_bytes = (self.memory_bytes() / strips).max(1);
        let even = strips.div_ceil(4 * threads());
        let take = (65536 / strip_bytes).clamp(1, even.max(1));
        // Pairs of strips, where one row is multiplied with two at a time.
        let take = take.next_multiple_of(2);
        for_each_cell(
            &mut out,
            (self.outputs, take * STRIP),
            core::slice::from_ref(&(0..rows)),
            |_, strip, cell| work(strip * take, cell),
        );
        out
    }

    /// Row `output` of the weight, exactly.
    pub(crate) fn row(&self, output: usize, to: &mut [f32]) {
        for (input, value) in to.iter_mut().enumerate() {
            *value = self.encoding.value(output, input, self.inputs);
        }
    }

    /// The whole weight, row-major.
    pub(super) fn to_rows(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.outputs * self.inputs];
        let mut strip = vec![Pair::ZERO; self.inputs];
        for (number, rows) in out.chunks_mut(STRIP * self.inputs).enumerate() {
            let kernel = ExpandStrip {
                encoding: &self.encoding,
                strip: number,
                out: &mut strip,
            };
            crate::vector::run(kernel);
            for (lane, row) in rows.chunks_exact_mut(self.inputs).enumerate() {
                for (value, pair) in row.iter_mut().zip(&strip) {
                    *value = pair.0[lane / 16][lane % 16];
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;
