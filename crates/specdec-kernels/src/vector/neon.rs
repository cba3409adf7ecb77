//! Four NEON registers for sixteen lanes.
//!
//! Every intrinsic below is sound for the same reason: a [`Neon`] exists only where [`Neon::detect`] has found the
//! instructions.
#![allow(unsafe_code)]

use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use super::{Kernel, Vector};

/// The proof that the machine has NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    /// Compiles `kernel` with NEON and runs it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn inner<K: Kernel>(v: Neon, kernel: K) -> K::Output {
            kernel.run(v)
        }
        // SAFETY: `self` proves that the machine has the feature.
        unsafe { inner(self, kernel) }
    }
}

/// Calls intrinsics that need NEON.
macro_rules! neon {
    ($($code:tt)*) => {{
        // SAFETY: the `Neon` at hand proves the feature; pointers come from references to arrays of the size read, and
        // offsets into them stay within it.
        unsafe { $($code)* }
    }};
}

/// The same operation on all four quarters.
macro_rules! four {
    (|$i:ident| $value:expr) => {
        neon!([
            {
                const $i: usize = 0;
                $value
            },
            {
                const $i: usize = 1;
                $value
            },
            {
                const $i: usize = 2;
                $value
            },
            {
                const $i: usize = 3;
                $value
            },
        ])
    };
}
pub(super) use four;

impl Vector for Neon {
    type F = [float32x4_t; 4];
    type U = [uint32x4_t; 4];
    // The sums take 20 of 32 registers; with 6 rows the compiler keeps some of them on the stack.
    const ROWS: usize = 5;
    const STRIPS: usize = 1;

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        four!(|I| vld1q_f32(from.as_ptr().add(4 * I)))
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; 16]) {
        four!(|I| vst1q_f32(to.as_mut_ptr().add(4 * I), value[I]));
    }
    #[inline(always)]
    fn prefetch<T>(self, line: &T) {
        // SAFETY: a hint, which changes nothing that a program can see.
        unsafe {
            asm!(
                "prfm pldl1keep, [{line}]",
                line = in(reg) core::ptr::from_ref(line).cast::<u8>(),
                options(nomem, nostack, preserves_flags),
            );
        }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        neon!([vdupq_n_f32(value); 4])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        four!(|I| vfmaq_f32(c[I], a[I], b[I]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        four!(|I| vmulq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        four!(|I| vaddq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        four!(|I| vsubq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        four!(|I| vdivq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // Not `fmax`, which gives NaN where either is.
        four!(|I| vbslq_f32(vcgtq_f32(a[I], b[I]), a[I], b[I]))
    }
    #[inline(always)]
    fn where_ge(self, a: Self::F, b: Self::F, then: Self::F) -> Self::F {
        four!(|I| {
            let then = vreinterpretq_u32_f32(then[I]);
            vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(a[I], b[I]), then))
        })
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Self::F) -> Self::F {
        four!(|I| {
            let n = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted[I]));
            vreinterpretq_f32_u32(vaddq_u32(n, vdupq_n_u32(127 << 23)))
        })
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; 16]) -> Self::F {
        neon!({
            let low = vreinterpretq_f16_u16(vld1q_u16(from.as_ptr()));
            let high = vreinterpretq_f16_u16(vld1q_u16(from.as_ptr().add(8)));
            [
                vcvt_f32_f16(vget_low_f16(low)),
                vcvt_high_f32_f16(low),
                vcvt_f32_f16(vget_low_f16(high)),
                vcvt_high_f32_f16(high),
            ]
        })
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> Self::F {
        neon!({
            let low = vld1q_u16(from.as_ptr());
            let high = vld1q_u16(from.as_ptr().add(8));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(low)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(high)),
            ]
        })
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        four!(|I| vld1q_u32(from.as_ptr().add(4 * I)))
    }
    #[inline(always)]
    fn bits(self, value: Self::U, mask: u32, set: u32) -> Self::F {
        four!(|I| {
            let kept = vandq_u32(value[I], vdupq_n_u32(mask));
            vreinterpretq_f32_u32(vorrq_u32(kept, vdupq_n_u32(set)))
        })
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, value: Self::U) -> Self::U {
        // A negative count shifts to the right; as a constant it becomes part of the instruction.
        four!(|I| vshlq_u32(value[I], vdupq_n_s32(-(N as i32))))
    }
}
