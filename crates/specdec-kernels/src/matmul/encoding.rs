//! How the weights of a strip lie in memory.

use half::{bf16, f16};

use super::{
    int8::{IntGroup, IntLayout},
    strip::{STRIP, Sink},
};
use crate::vector::{Dot, Vector, each};

/// Thirty-two values of one input (or the quants of several, packed in words), on cache lines of their own.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pair<T>(pub(super) [[T; 16]; 2]);

impl Pair<f32> {
    pub(super) const ZERO: Self = Self([[0.0; 16]; 2]);
}

/// A scale or minimum as stored.
pub(super) trait Stored: Copy + Default + Send + Sync + 'static {
    fn load<V: Vector>(v: V, from: &[Self; 16]) -> V::F;
    fn value(self) -> f32;
    /// The inverse of [`value`](Self::value), for values that came from this type.
    fn of(value: f32) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn load<V: Vector>(v: V, from: &[Self; 16]) -> V::F {
        v.load(from)
    }
    fn value(self) -> f32 {
        self
    }
    fn of(value: f32) -> Self {
        value
    }
}

/// The bits of an f16.
impl Stored for u16 {
    #[inline(always)]
    fn load<V: Vector>(v: V, from: &[Self; 16]) -> V::F {
        v.load_f16(from)
    }
    fn value(self) -> f32 {
        f16::from_bits(self).to_f32()
    }
    fn of(value: f32) -> Self {
        f16::from_f32(value).to_bits()
    }
}

/// Small integers of BITS bits with a scale for each `group` inputs, and a minimum too where P is 2.
#[derive(Debug)]
pub(super) struct Scaled<S, const P: usize, const BITS: usize> {
    /// The quants of some inputs (8 of 4 bits, 4 of 8 bits) for each output, the first lowest.
    pub(super) quants: Vec<Pair<u32>>,
    /// Scale, then minimum, of each group.
    pub(super) scales: Vec<[Pair<S>; P]>,
    pub(super) group: usize,
    /// What was added to the quants so that none is negative.
    pub(super) offset: i32,
}

/// Quants of 4 bits, eight inputs to a word.
pub(super) type Nibbles<S, const P: usize> = Scaled<S, P, 4>;
/// Quants of 8 bits, four inputs to a word.
pub(super) type Bytes<S, const P: usize> = Scaled<S, P, 8>;

/// All the ways a weight is held.
#[derive(Debug)]
pub(super) enum Encoding {
    F32(Vec<Pair<f32>>),
    F16(Vec<Pair<u16>>),
    BF16(Vec<Pair<u16>>),
    NibblesHalf(Nibbles<u16, 1>),
    NibblesHalfMin(Nibbles<u16, 2>),
    NibblesFull(Nibbles<f32, 1>),
    NibblesFullMin(Nibbles<f32, 2>),
    BytesHalf(Bytes<u16, 1>),
    BytesHalfMin(Bytes<u16, 2>),
    BytesFull(Bytes<f32, 1>),
    BytesFullMin(Bytes<f32, 2>),
}

/// Which weights a sink wants: one vector of a strip from `half` on, both, or those of two strips that follow each
/// other, as it takes one vector, two or four.
#[derive(Clone, Copy)]
pub(super) struct Visit<V> {
    pub(super) v: V,
    pub(super) strip: usize,
    pub(super) half: usize,
    /// Inputs of the weight.
    pub(super) inputs: usize,
}

impl<V: Vector> Visit<V> {
    /// A strip from vector `half` on.
    #[inline(always)]
    pub(super) fn new(v: V, (strip, half): (usize, usize), inputs: usize) -> Self {
        Self {
            v,
            strip,
            half,
            inputs,
        }
    }

    /// For each vector its strip's part of data that holds one item for every `per` inputs.
    #[inline(always)]
    pub(super) fn parts<'a, T, const W: usize>(&self, data: &'a [T], per: usize) -> [&'a [T]; W] {
        let len = self.inputs / per;
        each!(&data[..0]; W, |i| &data[(self.strip + i / 2) * len..][..len])
    }

    /// Hands weights that need no scale to `sink`.
    #[inline(always)]
    fn each_input<T, const W: usize>(
        &self,
        data: &[Pair<T>],
        sink: &mut impl Sink<V, W>,
        load: impl Fn(&[T; 16]) -> V::F,
    ) {
        let parts = self.parts::<_, W>(data, 1);
        for (at, first) in parts[0].iter().enumerate() {
            self.ahead::<_, W>(data, 1, at);
            let mut weights = [self.v.splat(0.0); W];
            for (i, weights) in weights.iter_mut().enumerate() {
                let pair = if i < 2 { first } else { &parts[i][at] };
                *weights = load(&pair.0[self.half(i)]);
            }
            sink.take(self.v, weights);
        }
    }

    /// The half of the strip that vector `i` is.
    #[inline(always)]
    pub(super) fn half(&self, i: usize) -> usize {
        self.half + i % 2
    }

    /// Asks for what is read [`AHEAD`] inputs after item `at`, each of which holds `per` inputs.
    #[inline(always)]
    pub(super) fn ahead<T, const W: usize>(&self, data: &[Pair<T>], per: usize, at: usize) {
        let far = AHEAD / per;
        let len = self.inputs / per;
        for strip in self.strip..self.strip + W.div_ceil(2) {
            if let Some(item) = data.get(strip * len + at + far) {
                for half in &item.0 {
                    self.v.prefetch(half);
                }
            }
        }
    }
}

/// Inputs between what is read and what is asked for.
const AHEAD: usize = 64;

impl Encoding {
    /// How activations have to be quantised for [`dots`](Self::dots); `None` where weights are no small integers.
    pub(super) fn int_layout(&self) -> Option<IntLayout> {
        Some(match self {
            Self::F32(_) | Self::F16(_) | Self::BF16(_) => return None,
            Self::NibblesHalf(s) => s.layout(),
            Self::NibblesHalfMin(s) => s.layout(),
            Self::NibblesFull(s) => s.layout(),
            Self::NibblesFullMin(s) => s.layout(),
            Self::BytesHalf(s) => s.layout(),
            Self::BytesHalfMin(s) => s.layout(),
            Self::BytesFull(s) => s.layout(),
            Self::BytesFullMin(s) => s.layout(),
        })
    }

    /// The products of a strip with M rows of small integers; zeros where weights are no small integers.
    #[inline(always)]
    pub(super) fn dots<D: Dot, const M: usize, const W: usize>(
        &self,
        d: D,
        visit: Visit<D::V>,
        x: &IntGroup<'_, M>,
    ) -> [[<D::V as Vector>::F; W]; M] {
        match self {
            Self::F32(_) | Self::F16(_) | Self::BF16(_) => [[visit.v.splat(0.0); W]; M],
            Self::NibblesHalf(s) => s.dots(d, visit, x),
            Self::NibblesHalfMin(s) => s.dots(d, visit, x),
            Self::NibblesFull(s) => s.dots(d, visit, x),
            Self::NibblesFullMin(s) => s.dots(d, visit, x),
            Self::BytesHalf(s) => s.dots(d, visit, x),
            Self::BytesHalfMin(s) => s.dots(d, visit, x),
            Self::BytesFull(s) => s.dots(d, visit, x),
            Self::BytesFullMin(s) => s.dots(d, visit, x),
        }
    }

    /// Hands the weights of a strip to `sink`, input by input.
    #[inline(always)]
    pub(super) fn visit<V: Vector, const W: usize>(
        &self,
        visit: Visit<V>,
        sink: &mut impl Sink<V, W>,
    ) {
        let v = visit.v;
        match self {
            Self::F32(data) => visit.each_input(data, sink, |lanes| v.load(lanes)),
            Self::F16(data) => visit.each_input(data, sink, |lanes| v.load_f16(lanes)),
            Self::BF16(data) => visit.each_input(data, sink, |lanes| v.load_bf16(lanes)),
            Self::NibblesHalf(scaled) => scaled.visit(visit, sink),
            Self::NibblesHalfMin(scaled) => scaled.visit(visit, sink),
            Self::NibblesFull(scaled) => scaled.visit(visit, sink),
            Self::NibblesFullMin(scaled) => scaled.visit(visit, sink),
            Self::BytesHalf(scaled) => scaled.visit(visit, sink),
            Self::BytesHalfMin(scaled) => scaled.visit(visit, sink),
            Self::BytesFull(scaled) => scaled.visit(visit, sink),
            Self::BytesFullMin(scaled) => scaled.visit(visit, sink),
        }
    }

    /// The weight of output `output` for input `input`, of a weight with `inputs` inputs.
    pub(super) fn value(&self, output: usize, input: usize, inputs: usize) -> f32 {
        let (strip, half, lane) = (output / STRIP, output % STRIP / 16, output % 16);
        let at = strip * inputs + input;
        match self {
            Self::F32(data) => data[at].0[half][lane],
            Self::F16(data) => f16::from_bits(data[at].0[half][lane]).to_f32(),
            Self::BF16(data) => bf16::from_bits(data[at].0[half][lane]).to_f32(),
            Self::NibblesHalf(s) => s.value(at, half, lane),
            Self::NibblesHalfMin(s) => s.value(at, half, lane),
            Self::NibblesFull(s) => s.value(at, half, lane),
            Self::NibblesFullMin(s) => s.value(at, half, lane),
            Self::BytesHalf(s) => s.value(at, half, lane),
            Self::BytesHalfMin(s) => s.value(at, half, lane),
            Self::BytesFull(s) => s.value(at, half, lane),
            Self::BytesFullMin(s) => s.value(at, half, lane),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::F32(data) => size_of_val(&data[..]),
            Self::F16(data) | Self::BF16(data) => size_of_val(&data[..]),
            Self::NibblesHalf(s) => s.memory_bytes(),
            Self::NibblesHalfMin(s) => s.memory_bytes(),
            Self::NibblesFull(s) => s.memory_bytes(),
            Self::NibblesFullMin(s) => s.memory_bytes(),
            Self::BytesHalf(s) => s.memory_bytes(),
            Self::BytesHalfMin(s) => s.memory_bytes(),
            Self::BytesFull(s) => s.memory_bytes(),
            Self::BytesFullMin(s) => s.memory_bytes(),
        }
    }
}

impl<S: Stored, const P: usize, const BITS: usize> Scaled<S, P, BITS> {
    /// Inputs to a word.
    pub(super) const PER: usize = 32 / BITS;

    /// `scale * quant + minimum`, as [`crate::dequantize`] computes it. Where there is a minimum the product is exact,
    /// so that a fused multiply-add gives the same bits.
    #[inline(always)]
    fn scale<V: Vector, const W: usize>(
        v: V,
        scales: &[[V::F; W]; P],
        quants: [V::F; W],
    ) -> [V::F; W] {
        each!(v.splat(0.0); W, |i| match scales.get(1) {
            Some(minimum) => v.fma(quants[i], scales[0][i], minimum[i]),
            None => v.mul(quants[i], scales[0][i]),
        })
    }

    #[inline(always)]
    pub(super) fn load_scales<V: Vector, const W: usize>(
        visit: &Visit<V>,
        scales: &[&[[Pair<S>; P]]; W],
        group: usize,
    ) -> [[V::F; W]; P] {
        let v = visit.v;
        each!([v.splat(0.0); W]; P, |p| {
            each!(v.splat(0.0); W, |i| S::load(v, &scales[i][group][p].0[visit.half(i)]))
        })
    }

    /// Quants become floats without a conversion: as the lowest bits of a mantissa whose exponent makes them count one
    /// each, less what the exponent stands for.
    #[inline(always)]
    fn visit<V: Vector, const W: usize>(&self, visit: Visit<V>, sink: &mut impl Sink<V, W>) {
        let v = visit.v;
        let quants = visit.parts::<_, W>(&self.quants, Self::PER);
        let scales = visit.parts::<_, W>(&self.scales, self.group);
        let per = self.group / Self::PER;
        // Quants read before the word is shifted.
        let reach = if BITS == 4 { 3 } else { 2 };
        let exponent = |low: usize| (127 + 23 - low as u32) << 23;
        let less = each!(v.splat(0.0); 3, |i| {
            v.splat(f32::from_bits(exponent(i * BITS)) + self.offset as f32)
        });
        for group in 0..visit.inputs / self.group {
            let scales = Self::load_scales::<V, W>(&visit, &scales, group);
            for at in group * per..(group + 1) * per {
                visit.ahead::<_, W>(&self.quants, Self::PER, at);
                let mut words =
                    each!(v.load_u32(&[0; 16]); W, |i| v.load_u32(&quants[i][at].0[visit.half(i)]));
                for index in 0..Self::PER {
                    if index > 0 && index % reach == 0 {
                        words = each!(words[0]; W, |i| match BITS {
                            4 => v.shift_right::<12>(words[i]),
                            _ => v.shift_right::<16>(words[i]),
                        });
                    }
                    let low = index % reach * BITS;
                    let mask = ((1 << BITS) - 1) << low;
                    let quants = each!(v.splat(0.0); W, |i| {
                        v.sub(v.bits(words[i], mask, exponent(low)), less[index % reach])
                    });
                    sink.take(v, Self::scale(v, &scales, quants));
                }
            }
        }
    }

    /// The products with rows of small integers, of M rows; see [`super::int8`].
    #[allow(
        clippy::needless_range_loop,
        reason = "an index runs over several arrays, and iterators are not always inlined here"
    )]
    #[inline(always)]
    pub(super) fn dots<D: Dot, const M: usize, const W: usize>(
        &self,
        d: D,
        visit: Visit<D::V>,
        x: &IntGroup<'_, M>,
    ) -> [[<D::V as Vector>::F; W]; M] {
        let v = visit.v;
        let quants = visit.parts::<_, W>(&self.quants, Self::PER);
        let scales = visit.parts::<_, W>(&self.scales, self.group);
        let per = self.group / Self::PER;
        let less = if BITS == 8 { D::LESS } else { 0 };
        let mut sums = [[v.splat(0.0); W]; M];
        for group in 0..visit.inputs / self.group {
            // What was added to the quants is taken off beforehand, as far as it is not in their products.
            let mut low = [[d.splat(0); W]; M];
            for m in 0..M {
                low[m] = [d.splat(x.totals[group][m].wrapping_mul(less - self.offset)); W];
            }
            // A chain of its own, so that neither waits for the other.
            let mut high = [[d.splat(0); W]; M];
            for at in group * per..(group + 1) * per {
                visit.ahead::<_, W>(&self.quants, Self::PER, at);
                for i in 0..W {
                    let word = v.load_u32(&quants[i][at].0[visit.half(i)]);
                    if BITS == 4 {
                        let even = d.low_nibbles(word);
                        let odd = d.low_nibbles(v.shift_right::<4>(word));
                        for m in 0..M {
                            low[m][i] = d.dot::<BITS>(low[m][i], even, x.words[2 * at][m]);
                            let into = if M == 1 { &mut high } else { &mut low };
                            into[m][i] = d.dot::<BITS>(into[m][i], odd, x.words[2 * at + 1][m]);
                        }
                    } else {
                        for m in 0..M {
                            low[m][i] = d.dot::<BITS>(low[m][i], word, x.words[at][m]);
                        }
                    }
                }
            }
            let scales = Self::load_scales::<D::V, W>(&visit, &scales, group);
            for m in 0..M {
                let step = v.splat(x.steps[group][m]);
                let total = v.splat(x.totals[group][m] as f32 * x.steps[group][m]);
                for i in 0..W {
                    let dot = if M == 1 {
                        d.add(low[m][i], high[m][i])
                    } else {
                        low[m][i]
                    };
                    let product = v.mul(d.float(dot), step);
                    sums[m][i] = v.fma(product, scales[0][i], sums[m][i]);
                    if let Some(minimum) = scales.get(1) {
                        sums[m][i] = v.fma(total, minimum[i], sums[m][i]);
                    }
                }
            }
        }
        sums
    }

    /// The weight of one output; `at` counts inputs from the start of the strips.
    fn value(&self, at: usize, half: usize, lane: usize) -> f32 {
        let word = self.quants[at / Self::PER].0[half][lane];
        let quant = (word >> (at % Self::PER * BITS)) & ((1 << BITS) - 1);
        let quant = (quant as i32 - self.offset) as f32;
        let scales = &self.scales[at / self.group];
        let product = scales[0].0[half][lane].value() * quant;
        match scales.get(1) {
            Some(minimum) => product + minimum.0[half][lane].value(),
            None => product,
        }
    }

    fn layout(&self) -> IntLayout {
        IntLayout {
            group: self.group,
            nibbles: BITS == 4,
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&self.quants[..]) + size_of_val(&self.scales[..])
    }
}
