use super::{Kernel, Level, Vector, exp, greatest, run_at, sum};

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
        .filter(|&level| level != Level::Portable)
        .map(run)
        .collect();
    assert!(fused.windows(2).all(|pair| pair[0] == pair[1]));
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
