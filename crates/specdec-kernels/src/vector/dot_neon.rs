//! Byte products by NEON, with its dot products or without.
//!
//! Every intrinsic below is sound for the same reason: a [`NeonBytes`] exists only where `detect` has found the
//! instructions.
#![allow(unsafe_code)]

use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use super::{
    dot::{Dot, DotKernel},
    neon::{Neon, four},
};

/// The proof that the machine has NEON, and its dot products if SDOT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonBytes<const SDOT: bool>(Neon);

impl NeonBytes<false> {
    pub(crate) fn detect() -> Option<Self> {
        Neon::detect().map(Self)
    }

    /// Compiles `kernel` with NEON and runs it.
    pub(crate) fn run<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "neon")]
        fn inner<K: DotKernel>(d: NeonBytes<false>, kernel: K) {
            kernel.run(d);
        }
        // SAFETY: `self` proves that the machine has the feature.
        unsafe { inner(self, kernel) }
    }
}

impl NeonBytes<true> {
    pub(crate) fn detect() -> Option<Self> {
        let v = Neon::detect()?;
        is_aarch64_feature_detected!("dotprod").then_some(Self(v))
    }

    /// Compiles `kernel` with NEON and its dot products and runs it.
    pub(crate) fn run<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "neon,dotprod")]
        fn inner<K: DotKernel>(d: NeonBytes<true>, kernel: K) {
            kernel.run(d);
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { inner(self, kernel) }
    }
}

/// Calls intrinsics on registers that need what the value at hand proves.
macro_rules! neon {
    ($($code:tt)*) => {{
        // SAFETY: the `NeonBytes` at hand proves the features; nothing here touches memory.
        unsafe { $($code)* }
    }};
}

impl<const SDOT: bool> Dot for NeonBytes<SDOT> {
    type V = Neon;
    type I = [int32x4_t; 4];
    const ROWS: usize = 4;
    const STRIPS: usize = 1;
    /// Both factors are signed here.
    const LESS: i32 = 128;

    #[inline(always)]
    fn vector(self) -> Neon {
        self.0
    }
    #[inline(always)]
    fn splat(self, value: i32) -> Self::I {
        neon!([vdupq_n_s32(value); 4])
    }
    #[inline(always)]
    fn add(self, a: Self::I, b: Self::I) -> Self::I {
        four!(|I| vaddq_s32(a[I], b[I]))
    }
    #[inline(always)]
    fn low_nibbles(self, words: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
        four!(|I| vandq_u32(words[I], vdupq_n_u32(0x0f0f_0f0f)))
    }
    #[inline(always)]
    fn dot<const BITS: usize>(self, sum: Self::I, bytes: [uint32x4_t; 4], x: u32) -> Self::I {
        four!(|I| {
            let x = vreinterpretq_s8_u32(vdupq_n_u32(x));
            let bytes = if BITS == 8 {
                // 128 less.
                veorq_u32(bytes[I], vdupq_n_u32(0x8080_8080))
            } else {
                bytes[I]
            };
            let bytes = vreinterpretq_s8_u32(bytes);
            if SDOT {
                sdot(sum[I], bytes, x)
            } else {
                widened(sum[I], bytes, x)
            }
        })
    }
    #[inline(always)]
    fn float(self, value: Self::I) -> [float32x4_t; 4] {
        four!(|I| vcvtq_f32_s32(value[I]))
    }
}

/// The intrinsic `vdotq_s32`, which is not stable.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function's features; nothing but the named registers is used.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The same by products of i16, which hold the sum of two as long as no `b` is -128.
#[target_feature(enable = "neon")]
#[inline]
fn widened(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    let high = vmull_high_s8(a, b);
    vpadalq_s16(sum, vpaddq_s16(low, high))
}
