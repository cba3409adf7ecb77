//! The small maps by their formulas, on widths that do and do not fill vectors.

use specdec_kernels::{RotaryPairing, argmax_rows, rms_norm, rotary, swiglu};

use crate::oracle::{assert_close, numbers, tensor, values};

#[test]
fn rms_norm_follows_the_formula() {
    for (rows, width) in [(1, 1), (3, 20), (2, 64), (5, 577), (130, 600)] {
        let (x, weight) = (numbers(1, rows * width), numbers(2, width));
        let expected: Vec<f64> = x
            .chunks_exact(width)
            .flat_map(|row| {
                let square: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                let root = (square / width as f64 + 1e-5).sqrt();
                let pairs = row.iter().zip(&weight);
                pairs
                    .map(move |(&x, &w)| f64::from(x) / root * f64::from(w))
                    .collect::<Vec<_>>()
            })
            .collect();
        let got = rms_norm(tensor(&x, [rows, width]), tensor(&weight, [width]), 1e-5);
        assert_close(&values(got), &expected, 1e-6);
    }
}

#[test]
fn swiglu_follows_the_formula() {
    for (rows, width) in [(1, 1), (3, 21), (130, 1000)] {
        let gate: Vec<f32> = numbers(1, rows * width).iter().map(|x| x * 20.0).collect();
        let up = numbers(2, rows * width);
        let expected: Vec<f64> = gate
            .iter()
            .zip(&up)
            .map(|(&gate, &up)| {
                let gate = f64::from(gate);
                gate / (1.0 + (-gate).exp()) * f64::from(up)
            })
            .collect();
        let got = swiglu(tensor(&gate, [rows, width]), tensor(&up, [rows, width]));
        assert_close(&values(got), &expected, 1e-6);
    }
}

#[test]
fn swiglu_of_extremes_is_finite() {
    let gate = [-1.0e4, -100.0, 100.0, 1.0e4, 0.0];
    let got = values(swiglu(tensor(&gate, [1, 5]), tensor(&[1.0; 5], [1, 5])));
    assert!(got[0].abs() < 1e-30 && got[1].abs() < 1e-30, "{got:?}");
    assert_eq!(got[2..], [100.0, 1.0e4, 0.0]);
}

#[test]
fn rotary_turns_the_pairs_and_passes_the_rest() {
    let (tokens, heads) = (7, 3);
    for (dim, turned) in [(8, 8), (20, 12), (64, 64), (6, 0)] {
        let pairs = turned / 2;
        let x = numbers(1, tokens * heads * dim);
        let angles: Vec<f32> = numbers(2, tokens * pairs).iter().map(|x| x * 3.0).collect();
        let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        for pairing in [RotaryPairing::HalfSplit, RotaryPairing::Interleaved] {
            let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for (index, head) in expected.chunks_exact_mut(dim).enumerate() {
                for pair in 0..pairs {
                    let at = index / heads * pairs + pair;
                    let (cos, sin) = (f64::from(cos[at]), f64::from(sin[at]));
                    let (i, j) = match pairing {
                        RotaryPairing::HalfSplit => (pair, pair + pairs),
                        RotaryPairing::Interleaved => (2 * pair, 2 * pair + 1),
                    };
                    let (a, b) = (head[i], head[j]);
                    (head[i], head[j]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
            if pairs == 0 {
                continue;
            }
            let angle = |values: &[f32]| tensor(values, [tokens, pairs]);
            let got = rotary(
                tensor(&x, [tokens, heads, dim]),
                angle(&cos),
                angle(&sin),
                pairing,
            );
            assert_close(&values(got), &expected, 1e-6);
        }
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals() {
    let mut wide = numbers(1, 3 * 3000);
    for at in [700, 1500, 2999, 3000, 8999, 7000] {
        wide[at] = 5.0;
    }
    let indices = |data: &[f32], dims| -> Vec<i64> {
        argmax_rows(tensor(data, dims))
            .into_data()
            .try_into_vec_as::<i64>()
            .unwrap()
    };
    assert_eq!(indices(&wide, [3, 3000]), [700, 0, 1000]);
    let low = f32::NEG_INFINITY;
    let odd = [
        f32::NAN,
        1.0,
        f32::NAN,
        1.0,
        0.5,
        -0.0,
        0.0,
        low,
        low,
        low,
        low,
        low,
    ];
    assert_eq!(indices(&odd, [3, 4]), [1, 0, 0]);
    assert_eq!(indices(&[f32::NAN; 20], [1, 20]), [0]);
    let signs = [-0.0, 0.0, -1.0, -0.0];
    assert_eq!(indices(&signs, [1, 4]), [0]);
}
