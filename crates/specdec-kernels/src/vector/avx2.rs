//! Two AVX registers for sixteen lanes.
//!
//! Every intrinsic below is sound for the same reason: an [`Avx2`] exists only where [`Avx2::detect`] has found the
//! instructions.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Kernel, Vector};

/// The proof that the machine has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }

    /// Compiles `kernel` with AVX2, FMA and F16C and runs it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: Kernel>(v: Avx2, kernel: K) -> K::Output {
            kernel.run(v)
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { inner(self, kernel) }
    }
}

/// Calls intrinsics that need AVX2, FMA or F16C.
macro_rules! avx2 {
    ($($code:tt)*) => {{
        // SAFETY: the `Avx2` at hand proves the features; pointers come from references to arrays of the size read, and
        // offsets into them stay within it.
        unsafe { $($code)* }
    }};
}

/// The same operation on both halves.
macro_rules! both {
    ($f:ident, $($x:ident),+) => {
        avx2!([$f($($x[0]),+), $f($($x[1]),+)])
    };
}

impl Vector for Avx2 {
    type F = [__m256; 2];
    type U = [__m256i; 2];
    const ROWS: usize = 6;
    const STRIPS: usize = 1;

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        avx2!([
            _mm256_loadu_ps(from.as_ptr()),
            _mm256_loadu_ps(from.as_ptr().add(8))
        ])
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; 16]) {
        avx2!({
            _mm256_storeu_ps(to.as_mut_ptr(), value[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), value[1]);
        });
    }
    #[inline(always)]
    fn prefetch<T>(self, line: &T) {
        avx2!(_mm_prefetch::<_MM_HINT_T0>(
            core::ptr::from_ref(line).cast()
        ));
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        avx2!([_mm256_set1_ps(value); 2])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn where_ge(self, a: Self::F, b: Self::F, then: Self::F) -> Self::F {
        let ge = avx2!([
            _mm256_cmp_ps::<_CMP_GE_OQ>(a[0], b[0]),
            _mm256_cmp_ps::<_CMP_GE_OQ>(a[1], b[1])
        ]);
        both!(_mm256_and_ps, ge, then)
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Self::F) -> Self::F {
        avx2!({
            let bias = _mm256_set1_epi32(127 << 23);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[0]));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[1]));
            [
                _mm256_castsi256_ps(_mm256_add_epi32(low, bias)),
                _mm256_castsi256_ps(_mm256_add_epi32(high, bias)),
            ]
        })
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; 16]) -> Self::F {
        avx2!([
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ])
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> Self::F {
        avx2!({
            let wide = [
                _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast())),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast())),
            ];
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[0])),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[1])),
            ]
        })
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        avx2!([
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(8).cast()),
        ])
    }
    #[inline(always)]
    fn bits(self, value: Self::U, mask: u32, set: u32) -> Self::F {
        avx2!({
            let (mask, set) = (
                _mm256_set1_epi32(mask as i32),
                _mm256_set1_epi32(set as i32),
            );
            let low = _mm256_or_si256(_mm256_and_si256(value[0], mask), set);
            let high = _mm256_or_si256(_mm256_and_si256(value[1], mask), set);
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        })
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, value: Self::U) -> Self::U {
        avx2!({
            let count = _mm_cvtsi32_si128(N as i32);
            [
                _mm256_srl_epi32(value[0], count),
                _mm256_srl_epi32(value[1], count),
            ]
        })
    }
}
