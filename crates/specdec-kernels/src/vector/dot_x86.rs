//! Byte products by AVX-512 VNNI and by AVX2.
//!
//! Every intrinsic below is sound for the same reason: an [`Avx512Vnni`] or [`Avx2`] exists only where `detect` has found
//! the instructions.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{
    avx2::Avx2,
    avx512::Avx512,
    dot::{Dot, DotKernel},
};

/// The proof that the machine has AVX-512F and AVX-512 VNNI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    pub(crate) fn detect() -> Option<Self> {
        let v = Avx512::detect()?;
        is_x86_feature_detected!("avx512vnni").then_some(Self(v))
    }

    /// Compiles `kernel` with AVX-512 VNNI and runs it.
    pub(crate) fn run<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn inner<K: DotKernel>(d: Avx512Vnni, kernel: K) {
            kernel.run(d);
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { inner(self, kernel) }
    }
}

/// Calls intrinsics on registers that need what the value at hand proves.
macro_rules! proven {
    ($($code:tt)*) => {{
        // SAFETY: the `Avx512Vnni` or `Avx2` at hand proves the features; nothing here touches memory.
        unsafe { $($code)* }
    }};
}

impl Dot for Avx512Vnni {
    type V = Avx512;
    type I = __m512i;
    const ROWS: usize = 6;
    const STRIPS: usize = 2;

    #[inline(always)]
    fn vector(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn splat(self, value: i32) -> __m512i {
        proven!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn low_nibbles(self, words: __m512i) -> __m512i {
        proven!(_mm512_and_si512(words, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn dot<const BITS: usize>(self, sum: __m512i, bytes: __m512i, x: u32) -> __m512i {
        proven!(_mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(x as i32)))
    }
    #[inline(always)]
    fn float(self, value: __m512i) -> __m512 {
        proven!(_mm512_cvtepi32_ps(value))
    }
}

impl Avx2 {
    /// Compiles `kernel` with AVX2, FMA and F16C and runs it.
    pub(crate) fn run_dot<K: DotKernel>(self, kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: DotKernel>(d: Avx2, kernel: K) {
            kernel.run(d);
        }
        // SAFETY: `self` proves that the machine has the features.
        unsafe { inner(self, kernel) }
    }
}

impl Dot for Avx2 {
    type V = Self;
    type I = [__m256i; 2];
    const ROWS: usize = 2;
    const STRIPS: usize = 1;

    #[inline(always)]
    fn vector(self) -> Self {
        self
    }
    #[inline(always)]
    fn splat(self, value: i32) -> Self::I {
        proven!([_mm256_set1_epi32(value); 2])
    }
    #[inline(always)]
    fn add(self, a: Self::I, b: Self::I) -> Self::I {
        proven!([_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn low_nibbles(self, words: Self::I) -> Self::I {
        proven!({
            let mask = _mm256_set1_epi8(15);
            [
                _mm256_and_si256(words[0], mask),
                _mm256_and_si256(words[1], mask),
            ]
        })
    }
    #[inline(always)]
    fn dot<const BITS: usize>(self, sum: Self::I, bytes: Self::I, x: u32) -> Self::I {
        proven!({
            let x = _mm256_set1_epi32(x as i32);
            [
                dot_256::<BITS>(sum[0], bytes[0], x),
                dot_256::<BITS>(sum[1], bytes[1], x),
            ]
        })
    }
    #[inline(always)]
    fn float(self, value: Self::I) -> [__m256; 2] {
        proven!([_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])])
    }
}

/// Products of bytes in pairs of i16. Pairs of wide bytes would overflow `maddubs`, so those are widened first.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot_256<const BITS: usize>(sum: __m256i, bytes: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        if BITS <= 6 {
            let pairs = _mm256_maddubs_epi16(bytes, x);
            return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        let even = _mm256_and_si256(bytes, _mm256_set1_epi16(255));
        let odd = _mm256_srli_epi16::<8>(bytes);
        let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let x_odd = _mm256_srai_epi16::<8>(x);
        let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, x_even));
        _mm256_add_epi32(sum, _mm256_madd_epi16(odd, x_odd))
    }
}
