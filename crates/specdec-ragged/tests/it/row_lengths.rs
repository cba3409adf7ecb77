//! Draft lengths per row, from scripted outcomes.

use specdec_core::{Controller, Outcome, PoolView, RowOutcome, SeqId, SeqView};
use specdec_ragged::{RowLengths, RowLengthsOptions};
use std::collections::BTreeMap;
use std::time::Duration;

/// What passes cost, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    step: u64,
    pass: u64,
    token: u64,
}

const CHEAP: Times = Times {
    step: 50,
    pass: 1000,
    token: 10,
};

/// Runs rounds of these rows: `accepts(row, round)` of the drafted tokens are accepted. Returns the
/// lengths of each row.
fn rounds(
    controller: &mut RowLengths,
    names: &[u64],
    times: Times,
    rounds: std::ops::Range<usize>,
    accepts: impl Fn(u64, usize) -> usize,
) -> BTreeMap<u64, Vec<usize>> {
    let mut given: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for round in rounds {
        let rows = names.iter().map(|&name| {
            let mut view = SeqView::new(SeqId(name), 100 + round, 99 + round, round);
            view.max_draft = 100;
            view
        });
        let view = PoolView::new(rows.collect(), round as u64);
        let plan = controller.plan(&view);
        assert_eq!(plan, controller.plan(&view), "planning changes nothing");
        let mut outcome = Outcome::default();
        for (&name, &k) in names.iter().zip(&plan.lengths) {
            given.entry(name).or_default().push(k);
            outcome.block += k + 1;
            let row = RowOutcome::new(SeqId(name), k, accepts(name, round).min(k));
            outcome.rows.push(row);
        }
        let steps = plan.lengths.iter().max().copied().unwrap_or(0) as u64;
        outcome.draft_time = Duration::from_micros(times.step * steps);
        let verify = times.pass + times.token * outcome.block as u64;
        outcome.verify_time = Duration::from_micros(verify);
        controller.observe(&outcome);
    }
    given
}

/// F7: easy, hard, easy.
#[test]
fn f7_an_easy_a_hard_and_an_easy_prompt() {
    let mut controller = RowLengths::default();
    let mut run = |name: u64, accepts: usize| {
        let given = rounds(&mut controller, &[name], CHEAP, 0..30, |_, _| accepts);
        controller.evict(SeqId(name));
        given[&name].clone()
    };
    let (first, hard, third) = (run(0, 100), run(1, 0), run(2, 100));
    assert_eq!(first, third);
    assert_eq!(first[0], 4);
    assert_eq!(first[5..], [8; 25], "an oracle rises to the maximum");
    assert_eq!(hard[0], 4);
    let settled = hard
        .iter()
        .position(|k| *k == 0)
        .expect("it falls to the minimum");
    assert!(settled <= 12, "{hard:?}");
    assert!(
        hard.windows(2).take(settled).all(|w| w[1] <= w[0]),
        "{hard:?}"
    );
    assert!(hard[settled..].iter().all(|k| *k <= 1), "{hard:?}");
}

/// Promise 4: what it costs to have asked is bounded. Tries become rarer and do not stop.
#[test]
fn drafts_that_never_pay_are_tried_ever_more_rarely() {
    let mut controller = RowLengths::default();
    let given = rounds(&mut controller, &[0], CHEAP, 0..600, |_, _| 0);
    let tries: Vec<usize> = (20..600).filter(|&i| given[&0][i] > 0).collect();
    let gaps: Vec<usize> = tries.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.windows(2).all(|w| w[0] <= w[1]), "{gaps:?}");
    assert_eq!(gaps.last(), Some(&65), "{gaps:?}");
    let wasted: usize = given[&0].iter().sum();
    assert!(wasted < 50, "{wasted} tokens drafted in 600 rounds");
}

/// One text that turns hard and easy again: the lengths come back.
#[test]
fn a_row_recovers_when_its_drafts_pay_again() {
    let mut controller = RowLengths::default();
    let accepts = |_, round: usize| if (40..80).contains(&round) { 0 } else { 100 };
    let given = rounds(&mut controller, &[0], CHEAP, 0..180, accepts);
    let given = &given[&0];
    assert_eq!((given[39], given[79]), (8, 0), "{given:?}");
    assert_eq!(given[170..], [8; 10], "{given:?}");
}

/// F7: a row's lengths do not depend on its neighbours' drafts.
#[test]
fn f7_rows_do_not_depend_on_their_neighbours() {
    let mixed = |name: u64, round: usize| match name {
        0 => (round * 7 + 3) % 6,
        1 => 100,
        2 => 0,
        _ => (round / 10 % 2) * 100,
    };
    let others = |name: u64, round: usize| match name {
        0 => (round * 7 + 3) % 6,
        _ => (round + name as usize) % 3,
    };
    for times in [
        CHEAP,
        Times {
            step: 0,
            pass: 500,
            token: 20,
        },
    ] {
        let mut one = RowLengths::default();
        let mut other = RowLengths::default();
        let one = rounds(&mut one, &[0, 1, 2, 3], times, 0..120, mixed);
        let other = rounds(&mut other, &[0, 1, 2, 3], times, 0..120, others);
        assert_eq!(one[&0], other[&0]);
        assert_ne!(one[&1], other[&1]);
        assert!(one[&0].iter().any(|k| *k > 0));
    }
}

/// Draft steps that cost as much as a pass never pay; steps that cost nothing do, even for the half
/// of them that is accepted.
#[test]
fn costs_decide() {
    let half = |_, round: usize| round % 2;
    let last = |times: Times, names: &[u64]| {
        let mut controller = RowLengths::default();
        let given = rounds(&mut controller, names, times, 0..100, half);
        given[&0][60..].to_vec()
    };
    let (step, pass, token) = (0, 1000, 0);
    assert!(
        last(Times { step, pass, token }, &[0])
            .iter()
            .all(|k| *k >= 1)
    );
    let dear = last(
        Times {
            step: 1100,
            pass,
            token,
        },
        &[0],
    );
    assert!(
        dear.iter().all(|k| *k <= 1) && dear.contains(&0),
        "{dear:?}"
    );
    // A pass that grows with its tokens: in a large batch a token costs as much as a row.
    let times = Times {
        step,
        pass: 1000,
        token: 100,
    };
    let many: Vec<u64> = (0..64).collect();
    let alone: usize = last(times, &[0]).iter().sum();
    let among: usize = last(times, &many).iter().sum();
    assert!(among * 4 < alone, "{among} of {alone}");
}

#[test]
fn lengths_stay_within_the_limits() {
    for (min, max, start) in [(0, 0, 4), (2, 2, 0), (1, 5, 9), (3, 16, 3), (0, 1, 1)] {
        let options = RowLengthsOptions {
            min,
            max,
            start,
            ..RowLengthsOptions::default()
        };
        let mut controller = RowLengths::with_options(options).expect("good options");
        let accepts = |_, round: usize| if round < 40 { 100 } else { 0 };
        let given = rounds(&mut controller, &[0], CHEAP, 0..80, accepts);
        let given = &given[&0];
        assert!(given.iter().all(|k| (min..=max).contains(k)), "{given:?}");
        assert!(given[20..40].iter().all(|k| *k == max), "{given:?}");
        assert!(given[60..].contains(&min), "{given:?}");
    }
    // And within what a row can use.
    let mut view = SeqView::new(SeqId(0), 9, 8, 1);
    view.max_draft = 3;
    let plan = RowLengths::up_to(8).plan(&PoolView::new(vec![view], 0));
    assert_eq!(plan.lengths, [3]);
}

/// A drafter that finds nothing to propose teaches nothing and costs the row nothing.
#[test]
fn drafts_that_were_not_made_do_not_count() {
    let mut controller = RowLengths::default();
    let mut view = SeqView::new(SeqId(0), 9, 8, 1);
    view.max_draft = 100;
    let view = PoolView::new(vec![view], 0);
    for _ in 0..50 {
        let mut outcome = Outcome::default();
        let mut row = RowOutcome::new(SeqId(0), 4, 0);
        row.drafted = 0;
        outcome.rows.push(row);
        outcome.block = 1;
        outcome.verify_time = Duration::from_millis(1);
        controller.observe(&outcome);
        assert_eq!(controller.plan(&view).lengths, [4]);
    }
}

#[test]
fn options_out_of_range_are_named() {
    let good = RowLengthsOptions::default;
    for (bad, name) in [
        (RowLengthsOptions { min: 9, ..good() }, "max"),
        (RowLengthsOptions { retry: 0, ..good() }, "retry"),
        (
            RowLengthsOptions {
                max_retry: 7,
                ..good()
            },
            "max_retry",
        ),
        (
            RowLengthsOptions {
                least_cost: 0.0,
                ..good()
            },
            "least_cost",
        ),
        (
            RowLengthsOptions {
                least_cost: f64::NAN,
                ..good()
            },
            "least_cost",
        ),
    ] {
        let error = RowLengths::with_options(bad)
            .expect_err("out of range")
            .to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
