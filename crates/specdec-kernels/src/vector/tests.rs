use half::{bf16, f16};

use super::{Dot, DotKernel, Kernel, Level, Vector, exp, greatest, run_at, run_dot_at, sum};

/// e^x for every value of a slice.
struct Exp<'a>(&'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let (chunks, rest) = self.0.as_chunks_mut::<16>();
        assert!(rest.is_empty());
        for chunk in chunks {
            let x = v.load(chunk);
            v.store(exp(v, x), chunk);
        }
    }
}

/// Sum and greatest of each sixteen.
struct Fold<'a>(&'a [f32]);

impl Kernel for Fold<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> (f32, f32) {
        let x = v.load(self.0.first_chunk().unwrap());
        (sum(v, x), greatest(v, x))
    }
}

#[test]
fn exp_is_close_and_exact_where_promised() {
    for level in Level::available() {
        let inputs: Vec<f32> = (0..4096)
            .map(|i| -88.0 + i as f32 * (176.0 / 4096.0))
            .collect();
        let mut outputs = inputs.clone();
        run_at(level, Exp(&mut outputs));
        for (&x, &y) in inputs.iter().zip(&outputs) {
            let expected = f64::from(x).exp();
            if x < -87.3 {
                assert_eq!(y, 0.0);
            } else {
                let error = (f64::from(y) - expected).abs() / expected;
                assert!(error < 2.4e-7, "{level:?}: exp({x}) = {y}, off by {error}");
            }
        }
        let mut special = [-0.0; 16];
        special[1] = f32::NEG_INFINITY;
        special[2] = f32::INFINITY;
        special[3] = f32::NAN;
        special[4] = -400.0;
        special[5] = -1.0e30;
        run_at(level, Exp(&mut special));
        assert_eq!(special[0], 1.0);
        assert_eq!(special[1].to_bits(), 0);
        assert!(special[2] > 1.0e38 && special[2].is_finite());
        assert_eq!(special[3..6], [0.0; 3]);
    }
}

#[test]
fn all_levels_with_fused_products_agree_to_the_bit() {
    let inputs: Vec<f32> = (0..1600)
        .map(|i| ((i * 7919) % 1600) as f32 / 9.0 - 88.5)
        .collect();
    let run = |level| {
        let mut outputs = inputs.clone();
        run_at(level, Exp(&mut outputs));
        outputs
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    let fused: Vec<_> = Level::available()
        .filter(|level| level.fused())
        .map(run)
        .collect();
    assert!(fused.windows(2).all(|pair| pair[0] == pair[1]));
    // What AVX2 and AVX-512 give: all machines agree.
    for bits in fused {
        assert_eq!(fingerprint(bits), 0x89ba_a46e);
    }
}

/// FNV-1a over some words.
pub(crate) fn fingerprint(words: impl IntoIterator<Item = u32>) -> u32 {
    let bytes = words.into_iter().flat_map(u32::to_le_bytes);
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Every operation on three vectors of floats.
struct Floats([[f32; 16]; 3]);

/// [`Floats`]: `fma`, `mul`, `add`, `sub`, `div`, `max`, `where_ge`.
const OPERATIONS: usize = 7;

impl Kernel for Floats {
    type Output = [[f32; 16]; OPERATIONS];
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> Self::Output {
        let [a, b, c] = each!(v.splat(0.0); 3, |i| v.load(&self.0[i]));
        let results = [
            v.fma(a, b, c),
            v.mul(a, b),
            v.add(a, b),
            v.sub(a, b),
            v.div(a, b),
            v.max(a, b),
            v.where_ge(a, b, c),
        ];
        each!([0.0; 16]; OPERATIONS, |i| {
            let mut lanes = [0.0; 16];
            v.store(results[i], &mut lanes);
            lanes
        })
    }
}

/// The bits, those of any NaN the same.
fn bits(value: f32) -> u32 {
    if value.is_nan() {
        u32::MAX
    } else {
        value.to_bits()
    }
}

#[test]
fn float_operations_are_rounded_once_and_order_nan_as_promised() {
    const VALUES: [f32; 16] = [
        0.0,
        -0.0,
        1.0,
        -1.000_000_1,
        0.333_333_34,
        -1.7e-3,
        4.321e7,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        -3.0e-42,
        1.0e-45,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -12_582_913.0,
    ];
    for level in Level::available() {
        for (by, and) in (0..16).flat_map(|by| (0..16).map(move |and| (by, and))) {
            let turned = |by: usize| core::array::from_fn(|i| VALUES[(i + by) % 16]);
            let got = run_at(level, Floats([VALUES, turned(by), turned(and)]));
            for (i, &a) in VALUES.iter().enumerate() {
                let (b, c) = (VALUES[(i + by) % 16], VALUES[(i + and) % 16]);
                let fma = match level.fused() {
                    true => a.mul_add(b, c),
                    false => a * b + c,
                };
                let max = if a > b { a } else { b };
                let then = if a >= b { c } else { 0.0 };
                let expected = [fma, a * b, a + b, a - b, a / b, max, then];
                let got = got.map(|lanes| bits(lanes[i]));
                assert_eq!(got, expected.map(bits), "{level:?}: {a} {b} {c}");
            }
        }
    }
}

/// [`Vector::load_f16`] and [`Vector::load_bf16`].
struct Halves<'a>(&'a [u16; 16]);

impl Kernel for Halves<'_> {
    type Output = [[f32; 16]; 2];
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> Self::Output {
        let mut lanes = [[0.0; 16]; 2];
        v.store(v.load_f16(self.0), &mut lanes[0]);
        v.store(v.load_bf16(self.0), &mut lanes[1]);
        lanes
    }
}

#[test]
fn every_half_is_widened_exactly() {
    for level in Level::available() {
        for first in (0..=u16::MAX).step_by(16) {
            let halves = core::array::from_fn(|i| first + i as u16);
            let got = run_at(level, Halves(&halves));
            let expected = halves.map(|half| f16::from_bits(half).to_f32());
            assert_eq!(got[0].map(bits), expected.map(bits), "{level:?}");
            let expected = halves.map(|half| bf16::from_bits(half).to_f32());
            assert_eq!(got[1].map(bits), expected.map(bits), "{level:?}");
        }
    }
}

/// Powers of two of the first; the words of the second shifted by 4, 12 and 16, then masked and set.
struct Bits<'a>(&'a [f32; 16], &'a [u32; 16]);

const MASK: u32 = 0x0070_0f35;
const SET: u32 = 0x4b00_0081;

impl Kernel for Bits<'_> {
    type Output = [[f32; 16]; 4];
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> Self::Output {
        let words = v.load_u32(self.1);
        let results = [
            v.power_of_two(v.load(self.0)),
            v.bits(v.shift_right::<4>(words), MASK, SET),
            v.bits(v.shift_right::<12>(words), MASK, SET),
            v.bits(v.shift_right::<16>(words), MASK, SET),
        ];
        each!([0.0; 16]; 4, |i| {
            let mut lanes = [0.0; 16];
            v.store(results[i], &mut lanes);
            lanes
        })
    }
}

#[test]
fn operations_on_bits_are_exact() {
    for level in Level::available() {
        for first in (-126..=112).step_by(14) {
            let shifted = core::array::from_fn(|i| 12_582_912.0 + (first + i as i32) as f32);
            let words =
                core::array::from_fn(|i| (first as u32 ^ i as u32).wrapping_mul(0x9e37_79b9));
            let got = run_at(level, Bits(&shifted, &words));
            let power = core::array::from_fn(|i| 2.0_f32.powi(first + i as i32));
            let kept = |by: u32| words.map(|word| f32::from_bits((word >> by) & MASK | SET));
            let expected = [power, kept(4), kept(12), kept(16)];
            assert_eq!(
                got.map(|x| x.map(bits)),
                expected.map(|x| x.map(bits)),
                "{level:?}"
            );
        }
    }
}

/// Two sums of products of bytes, from `from` on and less it: of all eight bits, and of the lower four.
struct ByteProducts<'a> {
    from: i32,
    words: &'a [u32; 16],
    x: u32,
    out: &'a mut [[f32; 16]; 2],
}

impl DotKernel for ByteProducts<'_> {
    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let v = d.vector();
        let words = v.load_u32(self.words);
        let from = d.splat(self.from);
        let bytes = d.dot::<8>(from, words, self.x);
        let nibbles = d.dot::<4>(from, d.low_nibbles(words), self.x);
        // What was taken off each byte comes back with the sum of x.
        let total: i32 = self
            .x
            .to_le_bytes()
            .map(|x| i32::from(x as i8))
            .iter()
            .sum();
        let bytes = d.add(bytes, d.splat(total * D::LESS));
        let less = d.splat(self.from.wrapping_neg());
        v.store(d.float(d.add(bytes, less)), &mut self.out[0]);
        v.store(d.float(d.add(nibbles, less)), &mut self.out[1]);
    }
}

#[test]
fn products_of_bytes_are_exact_and_wrap() {
    const WORDS: [u32; 16] = [
        0,
        u32::MAX,
        0x8080_8080,
        0x7f7f_7f7f,
        0xff00_ff00,
        0x00ff_00ff,
        0x0102_0304,
        0x80ff_7f00,
        0xdead_beef,
        0x1234_5678,
        0x9abc_def0,
        0x0000_00ff,
        0xff00_0000,
        0x8000_0001,
        0x7fff_ff7f,
        0x0f0f_f0f0,
    ];
    const X: [u32; 8] = [
        0,
        0x8181_8181,
        0x7f7f_7f7f,
        0x817f_817f,
        0x0102_0304,
        0xfffe_fdfc,
        0x8100_007f,
        0x2a91_c35d,
    ];
    for level in Level::available() {
        for (x, from) in X
            .iter()
            .flat_map(|&x| [0, 7, i32::MAX, i32::MIN, -5].map(|from| (x, from)))
        {
            let mut out = [[0.0; 16]; 2];
            let (words, out_of) = (&WORDS, &mut out);
            run_dot_at(
                level,
                ByteProducts {
                    from,
                    words,
                    x,
                    out: out_of,
                },
            );
            let product = |word: u32, mask: u8| {
                let pairs = word.to_le_bytes().into_iter().zip(x.to_le_bytes());
                pairs
                    .map(|(w, x)| i32::from(w & mask) * i32::from(x as i8))
                    .sum::<i32>() as f32
            };
            let expected = [255, 15].map(|mask| WORDS.map(|word| product(word, mask)));
            assert_eq!(out, expected, "{level:?}: {x:08x} from {from}");
        }
    }
}

#[test]
fn folds_are_in_a_fixed_order() {
    let mut x: [f32; 16] = core::array::from_fn(|i| 1.0 + (i as f32) * 1.0e-7);
    let expected = {
        let eight: Vec<f32> = (0..8).map(|i| x[i] + x[i + 8]).collect();
        let four: Vec<f32> = (0..4).map(|i| eight[i] + eight[i + 4]).collect();
        (four[0] + four[2]) + (four[1] + four[3])
    };
    for level in Level::available() {
        assert_eq!(run_at(level, Fold(&x)).0, expected);
    }
    x[3] = f32::NAN;
    x[9] = 7.0;
    for level in Level::available() {
        assert_eq!(run_at(level, Fold(&x)).1, 7.0);
    }
}
