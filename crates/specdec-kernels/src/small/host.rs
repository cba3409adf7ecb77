//! The small maps over host memory. Each row is computed alone, in an order that depends on its width only.

use super::RotaryPairing;
use crate::{
    threads::threads,
    vector::{Kernel, Vector, exp, for_each_cell, greatest, run, sum},
};

/// Values below which a second thread costs more than it brings.
const WORTH_A_THREAD: usize = 32_768;

/// Calls `work` with bands of whole rows, on several threads where there is enough to do.
fn by_rows(values: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if width == 0 {
        return;
    }
    if values.len() < 2 * WORTH_A_THREAD || threads() < 2 {
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            work(row, values);
        }
        return;
    }
    let rows = values.len() / width;
    let take = WORTH_A_THREAD.div_ceil(width);
    let bands: Vec<_> = (0..rows)
        .step_by(take)
        .map(|row| row..rows.min(row + take))
        .collect();
    for_each_cell(values, (width, width), &bands, |band, _, mut cell| {
        for row in 0..bands[band].len() {
            work(bands[band].start + row, cell.row(row));
        }
    });
}

/// The sixteen values from `at` on; what is missing counts as zero.
#[inline(always)]
fn take<V: Vector>(v: V, values: &[f32], at: usize) -> V::F {
    let values = &values[at..];
    if let Some(values) = values.first_chunk::<16>() {
        return v.load(values);
    }
    let mut full = [0.0; 16];
    full[..values.len()].copy_from_slice(values);
    v.load(&full)
}

/// Stores sixteen values at `at`, or as many as there is room for.
#[inline(always)]
fn put<V: Vector>(v: V, value: V::F, out: &mut [f32], at: usize) {
    let out = &mut out[at..];
    if let Some(out) = out.first_chunk_mut::<16>() {
        v.store(value, out);
    } else {
        let mut full = [0.0; 16];
        v.store(value, &mut full);
        let len = out.len();
        out.copy_from_slice(&full[..len]);
    }
}

struct RmsNorm<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Self { row, weight, eps } = self;
        let mut squares = v.splat(0.0);
        for at in (0..row.len()).step_by(16) {
            let x = take(v, row, at);
            squares = v.fma(x, x, squares);
        }
        let mean = sum(v, squares) / row.len() as f32;
        let factor = v.splat(1.0 / (mean + eps).sqrt());
        for at in (0..row.len()).step_by(16) {
            let x = v.mul(take(v, row, at), factor);
            put(v, v.mul(x, take(v, weight, at)), row, at);
        }
    }
}

/// In place.
pub(crate) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    by_rows(x, weight.len(), |_, row| run(RmsNorm { row, weight, eps }));
}

struct Swiglu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Swiglu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Self { gate, up } = self;
        let (zero, one) = (v.splat(0.0), v.splat(1.0));
        for at in (0..gate.len()).step_by(16) {
            let x = take(v, gate, at);
            let sigmoid = v.div(one, v.add(one, exp(v, v.sub(zero, x))));
            let gated = v.mul(v.mul(x, sigmoid), take(v, up, at));
            put(v, gated, gate, at);
        }
    }
}

/// In place of `gate`. Element by element, so the rows' width does not matter.
pub(crate) fn swiglu(gate: &mut [f32], up: &[f32]) {
    let width = 1024;
    let whole = gate.len() / width * width;
    let (gate, rest) = gate.split_at_mut(whole);
    by_rows(gate, width, |row, gate| {
        let up = &up[row * width..][..width];
        run(Swiglu { gate, up });
    });
    run(Swiglu {
        gate: rest,
        up: &up[whole..],
    });
}

/// In place; `x` is `[T, H, D]`.
pub(crate) fn rotary(
    x: &mut [f32],
    [heads, dim]: [usize; 2],
    (cos, sin): (&[f32], &[f32]),
    pairing: RotaryPairing,
) {
    let width = heads * dim;
    if width == 0 || x.is_empty() {
        return;
    }
    let pairs = cos.len() / (x.len() / width);
    by_rows(x, width, |token, row| {
        let cos = &cos[token * pairs..][..pairs];
        let sin = &sin[token * pairs..][..pairs];
        let turn = |a: &mut f32, b: &mut f32, cos: f32, sin: f32| {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        };
        for head in row.chunks_exact_mut(dim) {
            let angles = cos.iter().zip(sin);
            match pairing {
                RotaryPairing::HalfSplit => {
                    let (first, second) = head.split_at_mut(pairs);
                    for ((a, b), (&cos, &sin)) in first.iter_mut().zip(second).zip(angles) {
                        turn(a, b, cos, sin);
                    }
                }
                RotaryPairing::Interleaved => {
                    for ([a, b], (&cos, &sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles)
                    {
                        turn(a, b, cos, sin);
                    }
                }
            }
        }
    });
}

struct Greatest<'a>(&'a [f32]);

impl Kernel for Greatest<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> f32 {
        let (full, rest) = self.0.as_chunks::<16>();
        let mut best = [v.splat(f32::NEG_INFINITY); 4];
        for (index, values) in full.iter().enumerate() {
            best[index % 4] = v.max(v.load(values), best[index % 4]);
        }
        let best = v.max(v.max(best[0], best[1]), v.max(best[2], best[3]));
        let rest = rest.iter().copied().filter(|value| !value.is_nan());
        rest.fold(greatest(v, best), f32::max)
    }
}

/// The first index of each row's greatest value.
pub(crate) fn argmax(logits: &[f32], width: usize) -> Vec<i32> {
    const SECTION: usize = 1024;
    let row = |row: &[f32]| {
        let mut best = f32::NEG_INFINITY;
        let mut index = 0;
        for (section, values) in row.chunks(SECTION).enumerate() {
            let most = run(Greatest(values));
            if most > best {
                best = most;
                index = section * SECTION;
            }
        }
        let section = row[index..]
            .iter()
            .take(SECTION)
            .position(|&value| value == best);
        (index + section.unwrap_or(0)) as i32
    };
    logits.chunks_exact(width.max(1)).map(row).collect()
}
