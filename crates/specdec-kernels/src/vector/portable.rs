use half::{bf16, f16};

use super::{Vector, each};

/// Plain arrays, for machines without vector code of their own. The compiler turns most of it into the vectors of the
/// target's baseline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

/// Whether `f32::mul_add` is an instruction of the target rather than a library call.
pub(super) const FUSED: bool = cfg!(any(
    target_arch = "aarch64",
    all(target_arch = "x86_64", target_feature = "fma")
));

impl Vector for Portable {
    type F = [f32; 16];
    type U = [u32; 16];
    const ROWS: usize = 4;
    const STRIPS: usize = 1;

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; 16]) {
        *to = value;
    }
    #[inline(always)]
    fn prefetch<T>(self, _: &T) {}
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; 16]
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(0.0; 16, |i| {
            if FUSED {
                a[i].mul_add(b[i], c[i])
            } else {
                a[i] * b[i] + c[i]
            }
        })
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; 16, |i| a[i] * b[i])
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; 16, |i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; 16, |i| a[i] - b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; 16, |i| a[i] / b[i])
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each!(0.0; 16, |i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn where_ge(self, a: Self::F, b: Self::F, then: Self::F) -> Self::F {
        each!(0.0; 16, |i| if a[i] >= b[i] { then[i] } else { 0.0 })
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Self::F) -> Self::F {
        each!(0.0; 16, |i| f32::from_bits(
            (shifted[i].to_bits() << 23).wrapping_add(127 << 23)
        ))
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; 16]) -> Self::F {
        each!(0.0; 16, |i| f16::from_bits(from[i]).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> Self::F {
        each!(0.0; 16, |i| bf16::from_bits(from[i]).to_f32())
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        *from
    }
    #[inline(always)]
    fn bits(self, value: Self::U, mask: u32, set: u32) -> Self::F {
        each!(0.0; 16, |i| f32::from_bits((value[i] & mask) | set))
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, value: Self::U) -> Self::U {
        each!(0; 16, |i| value[i] >> N)
    }
}
