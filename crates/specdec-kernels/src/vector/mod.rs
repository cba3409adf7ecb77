//! Sixteen lanes of f32, whatever the machine: the one form all CPU kernels are written in.
//!
//! A kernel is written once, over [`Vector`], and compiled for each instruction set. The lanes are always sixteen and
//! every operation is either exact or correctly rounded, so AVX2, AVX-512 and NEON give the same bits (those of a NaN
//! apart). The portable form gives them too where the compiler may use fused multiply-adds (aarch64, or
//! `-C target-feature=+fma`); elsewhere it rounds twice, because a fused multiply-add in software is some fifty times
//! slower.
//!
//! A value of a [`Vector`] type is the proof that the machine has its instructions; they are made in this module only.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dot;
#[cfg(target_arch = "aarch64")]
mod dot_neon;
#[cfg(target_arch = "x86_64")]
mod dot_x86;
mod exp;
mod grid;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod team;

pub(crate) use dot::{Dot, DotKernel, dot_rows, run_dot_at};
pub(crate) use exp::exp;
pub(crate) use grid::{Cell, for_each_cell};
pub(crate) use team::together;

/// An array whose element `i` is `$value`, made by a loop: the closures of `array::from_fn` and `map` are not always
/// inlined into code for another instruction set, and a vector then travels through memory.
macro_rules! each {
    ($start:expr; $len:expr, |$i:ident| $value:expr) => {{
        let mut all = [$start; $len];
        let mut $i = 0;
        while $i < $len {
            all[$i] = $value;
            $i += 1;
        }
        all
    }};
}
pub(crate) use each;

/// Calls `$call` with a count, from one to six or eight, as a constant.
macro_rules! by_count {
    (6, $count:expr, |$n:ident| $call:expr) => {
        by_count!(@ [1 2 3 4 5] 6, $count, $n, $call)
    };
    (8, $count:expr, |$n:ident| $call:expr) => {
        by_count!(@ [1 2 3 4 5 6 7] 8, $count, $n, $call)
    };
    (@ [$($few:literal)*] $most:literal, $count:expr, $n:ident, $call:expr) => {
        match $count {
            $($few => {
                const $n: usize = $few;
                $call
            })*
            _ => {
                const $n: usize = $most;
                $call
            }
        }
    };
}
pub(crate) use by_count;

/// Sixteen values on a cache line of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

impl Line {
    pub(crate) const ZERO: Self = Self([0.0; 16]);
}

/// Operations on sixteen lanes. All are inlined into the kernel that uses them.
pub(crate) trait Vector: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen u32.
    type U: Copy;
    /// Rows whose accumulators (times [`STRIPS`](Self::STRIPS)) fit the registers.
    const ROWS: usize;
    /// Vectors of one strip of weights that are multiplied at a time: 1 or 2.
    const STRIPS: usize;

    fn load(self, from: &[f32; 16]) -> Self::F;
    fn store(self, value: Self::F, to: &mut [f32; 16]);
    /// Asks for the cache line that holds the start of something that is read soon.
    fn prefetch<T>(self, line: &T);
    fn splat(self, value: f32) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a > b`, else `b` (so `b` where either is NaN).
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `then` where `a >= b`, else 0.
    fn where_ge(self, a: Self::F, b: Self::F, then: Self::F) -> Self::F;
    /// `2^n` where `shifted` is the f32 `1.5 * 2^23 + n` and n lies in -126..=127.
    fn power_of_two(self, shifted: Self::F) -> Self::F;

    fn load_f16(self, from: &[u16; 16]) -> Self::F;
    fn load_bf16(self, from: &[u16; 16]) -> Self::F;
    fn load_u32(self, from: &[u32; 16]) -> Self::U;
    /// The floats whose bits are those of `value` that `mask` keeps, and `set`.
    fn bits(self, value: Self::U, mask: u32, set: u32) -> Self::F;
    fn shift_right<const N: u32>(self, value: Self::U) -> Self::U;
}

/// Code over vectors that [`run`] compiles for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, like everything it calls that handles vectors.
    fn run<V: Vector>(self, v: V) -> Self::Output;
}

/// The instruction sets there are kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with its dot products, which only products of bytes use.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

impl Level {
    /// What this machine has, widest first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::detect().map(|_| Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::detect().map(|_| Self::Avx2),
            #[cfg(target_arch = "aarch64")]
            dot_neon::NeonBytes::<true>::detect().map(|_| Self::NeonDot),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(|_| Self::Neon),
            Some(Self::Portable),
        ];
        all.into_iter().flatten()
    }

    /// The widest this machine has.
    pub(crate) fn best() -> Self {
        Self::available().next().unwrap_or(Self::Portable)
    }

    /// Whether products are added without being rounded first: all such levels give the same bits.
    #[cfg(test)]
    pub(crate) fn fused(self) -> bool {
        self != Self::Portable || portable::FUSED
    }

    /// [`Vector::ROWS`] of this level.
    pub(crate) fn rows(self) -> usize {
        struct Rows;
        impl Kernel for Rows {
            type Output = usize;
            #[inline(always)]
            fn run<V: Vector>(self, _: V) -> usize {
                V::ROWS
            }
        }
        run_at(self, Rows)
    }
}

/// Runs a kernel with the instructions of `level`; with the portable ones if the machine lacks them.
pub(crate) fn run_at<K: Kernel>(level: Level, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if level == Level::Avx512
            && let Some(v) = avx512::Avx512::detect()
        {
            return v.run(kernel);
        }
        if level == Level::Avx2
            && let Some(v) = avx2::Avx2::detect()
        {
            return v.run(kernel);
        }
    }
    #[cfg(target_arch = "aarch64")]
    if level != Level::Portable
        && let Some(v) = neon::Neon::detect()
    {
        return v.run(kernel);
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = level;
    kernel.run(portable::Portable)
}

/// Runs a kernel with the widest instructions the machine has.
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Output {
    run_at(Level::best(), kernel)
}

/// The sum of the lanes, always in the same order: halves onto halves.
#[inline(always)]
pub(crate) fn sum<V: Vector>(v: V, value: V::F) -> f32 {
    let lanes = lanes(v, value);
    let eight = each!(0.0; 8, |i| lanes[i] + lanes[i + 8]);
    let four = each!(0.0; 4, |i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The greatest lane that is not NaN, minus infinity if there is none.
#[inline(always)]
pub(crate) fn greatest<V: Vector>(v: V, value: V::F) -> f32 {
    let lanes = lanes(v, value);
    let mut best = f32::NEG_INFINITY;
    for lane in lanes {
        if lane > best {
            best = lane;
        }
    }
    best
}

#[inline(always)]
fn lanes<V: Vector>(v: V, value: V::F) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    v.store(value, &mut lanes);
    lanes
}

#[cfg(test)]
pub(crate) mod tests;
