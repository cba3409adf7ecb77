//! One AVX-512 register for sixteen lanes.
//!
//! Every intrinsic below is sound for the same reason: an [`Avx512`] exists only where [`Avx512::detect`] has found the
//! instructions.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Kernel, Vector};

/// The proof that the machine has AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }

    /// Compiles `kernel` with AVX-512 and runs it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f")]
        fn inner<K: Kernel>(v: Avx512, kernel: K) -> K::Output {
            kernel.run(v)
        }
        // SAFETY: `self` proves that the machine has the feature.
        unsafe { inner(self, kernel) }
    }
}

/// Calls intrinsics that need AVX-512F.
macro_rules! avx512 {
    ($($code:tt)*) => {{
        // SAFETY: the `Avx512` at hand proves the feature; pointers come from references to arrays of the size read.
        unsafe { $($code)* }
    }};
}

impl Vector for Avx512 {
    type F = __m512;
    type U = __m512i;
    const ROWS: usize = 8;
    const STRIPS: usize = 2;

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> __m512 {
        avx512!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, value: __m512, to: &mut [f32; 16]) {
        avx512!(_mm512_storeu_ps(to.as_mut_ptr(), value));
    }
    #[inline(always)]
    fn prefetch<T>(self, line: &T) {
        avx512!(_mm_prefetch::<_MM_HINT_T0>(
            core::ptr::from_ref(line).cast()
        ));
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        avx512!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        avx512!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn where_ge(self, a: __m512, b: __m512, then: __m512) -> __m512 {
        avx512!(_mm512_maskz_mov_ps(
            _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b),
            then
        ))
    }
    #[inline(always)]
    fn power_of_two(self, shifted: __m512) -> __m512 {
        avx512!({
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(127 << 23)))
        })
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; 16]) -> __m512 {
        avx512!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> __m512 {
        avx512!({
            let halves = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        })
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> __m512i {
        avx512!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn bits(self, value: __m512i, mask: u32, set: u32) -> __m512 {
        /// `(a & b) | c`.
        const AND_OR: i32 = 0b1110_1010;
        avx512!({
            let (mask, set) = (
                _mm512_set1_epi32(mask as i32),
                _mm512_set1_epi32(set as i32),
            );
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<AND_OR>(value, mask, set))
        })
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, value: __m512i) -> __m512i {
        avx512!(_mm512_srli_epi32::<N>(value))
    }
}
