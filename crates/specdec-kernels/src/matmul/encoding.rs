//! How the weights of a strip lie in memory.

use half::{bf16, f16};

use super::strip::{STRIP, Sink};
use crate::vector::{Line, Vector, each};

/// Thirty-two values of one input (or of eight, as nibbles), on cache lines of their own.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pair<T>(pub(super) [[T; 16]; 2]);

/// Two inputs' bytes share a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Bytes(pub(super) [[i8; 16]; 2]);

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

/// Small integers with a scale for each `group` inputs, and a minimum too where P is 2.
#[derive(Debug)]
pub(super) struct Scaled<Q, S, const P: usize> {
    pub(super) quants: Vec<Q>,
    /// Scale, then minimum, of each group.
    pub(super) scales: Vec<[Pair<S>; P]>,
    pub(super) group: usize,
    /// What is subtracted from a nibble; 0 for bytes.
    pub(super) offset: i8,
}

/// All the ways a weight is held.
#[derive(Debug)]
pub(super) enum Encoding {
    F32(Vec<[Line; 2]>),
    F16(Vec<Pair<u16>>),
    BF16(Vec<Pair<u16>>),
    /// Eight inputs of one output in a u32, the first lowest.
    NibblesHalf(Scaled<Pair<u32>, u16, 1>),
    NibblesHalfMin(Scaled<Pair<u32>, u16, 2>),
    NibblesFull(Scaled<Pair<u32>, f32, 1>),
    NibblesFullMin(Scaled<Pair<u32>, f32, 2>),
    BytesHalf(Scaled<Bytes, u16, 1>),
    BytesHalfMin(Scaled<Bytes, u16, 2>),
    BytesFull(Scaled<Bytes, f32, 1>),
    BytesFullMin(Scaled<Bytes, f32, 2>),
}

/// Which weights a sink wants: the strip, and in it the vectors from `half` on.
#[derive(Clone, Copy)]
pub(super) struct Visit<V> {
    pub(super) v: V,
    pub(super) strip: usize,
    pub(super) half: usize,
    /// Inputs of the weight.
    pub(super) inputs: usize,
}

impl<V> Visit<V> {
    /// The strip's part of data that holds one item for every `per` inputs.
    #[inline(always)]
    fn part<'a, T>(&self, data: &'a [T], per: usize) -> &'a [T] {
        let len = self.inputs / per;
        &data[self.strip * len..][..len]
    }
}

impl Encoding {
    /// Hands the weights of a strip to `sink`, input by input.
    #[inline(always)]
    pub(super) fn visit<V: Vector, const W: usize>(
        &self,
        visit: Visit<V>,
        sink: &mut impl Sink<V, W>,
    ) {
        let Visit { v, half, .. } = visit;
        match self {
            Self::F32(data) => {
                for lines in visit.part(data, 1) {
                    sink.take(v, each!(v.splat(0.0); W, |i| v.load(&lines[half + i].0)));
                }
            }
            Self::F16(data) => {
                for pair in visit.part(data, 1) {
                    sink.take(v, each!(v.splat(0.0); W, |i| v.load_f16(&pair.0[half + i])));
                }
            }
            Self::BF16(data) => {
                for pair in visit.part(data, 1) {
                    sink.take(
                        v,
                        each!(v.splat(0.0); W, |i| v.load_bf16(&pair.0[half + i])),
                    );
                }
            }
            Self::NibblesHalf(scaled) => scaled.nibbles(visit, sink),
            Self::NibblesHalfMin(scaled) => scaled.nibbles(visit, sink),
            Self::NibblesFull(scaled) => scaled.nibbles(visit, sink),
            Self::NibblesFullMin(scaled) => scaled.nibbles(visit, sink),
            Self::BytesHalf(scaled) => scaled.bytes(visit, sink),
            Self::BytesHalfMin(scaled) => scaled.bytes(visit, sink),
            Self::BytesFull(scaled) => scaled.bytes(visit, sink),
            Self::BytesFullMin(scaled) => scaled.bytes(visit, sink),
        }
    }

    /// The weight of output `output` for input `input`, of a weight with `inputs` inputs.
    pub(super) fn value(&self, output: usize, input: usize, inputs: usize) -> f32 {
        let (strip, half, lane) = (output / STRIP, output % STRIP / 16, output % 16);
        let at = strip * inputs + input;
        match self {
            Self::F32(data) => data[at][half].0[lane],
            Self::F16(data) => f16::from_bits(data[at].0[half][lane]).to_f32(),
            Self::BF16(data) => bf16::from_bits(data[at].0[half][lane]).to_f32(),
            Self::NibblesHalf(s) => s.value(s.nibble(at, half, lane), (at, half, lane)),
            Self::NibblesHalfMin(s) => s.value(s.nibble(at, half, lane), (at, half, lane)),
            Self::NibblesFull(s) => s.value(s.nibble(at, half, lane), (at, half, lane)),
            Self::NibblesFullMin(s) => s.value(s.nibble(at, half, lane), (at, half, lane)),
            Self::BytesHalf(s) => s.value(s.quants[at].0[half][lane], (at, half, lane)),
            Self::BytesHalfMin(s) => s.value(s.quants[at].0[half][lane], (at, half, lane)),
            Self::BytesFull(s) => s.value(s.quants[at].0[half][lane], (at, half, lane)),
            Self::BytesFullMin(s) => s.value(s.quants[at].0[half][lane], (at, half, lane)),
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

impl<Q, S: Stored, const P: usize> Scaled<Q, S, P> {
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
    fn load_scales<V: Vector, const W: usize>(
        v: V,
        half: usize,
        scales: &[Pair<S>; P],
    ) -> [[V::F; W]; P] {
        each!([v.splat(0.0); W]; P, |p| {
            each!(v.splat(0.0); W, |i| S::load(v, &scales[p].0[half + i]))
        })
    }

    fn value(&self, quant: i8, (at, half, lane): (usize, usize, usize)) -> f32 {
        let scales = &self.scales[at / self.group];
        let product = scales[0].0[half][lane].value() * f32::from(quant);
        match scales.get(1) {
            Some(minimum) => product + minimum.0[half][lane].value(),
            None => product,
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&self.quants[..]) + size_of_val(&self.scales[..])
    }
}

impl<S: Stored, const P: usize> Scaled<Pair<u32>, S, P> {
    #[inline(always)]
    fn nibbles<V: Vector, const W: usize>(&self, visit: Visit<V>, sink: &mut impl Sink<V, W>) {
        let Visit { v, half, .. } = visit;
        let table = v.table(f32::from(self.offset));
        let quants = visit.part(&self.quants, 8).chunks_exact(self.group / 8);
        for (scales, quants) in visit.part(&self.scales, self.group).iter().zip(quants) {
            let scales = Self::load_scales::<V, W>(v, half, scales);
            for eight in quants {
                let mut bits: [V::U; W] =
                    each!(v.load_u32(&eight.0[half]); W, |i| v.load_u32(&eight.0[half + i]));
                for _ in 0..8 {
                    let quants = each!(v.splat(0.0); W, |i| v.nibble(bits[i], table));
                    sink.take(v, Self::scale(v, &scales, quants));
                    bits = each!(bits[0]; W, |i| v.shift_right_4(bits[i]));
                }
            }
        }
    }

    /// The quant of one output and input; `at` counts inputs from the start of the weight.
    fn nibble(&self, at: usize, half: usize, lane: usize) -> i8 {
        let bits = self.quants[at / 8].0[half][lane] >> (at % 8 * 4);
        (bits & 15) as i8 - self.offset
    }
}

impl<S: Stored, const P: usize> Scaled<Bytes, S, P> {
    #[inline(always)]
    fn bytes<V: Vector, const W: usize>(&self, visit: Visit<V>, sink: &mut impl Sink<V, W>) {
        let Visit { v, half, .. } = visit;
        let quants = visit.part(&self.quants, 1).chunks_exact(self.group);
        for (scales, quants) in visit.part(&self.scales, self.group).iter().zip(quants) {
            let scales = Self::load_scales::<V, W>(v, half, scales);
            for bytes in quants {
                let quants = each!(v.splat(0.0); W, |i| v.load_i8(&bytes.0[half + i]));
                sink.take(v, Self::scale(v, &scales, quants));
            }
        }
    }
}
