//! Integer products of bytes, exact at every instruction set.

#[cfg(target_arch = "aarch64")]
use super::dot_neon::NeonBytes;
use super::{Level, Vector, each, portable::Portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, dot_x86::Avx512Vnni};

/// Operations on sixteen lanes of i32, beside those of a [`Vector`].
pub(crate) trait Dot: Copy + Send + Sync {
    /// The float operations of the same instruction set.
    type V: Vector;
    /// Sixteen i32.
    type I: Copy;
    /// Rows whose accumulators fit the registers.
    const ROWS: usize;
    /// Vectors of one strip of weights that are multiplied at a time: 1 or 2.
    const STRIPS: usize;
    /// What [`dot`](Self::dot) takes off bytes of 8 bits before it multiplies them.
    const LESS: i32 = 0;

    fn vector(self) -> Self::V;
    fn splat(self, value: i32) -> Self::I;
    fn add(self, a: Self::I, b: Self::I) -> Self::I;
    /// The low four bits of every byte.
    fn low_nibbles(self, words: <Self::V as Vector>::U) -> <Self::V as Vector>::U;
    /// Adds the four products of each lane's bytes, unsigned and of BITS bits (4 or 8), with those of `x`, signed and not
    /// -128.
    fn dot<const BITS: usize>(self, sum: Self::I, bytes: <Self::V as Vector>::U, x: u32)
    -> Self::I;
    /// The nearest floats.
    fn float(self, value: Self::I) -> <Self::V as Vector>::F;
}

/// Code over byte products that [`run_dot_at`] compiles for each instruction set.
pub(crate) trait DotKernel {
    /// Must be `#[inline(always)]`, like everything it calls that handles vectors.
    fn run<D: Dot>(self, d: D);
}

/// Runs a kernel with the widest byte products of at most `level` that the machine has.
pub(crate) fn run_dot_at<K: DotKernel>(level: Level, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        if level == Level::Avx512
            && let Some(d) = Avx512Vnni::detect()
        {
            return d.run(kernel);
        }
        if level != Level::Portable
            && let Some(d) = Avx2::detect()
        {
            return d.run_dot(kernel);
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        if level == Level::NeonDot
            && let Some(d) = NeonBytes::<true>::detect()
        {
            return d.run(kernel);
        }
        if level != Level::Portable
            && let Some(d) = NeonBytes::<false>::detect()
        {
            return d.run(kernel);
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = level;
    kernel.run(Portable);
}

/// [`Dot::ROWS`] of what [`run_dot_at`] would take.
pub(crate) fn dot_rows(level: Level) -> usize {
    struct Rows<'a>(&'a mut usize);
    impl DotKernel for Rows<'_> {
        #[inline(always)]
        fn run<D: Dot>(self, _: D) {
            *self.0 = D::ROWS;
        }
    }
    let mut rows = 1;
    run_dot_at(level, Rows(&mut rows));
    rows
}

impl Dot for Portable {
    type V = Self;
    type I = [i32; 16];
    const ROWS: usize = 2;
    const STRIPS: usize = 1;

    #[inline(always)]
    fn vector(self) -> Self {
        self
    }
    #[inline(always)]
    fn splat(self, value: i32) -> [i32; 16] {
        [value; 16]
    }
    #[inline(always)]
    fn add(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        each!(0; 16, |i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn low_nibbles(self, words: [u32; 16]) -> [u32; 16] {
        each!(0; 16, |i| words[i] & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn dot<const BITS: usize>(self, sum: [i32; 16], bytes: [u32; 16], x: u32) -> [i32; 16] {
        let x = x.to_le_bytes().map(|x| i32::from(x as i8));
        each!(0; 16, |i| {
            let bytes = bytes[i].to_le_bytes().map(i32::from);
            let products = (bytes[0] * x[0] + bytes[1] * x[1]) + (bytes[2] * x[2] + bytes[3] * x[3]);
            sum[i].wrapping_add(products)
        })
    }
    #[inline(always)]
    fn float(self, value: [i32; 16]) -> [f32; 16] {
        each!(0.0; 16, |i| value[i] as f32)
    }
}
