//! The cost model against break-even points worked out by hand, for a model of 538 MB in
//! f32 whose cache takes 46 080 bytes a token.

use specdec_vegas::{BreakEven, CostModel, acceptance_length};

/// Cached tokens of the batch at which x is 1.
const UNIT: f64 = 538e6 / 46_080.0;

fn gathered(kept: f64) -> CostModel {
    let mut model = CostModel::new(1.0, kept);
    model.gather = 2.0;
    model
}

fn tau(rate: f64, gamma: usize) -> f64 {
    acceptance_length(std::iter::repeat_n(rate, gamma))
}

#[test]
fn break_even_by_acceptance_and_length() {
    let table = [
        (0.98, [[420, 520], [680, 790], [940, 1_080]]),
        (0.95, [[1_100, 1_380], [1_790, 2_120], [2_520, 2_950]]),
        (0.92, [[1_840, 2_340], [3_040, 3_650], [4_340, 5_170]]),
        (0.90, [[2_370, 3_050], [3_950, 4_810], [5_690, 6_900]]),
        (0.85, [[3_860, 5_130], [6_590, 8_340], [9_710, 12_380]]),
        (0.80, [[5_640, 7_780], [9_850, 13_090], [14_890, 20_320]]),
        (0.75, [[7_780, 11_270], [13_960, 19_780], [21_650, 32_590]]),
    ];
    for (rate, row) in table {
        for (gamma, pair) in [2, 4, 6].into_iter().zip(row) {
            for (kept, want) in [0.07, 0.15].into_iter().zip(pair) {
                let model = gathered(kept);
                let BreakEven::Above(x) = model.break_even(gamma, tau(rate, gamma)) else {
                    panic!("no break-even at {rate}, {gamma}, {kept}");
                };
                let tokens = x * UNIT;
                assert!(
                    (tokens - f64::from(want)).abs() < 10.0,
                    "{tokens} instead of {want}"
                );
                // At break-even the speedup is 1; a little above, more.
                let at = |x: f64| CostModel { kv: x, ..model }.speedup(gamma, tau(rate, gamma));
                assert!((at(x) - 1.0).abs() < 1e-9);
                assert!(at(1.1 * x) > 1.0 && at(0.9 * x) < 1.0);
            }
        }
    }
}

#[test]
fn limits() {
    let tau = tau(0.9, 4);
    let at = |kv| {
        CostModel {
            kv,
            ..gathered(0.07)
        }
        .speedup(4, tau)
    };
    assert!((at(0.0) - tau / 5.0).abs() < 1e-12);
    assert!((at(1e12) - tau / (4.0 * 0.07 + 1.0 + 0.14)).abs() < 1e-6);
    assert!((CostModel::kv_share(11_676, 46_080, 538_000_000) - 1.0).abs() < 1e-4);
    assert_eq!(acceptance_length([]), 1.0);
    assert_eq!(acceptance_length([0.5, 0.5, 0.0, 1.0]), 1.75);
    // Measured: 4 drafts of 0.5 and a verification of 1.2 plain steps for 4 tokens.
    assert!((CostModel::measured(4, 4.0, 0.5, 1.2) - 1.25).abs() < 1e-12);
}

/// With the target's own weights a round never pays where attention costs nothing; with a quantised
/// copy it does, and with few accepted never.
#[test]
fn every_kind_of_break_even() {
    let mut model = CostModel::new(0.0, 0.07);
    assert_eq!(model.break_even(4, 1.2), BreakEven::Never);
    assert!(!BreakEven::Never.pays(1e9));
    assert!(matches!(model.break_even(4, 4.0), BreakEven::Above(_)));
    model.draft_weights = 0.27;
    assert_eq!(model.break_even(4, 4.0), BreakEven::Always);
    // Cheap weights and dense drafts: attention eats up what the weights gain.
    model.kept = 1.0;
    let BreakEven::Below(x) = model.break_even(4, 2.4) else {
        panic!("it pays for small x only");
    };
    let at = |kv| CostModel { kv, ..model }.speedup(4, 2.4);
    assert!((at(x) - 1.0).abs() < 1e-12 && at(0.5 * x) > 1.0 && at(2.0 * x) < 1.0);
    assert!(BreakEven::Below(x).pays(0.5 * x) && !BreakEven::Below(x).pays(2.0 * x));
    assert!(BreakEven::Above(x).pays(2.0 * x) && BreakEven::Always.pays(0.0));
}

/// Longer drafts become worth it as the context grows.
#[test]
fn the_best_length_grows_with_the_context() {
    let best = |kv| {
        CostModel {
            kv,
            ..gathered(0.07)
        }
        .best(0.9, 8)
    };
    assert_eq!(best(0.05), (0, 1.0));
    let lengths: Vec<usize> = [0.3, 1.0, 4.0, 20.0].map(|kv| best(kv).0).to_vec();
    assert!(
        lengths.is_sorted() && lengths[0] >= 1 && lengths[3] > lengths[0],
        "{lengths:?}"
    );
    let (gamma, speedup) = best(4.0);
    assert!(speedup > 1.0);
    let model = CostModel {
        kv: 4.0,
        ..gathered(0.07)
    };
    assert_eq!(speedup, model.speedup(gamma, tau(0.9, gamma)));
}
