//! Means of ratios.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const RESAMPLES: usize = 2000;

/// The mean of logarithms of ratios, less 1: a share by which something takes longer.
pub fn excess(logs: &[f64]) -> f64 {
    mean(logs).exp_m1()
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The 95 % interval of [`excess`], by drawing blocks anew.
pub fn interval(logs: &[f64]) -> (f64, f64) {
    let mut draws = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = (0..logs.len()).map(|_| logs[draws.random_range(0..logs.len())]);
            (drawn.sum::<f64>() / logs.len() as f64).exp_m1()
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    (means[RESAMPLES / 40], means[RESAMPLES - RESAMPLES / 40 - 1])
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `+1.2 %`.
pub fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}
