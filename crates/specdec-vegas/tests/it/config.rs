//! Budgets and options.

use crate::world::bare;
use specdec_core::{BuildError, SeqId};
use specdec_vegas::{
    Candidates, CheckedConfig, Random, Ranked, Score, Select, Streaming, VegasConfig,
};

/// Rounding up is that of integers: neither 211 nor 8.
#[test]
fn t08_budgets_round_as_integers_do() {
    let bare = bare(0.07, 1);
    for (keys, want) in [(3000, 210), (100, 7), (8192, 574), (1, 1), (101, 8), (0, 1)] {
        assert_eq!(bare.budget(keys, usize::MAX), want, "{keys}");
    }
    let paper = VegasConfig::paper().check().expect("a good config");
    assert_eq!(paper.budget(3657, 3657), 256);
    assert_eq!(paper.budget(3658, 3658), 257);
    assert_eq!(paper.budget(100, 100), 100);
    let capped = VegasConfig {
        max: Some(300),
        ..VegasConfig::paper()
    };
    let capped = capped.check().expect("a good config");
    assert_eq!(capped.budget(8192, 8192), 300);
    assert_eq!(capped.budget(usize::MAX, usize::MAX), 300);
}

#[test]
fn options_out_of_range_are_named() {
    let good = VegasConfig::default();
    assert!(good.clone().check().is_ok());
    let bad = [
        (
            "ratio",
            VegasConfig {
                ratio: 0.0,
                ..good.clone()
            },
        ),
        (
            "ratio",
            VegasConfig {
                ratio: 1.01,
                ..good.clone()
            },
        ),
        (
            "ratio",
            VegasConfig {
                ratio: f64::NAN,
                ..good.clone()
            },
        ),
        (
            "min",
            VegasConfig {
                min: 0,
                ..good.clone()
            },
        ),
        (
            "max",
            VegasConfig {
                max: Some(63),
                ..good.clone()
            },
        ),
        (
            "coverage",
            VegasConfig {
                coverage: Some(0.0),
                ..good.clone()
            },
        ),
        (
            "coverage",
            VegasConfig {
                coverage: Some(f64::NAN),
                ..good.clone()
            },
        ),
        (
            "coverage",
            VegasConfig {
                coverage: Some(0.9),
                score: Score::Logits,
                ..good.clone()
            },
        ),
        (
            "page",
            VegasConfig {
                page: 0,
                ..good.clone()
            },
        ),
        (
            "plain_refresh",
            VegasConfig {
                plain_refresh: 0,
                ..good
            },
        ),
    ];
    for (name, config) in bad {
        match config.check() {
            Err(BuildError::Setting { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn from(weights: &[f32], least: usize, budget: usize) -> Candidates<'_> {
    let mut from = Candidates::new(SeqId(3), 1, weights.len(), weights);
    from.least = least;
    from.budget = budget;
    from
}

#[test]
fn reserved_positions_count_and_sinks_come_first() {
    let weights: Vec<f32> = (0..20)
        .map(|i| if i == 9 { 1.0 } else { i as f32 * 1e-3 })
        .collect();
    let chosen = |sinks, recent, budget| {
        let rule = Ranked {
            sinks,
            recent,
            ..Ranked::default()
        };
        rule.select(&from(&weights, 1, budget)).expect("some")
    };
    assert_eq!(chosen(2, 3, 6), [0, 1, 9, 17, 18, 19]);
    assert_eq!(chosen(2, 3, 7), [0, 1, 9, 16, 17, 18, 19]);
    assert_eq!(chosen(2, 3, 4), [0, 1, 18, 19]);
    assert_eq!(chosen(5, 9, 3), [0, 1, 2]);
    assert_eq!(chosen(0, 0, 2), [9, 19]);
    let all = Ranked {
        sinks: 2,
        recent: 3,
        ..Ranked::default()
    };
    assert_eq!(all.select(&from(&weights, 1, 20)), None);
    assert_eq!(all.select(&from(&weights, 1, 99)), None);
}

#[test]
fn coverage_keeps_what_reaches_its_share() {
    let weights = [0.05, 0.4, 0.05, 0.3, 0.05, 0.15];
    let chosen = |sinks, recent, share, (least, budget)| {
        let coverage = Some(share);
        let rule = Ranked {
            sinks,
            recent,
            coverage,
            page: 1,
        };
        rule.select(&from(&weights, least, budget))
    };
    assert_eq!(chosen(0, 0, 0.39, (1, 6)), Some(vec![1]));
    assert_eq!(chosen(0, 0, 0.41, (1, 6)), Some(vec![1, 3]));
    assert_eq!(chosen(0, 0, 0.84, (1, 6)), Some(vec![1, 3, 5]));
    // The reserved ones may be enough already; then nothing else is kept.
    assert_eq!(chosen(2, 0, 0.44, (1, 6)), Some(vec![0, 1]));
    assert_eq!(chosen(1, 1, 0.5, (1, 6)), Some(vec![0, 1, 5]));
    // Bounds.
    assert_eq!(chosen(0, 0, 0.1, (3, 6)), Some(vec![1, 3, 5]));
    assert_eq!(chosen(0, 0, 0.99, (1, 2)), Some(vec![1, 3]));
    assert_eq!(chosen(0, 0, 1.0, (1, 6)), None);
    // Where nothing weighs anything, the bounds decide.
    let rule = Ranked {
        coverage: Some(0.5),
        ..Ranked::default()
    };
    assert_eq!(rule.select(&from(&[0.0; 6], 2, 6)), Some(vec![0, 1]));
    assert_eq!(rule.select(&from(&[f32::NAN; 6], 2, 6)), Some(vec![0, 1]));
    // Equal weights: half of them, to rounding.
    let equal = [0.1f32; 10];
    let half = rule.select(&from(&equal, 1, 10)).expect("some");
    assert!(half.len() == 5 || half.len() == 6, "{half:?}");
}

#[test]
fn coverage_keeps_all_only_when_it_must() {
    let config = |coverage, max| -> CheckedConfig {
        let config = VegasConfig {
            coverage,
            max,
            min: 4,
            ..VegasConfig::paper()
        };
        config.check().expect("a good config")
    };
    let open = config(Some(0.9), None);
    assert_eq!((open.budget(100, 90), open.least(90)), (90, 4));
    assert!(!open.keeps_all(100, 90));
    assert!(open.keeps_all(100, 4));
    assert_eq!(config(Some(0.9), Some(20)).budget(100, 90), 20);
    assert!(config(None, None).keeps_all(40, 4));
    assert!(!config(None, None).keeps_all(40, 5));
}

/// Pages of four over ten candidates: the last one is short.
#[test]
fn pages_are_kept_whole() {
    let weights = [0.0, 0.3, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.35, 0.0];
    let chosen = |rule: Ranked, budget| {
        let rule = Ranked { page: 4, ..rule };
        rule.select(&from(&weights, 1, budget))
    };
    let bare = Ranked::default();
    assert_eq!(chosen(bare, 4), Some(vec![4, 5, 6, 7]));
    assert_eq!(chosen(bare, 7), Some(vec![4, 5, 6, 7]));
    assert_eq!(chosen(bare, 8), Some(vec![4, 5, 6, 7, 8, 9]));
    // Less than a page is a page, all is all.
    assert_eq!(chosen(bare, 1), Some(vec![4, 5, 6, 7]));
    assert_eq!(chosen(bare, 0), Some(vec![]));
    assert_eq!(chosen(bare, 10), None);
    let sinks = Ranked { sinks: 1, ..bare };
    assert_eq!(chosen(sinks, 4), Some(vec![0, 1, 2, 3]));
    assert_eq!(chosen(sinks, 8), Some((0..8).collect()));
    let recent = Ranked { recent: 2, ..bare };
    assert_eq!(chosen(recent, 4), Some(vec![8, 9]));
    let more = Ranked { recent: 3, ..bare };
    assert_eq!(chosen(more, 8), Some((4..10).collect()));
    let share = |share| Ranked {
        coverage: Some(share),
        ..bare
    };
    assert_eq!(chosen(share(0.3), 10), Some(vec![4, 5, 6, 7]));
    assert_eq!(chosen(share(0.5), 10), Some((4..10).collect()));
    assert_eq!(chosen(share(1.0), 10), None);
    // Pages of one and of none are single positions.
    for page in [0, 1] {
        let rule = Ranked { page, ..bare };
        assert_eq!(rule.select(&from(&weights, 1, 2)), Some(vec![1, 8]));
    }
}

/// The baselines spend the same budget.
#[test]
fn baselines_keep_as_many() {
    let weights = [0.0; 50];
    let few = from(&weights, 1, 12);
    let streaming = Streaming::default().select(&few).expect("some");
    assert_eq!(streaming, [0, 1, 2, 3, 42, 43, 44, 45, 46, 47, 48, 49]);
    assert_eq!(
        Streaming::default().select(&from(&weights, 1, 3)),
        Some(vec![0, 1, 2])
    );
    let random = |seed, from: &Candidates<'_>| {
        let mut keys = Random { seed }.select(from).expect("some");
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let first = random(1, &few);
    assert_eq!(first.len(), 12);
    assert!(first.iter().all(|&key| key < 50));
    assert_eq!(first, random(1, &few));
    let mut others = vec![random(2, &few)];
    let change: [fn(&mut Candidates<'_>); 3] =
        [|c| c.seq = SeqId(4), |c| c.layer = 2, |c| c.count = 49];
    for change in change {
        let mut from = few;
        change(&mut from);
        others.push(random(1, &from));
    }
    assert!(others.iter().all(|other| *other != first), "{others:?}");
    // All are drawn equally often.
    let mut drawn = [0u64; 50];
    for seed in 0..2000 {
        random(seed, &few)
            .iter()
            .for_each(|&key| drawn[key as usize] += 1);
    }
    assert_eq!(
        specdec_testkit::oracle::unlikely(&drawn, &[1.0 / 50.0; 50]),
        None
    );
    assert_eq!(Random::default().select(&from(&weights, 1, 50)), None);
    assert_eq!(Streaming::default().select(&from(&weights, 1, 50)), None);
}

/// Weights that are no numbers rank last; they never panic and never win.
#[test]
fn t24_not_a_number_ranks_last() {
    let weights = [f32::NAN, 0.1, f32::NAN, 0.3, f32::NEG_INFINITY, 0.2];
    let mut from = Candidates::new(SeqId(0), 0, 6, &weights);
    let chosen = |from: &Candidates<'_>| Ranked::default().select(from).expect("some");
    from.budget = 3;
    assert_eq!(chosen(&from), [1, 3, 5]);
    from.budget = 4;
    assert_eq!(chosen(&from), [0, 1, 3, 5]);
}

#[test]
fn t23_equal_weights_keep_the_lowest_positions() {
    let weights = [0.125; 40];
    let chosen = Ranked::default().select(&from(&weights, 1, 7));
    assert_eq!(chosen, Some((0..7).collect()));
}
