//! Options beyond the walk: the longest expected path, calibration, early stops.

use crate::world::{Stepper, Target, config, decoder, model, prompt, request, target};
use specdec_core::{Phase, Proposal, Rejection, SamplingParams, SeqId, sampling::Sampler};
use specdec_lilicorr::{Calibration, EarlyStop, Lattice, LiLiCorrDrafter, PathRule};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::plain_run;
use std::sync::Arc;

fn draws(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn random_lattice(k: usize, slots: usize, seed: u64) -> Lattice {
    let mut next = draws(seed);
    let mut row = || (0..k).map(|_| (next() * 4.0) as f32).collect::<Vec<f32>>();
    Lattice {
        ids: vec![(0..k as u32).collect(); slots],
        logprobs: (0..slots).map(|_| vec![-1.5; k]).collect(),
        start: row(),
        pairs: (1..slots)
            .map(|_| (0..k).map(|_| row()).collect())
            .collect(),
    }
}

fn expected(lattice: &Lattice, calibration: &Calibration, path: &[usize]) -> f64 {
    let (mut chance, mut sum, mut previous) = (1.0, 0.0, 0);
    for (slot, &choice) in path.iter().enumerate() {
        chance *= calibration.chances(lattice, slot, previous)[choice];
        sum += chance;
        previous = choice;
    }
    sum
}

#[test]
fn the_longest_expected_path_is_the_best_of_all() {
    let calibration = Calibration {
        sharpness: 1.3,
        coverage: vec![0.9, 0.8],
    };
    let (k, slots) = (4usize, 5usize);
    let mut better = 0;
    for seed in 0..30 {
        let lattice = random_lattice(k, slots, seed);
        let (path, value) = lattice.longest_expected(&calibration);
        assert!((expected(&lattice, &calibration, &path) - value).abs() < 1e-12);
        let best = (0..k.pow(slots as u32))
            .map(|n| {
                let path: Vec<usize> = (0..slots).map(|s| n / k.pow(s as u32) % k).collect();
                expected(&lattice, &calibration, &path)
            })
            .fold(0.0, f64::max);
        assert!((best - value).abs() < 1e-12, "{best} {value}");
        better += usize::from(value > expected(&lattice, &calibration, &lattice.greedy()) + 1e-9);
    }
    assert!(better > 0, "the greedy walk is not always the best");
}

#[test]
fn a_fit_finds_the_sharpness_that_made_the_data() {
    let mut next = draws(5);
    let truth = 2.5;
    let rows: Vec<(Vec<f32>, usize)> = (0..4000)
        .map(|_| {
            let scores: Vec<f32> = (0..4).map(|_| (next() * 2.0) as f32).collect();
            let weights: Vec<f64> = scores
                .iter()
                .map(|&s| (f64::from(s) * truth).exp())
                .collect();
            let mut u = next() * weights.iter().sum::<f64>();
            let at = weights.iter().position(|w| {
                u -= w;
                u < 0.0
            });
            (scores, at.unwrap_or(3))
        })
        .collect();
    let fitted = Calibration::fit(&rows).sharpness;
    assert!((fitted / truth - 1.0).abs() < 0.1, "{fitted}");
}

fn drafter(target: &Target) -> LiLiCorrDrafter {
    LiLiCorrDrafter::new(model(&config(&**target), 7), &**target).expect("it fits")
}

/// T55: an early stop looks at the lattice and at earlier choices, never at the token it decides
/// about: over many seeds, drafts end at a place for all tokens that could have been drawn there or
/// for none.
#[test]
fn t55_an_early_stop_does_not_look_at_its_own_token() {
    let target: Target = Arc::new(target(5));
    let content = prompt(9, 288, 1);
    let mut free = drafter(&target);
    let mut stepper = Stepper::new(&target);
    stepper.pass(&mut free, &[(SeqId(0), &content, &[])], Phase::Prefill);
    let stop = EarlyStop {
        least: 0.12,
        calibration: Calibration {
            sharpness: 1.0,
            coverage: vec![1.0; 5],
        },
    };
    let mut stopped = drafter(&target).with_early_stop(stop).expect("in range");
    Stepper::new(&target).pass(&mut stopped, &[(SeqId(0), &content, &[])], Phase::Prefill);
    let mut lengths = std::collections::BTreeMap::new();
    for seed in 0..150 {
        let params = SamplingParams {
            seed: Some(seed),
            ..SamplingParams::sampled(1.0)
        };
        let sampler = Sampler::new(params, Vec::new(), Arc::new(Rejection), 0);
        let whole = &stepper.draft(&mut free, &[(SeqId(0), &content, 5)], &sampler)[0];
        let cut = &stepper.draft(&mut stopped, &[(SeqId(0), &content, 5)], &sampler)[0];
        assert_eq!(cut.tokens, whole.tokens[..cut.tokens.len()]);
        // Whether there is a token at a place is a function of the tokens before it.
        for place in 0..5 {
            let Some(before) = whole.tokens.get(..place) else {
                continue;
            };
            if cut.tokens.len() < place {
                continue;
            }
            let goes_on = cut.tokens.len() > place;
            let known = lengths.entry(before.to_vec()).or_insert(goes_on);
            assert_eq!(*known, goes_on, "after {before:?}");
        }
        if !whole.tokens.is_empty() {
            let Proposal::Sparse { ids, probs } = &whole.proposal else {
                panic!("drawn: {:?}", whole.proposal)
            };
            assert_eq!((ids.len(), probs.len()), (5, 5));
        }
    }
    let ends: std::collections::BTreeSet<bool> = lengths.values().copied().collect();
    assert_eq!(ends.len(), 2, "some drafts stop early and some go on");
}

/// The options never change the output.
#[test]
fn options_keep_the_output() {
    let target: Target = Arc::new(target(5));
    let text = prompt(6, 288, 3);
    for temperature in [0.0, 0.9] {
        let mut sampling = SamplingParams::sampled(temperature);
        sampling.seed = Some(4);
        let ask = || request(&text, 30).sampling(sampling.clone());
        let want = plain_run(&target, VecCache::new(target.spec()), [ask()]).expect("plain");
        let stop = EarlyStop {
            least: 0.2,
            calibration: Calibration::default(),
        };
        let path = PathRule::ExpectedLength(Calibration::default());
        for drafter in [
            drafter(&target).with_early_stop(stop).expect("in range"),
            drafter(&target).with_path(path).expect("in range"),
        ] {
            let done = decoder(&target, drafter, 5, 4)
                .generate(ask())
                .expect("good");
            assert_eq!(done.tokens, want[0].tokens);
        }
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let target: Target = Arc::new(target(5));
    for (least, sharpness) in [(1.5, 1.0), (0.1, 0.0), (0.1, f64::NAN), (f64::NAN, 1.0)] {
        let stop = EarlyStop {
            least,
            calibration: Calibration {
                sharpness,
                coverage: Vec::new(),
            },
        };
        drafter(&target)
            .with_early_stop(stop)
            .expect_err("out of range");
    }
}
