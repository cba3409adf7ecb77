//! Arithmetic of calibration: the order of cells, and lines through measured points.

/// A step through `n` cells that visits each once.
pub(super) fn stride(n: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (n / 2 + 1..).find(|s| gcd(*s, n) == 1).unwrap_or(1)
}

/// Least squares through points, neither part negative; flat where all points have one x.
pub(super) fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    if points.is_empty() {
        return (0.0, 0.0);
    }
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread = mean(|p| p.0 * p.0) - x * x;
    if spread <= 1e-9 * x * x {
        return (0.0, if x > 0.0 { y / x } else { 0.0 });
    }
    let slope =
        ((mean(|p| p.0 * p.1) - x * y) / spread).clamp(0.0, if x > 0.0 { y / x } else { 0.0 });
    // A slope cut to y / x leaves a rest that rounding can make negative.
    ((y - slope * x).max(0.0), slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_fitted_without_negative_parts() {
        let (fixed, each) = fit(&[(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]);
        assert!((fixed - 1.0).abs() < 1e-9 && (each - 2.0).abs() < 1e-9);
        assert_eq!(fit(&[(1.0, 3.0), (2.0, 1.0)]), (2.0, 0.0));
        assert_eq!(fit(&[(2.0, 4.0), (2.0, 6.0)]), (0.0, 2.5));
        assert_eq!(fit(&[]), (0.0, 0.0));
    }

    /// Times that fall below the line through 0, where what is left for the fixed part is rounding.
    #[test]
    fn rounding_makes_no_part_negative() {
        let mut cut = 0;
        for i in 1..2000 {
            let (x, time) = (f64::from(i), f64::from(i % 97 + 1) * 1e-9);
            let (fixed, each) = fit(&[(x, time), (x * 4.0, time * 9.7)]);
            assert!(fixed >= 0.0 && each >= 0.0, "{i}: {fixed:e}, {each:e}");
            cut += usize::from(fixed < 1e-18);
        }
        assert!(cut > 1900, "{cut}");
    }

    #[test]
    fn every_cell_has_its_turn() {
        for n in 1..30 {
            let mut seen: Vec<usize> = (0..n).map(|turn| turn * stride(n) % n).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }
}
