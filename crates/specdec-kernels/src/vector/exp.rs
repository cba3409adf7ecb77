use super::Vector;

/// `e^x`, within 2 units in the last place; exactly 1 at 0, exactly 0 below -87.3 (where the result would be
/// subnormal) and at minus infinity; the value at 88 above 88. NaN gives 0.
///
/// Cody and Waite's reduction with the minimax polynomial of Moshier's Cephes library.
#[inline(always)]
pub(crate) fn exp<V: Vector>(v: V, x: V::F) -> V::F {
    const LOWEST: f32 = -87.3;
    /// Adding it leaves the nearest integer in the lowest bits.
    const SHIFT: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = -0.693_359_4;
    const LN2_LOW: f32 = 2.121_944_4e-4;
    const TERMS: [f32; 5] = [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ];
    let lowest = v.splat(LOWEST);
    // -max(-88, -x) is min(88, x); NaN ends as the second argument.
    let most = v.sub(v.splat(0.0), v.max(v.sub(v.splat(0.0), x), v.splat(-88.0)));
    let clamped = v.max(most, lowest);
    let shifted = v.fma(clamped, v.splat(core::f32::consts::LOG2_E), v.splat(SHIFT));
    let n = v.sub(shifted, v.splat(SHIFT));
    let r = v.fma(n, v.splat(LN2_HIGH), clamped);
    let r = v.fma(n, v.splat(LN2_LOW), r);
    let mut p = v.splat(1.987_569_1e-4);
    for term in TERMS {
        p = v.fma(p, r, v.splat(term));
    }
    let y = v.add(v.fma(p, v.mul(r, r), r), v.splat(1.0));
    v.where_ge(x, lowest, v.mul(y, v.power_of_two(shifted)))
}
