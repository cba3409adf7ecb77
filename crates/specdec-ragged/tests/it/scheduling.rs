//! Who runs when.

use crate::world::{Setup, Target, decode_all, hash_lm, often_right, prompt, setups};
use specdec_core::{FixedLength, PoolView, Request, Scheduler, SeqId, SeqView};
use specdec_ragged::{BatchStats, Fallback, GroupByLength, Metered, StaticBatch, Strategy};
use std::collections::HashMap;
use std::sync::Arc;

/// A pool of (name, content length), all prefilled.
fn pool(rows: &[(u64, usize)], step: u64) -> PoolView {
    let rows = rows
        .iter()
        .map(|&(seq, content)| SeqView::new(SeqId(seq), content, content - 1, 1));
    PoolView::new(rows.collect(), step)
}

fn names(chosen: Vec<SeqId>) -> Vec<u64> {
    chosen.into_iter().map(|seq| seq.0).collect()
}

#[test]
fn a_static_batch_runs_until_all_have_ended() {
    let mut fixed = StaticBatch::new(2);
    let mut refilled = StaticBatch::new(2).with_refill();
    let steps: [(&[u64], &[u64], &[u64]); 5] = [
        (&[0, 1, 2, 3], &[0, 1], &[0, 1]),
        (&[1, 2, 3], &[1], &[1, 2]),
        (&[1, 2, 3, 4], &[1], &[1, 2]),
        (&[2, 3, 4], &[2, 3], &[2, 3]),
        (&[], &[], &[]),
    ];
    for (step, (live, want, want_refilled)) in steps.into_iter().enumerate() {
        let live: Vec<_> = live.iter().map(|&seq| (seq, 5)).collect();
        let view = pool(&live, step as u64);
        assert_eq!(names(fixed.select(&view)), want, "step {step}");
        assert_eq!(names(refilled.select(&view)), want_refilled, "step {step}");
    }
}

#[test]
fn equal_lengths_run_together() {
    let mut groups = GroupByLength::new(6, 2);
    let rows = [(0, 5), (1, 8), (2, 6), (3, 8), (4, 6), (5, 9), (6, 5)];
    assert_eq!(names(groups.select(&pool(&rows, 0))), [1, 3]);
    assert_eq!(groups.window().len(), 6, "the seventh waits");
    // Those that are not prefilled are a group of their own.
    let mut view = pool(&[(0, 5), (1, 9), (2, 9), (3, 9)], 1);
    view.rows[1].cached = 3;
    view.rows[3].cached = 0;
    assert_eq!(names(groups.select(&view)), [1, 3]);
    // No group: those that have waited longest, first admitted first.
    let rows = [(0, 5), (1, 11), (2, 9), (3, 12)];
    assert_eq!(names(groups.select(&pool(&rows, 2))), [0, 2]);
    assert_eq!(names(groups.select(&pool(&rows, 3))), [1, 3]);
    // Fewer rows than places: what there is.
    assert_eq!(names(groups.select(&pool(&[(3, 12)], 4))), [3]);
    assert!(groups.select(&pool(&[], 5)).is_empty());
}

/// The greatest window and wait are no bound, whatever step it is.
#[test]
fn the_greatest_window_and_wait_are_no_bound() {
    for mut groups in [
        GroupByLength::new(usize::MAX, 1),
        GroupByLength::new(4, 1).with_max_wait(u64::MAX),
    ] {
        for step in [0, 1, 2, u64::MAX / 2] {
            assert_eq!(groups.select(&pool(&[(0, 5), (1, 6)], step)).len(), 1);
        }
    }
}

#[test]
fn a_place_in_the_window_is_filled_at_once() {
    let mut groups = GroupByLength::new(3, 2);
    groups.select(&pool(&[(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)], 0));
    assert_eq!(names(groups.window().to_vec()), [0, 1, 2]);
    groups.select(&pool(&[(0, 6), (2, 7), (3, 8), (4, 9)], 1));
    assert_eq!(names(groups.window().to_vec()), [0, 2, 3]);
    groups.select(&pool(&[(3, 8), (4, 9)], 2));
    assert_eq!(names(groups.window().to_vec()), [3, 4]);
}

#[test]
fn the_nearest_lengths_run_together() {
    let mut groups = GroupByLength::new(6, 3).with_fallback(Fallback::Nearest);
    let rows = [(0, 5), (1, 30), (2, 11), (3, 12), (4, 31), (5, 14)];
    assert_eq!(names(groups.select(&pool(&rows, 0))), [2, 3, 5]);
    // Of runs as tight as each other, the one that has waited longer.
    let mut pairs = GroupByLength::new(6, 2).with_fallback(Fallback::Nearest);
    let rows = [(0, 20), (1, 21), (2, 30), (3, 31)];
    assert_eq!(names(pairs.select(&pool(&rows, 0))), [0, 1]);
    assert_eq!(names(pairs.select(&pool(&rows, 1))), [0, 1]);
    assert_eq!(names(pairs.select(&pool(&rows, 2))), [2, 3]);
}

#[test]
fn short_prompts_are_admitted_first_if_asked() {
    let mut by_length = GroupByLength::new(3, 2).admitting_by_length();
    let mut rows = pool(&[(0, 9), (1, 2), (2, 7), (3, 2), (4, 3)], 0);
    for row in &mut rows.rows {
        row.emitted = 0;
    }
    assert_eq!(names(by_length.select(&rows)), [1, 3]);
    assert_eq!(names(by_length.window().to_vec()), [1, 3, 4]);
    let mut in_order = GroupByLength::new(3, 2);
    in_order.select(&rows);
    assert_eq!(names(in_order.window().to_vec()), [0, 1, 2]);
}

/// C38: however lengths fall, each member of the window runs in time.
#[test]
fn c38_nobody_starves() {
    for (window, rows, wait) in [
        (6, 2, None),
        (6, 2, Some(3)),
        (7, 3, Some(1)),
        (48, 4, None),
        (5, 9, None),
    ] {
        for fallback in [Fallback::Oldest, Fallback::Nearest] {
            let mut groups = GroupByLength::new(window, rows).with_fallback(fallback);
            if let Some(wait) = wait {
                groups = groups.with_max_wait(wait);
            }
            let bound = groups.max_wait();
            assert_eq!(
                bound,
                wait.unwrap_or((3 * window.max(rows)).div_ceil(rows) as u64)
                    .max(window.max(rows).div_ceil(rows) as u64)
            );
            // Many of one length, which would run for ever, and some of other lengths.
            let mut content: HashMap<u64, usize> = HashMap::new();
            let mut since: HashMap<SeqId, u64> = HashMap::new();
            let mut longest = 0;
            let live: Vec<u64> = (0..(window + 3) as u64).collect();
            for step in 0..400u64 {
                let view: Vec<(u64, usize)> = live
                    .iter()
                    .map(|&seq| {
                        (
                            seq,
                            *content.entry(seq).or_insert(if seq % 3 == 0 {
                                50 + seq as usize
                            } else {
                                7
                            }),
                        )
                    })
                    .collect();
                let chosen = groups.select(&pool(&view, step));
                for &seq in groups.window() {
                    since.entry(seq).or_insert(step);
                }
                for &seq in &chosen {
                    since.insert(seq, step);
                }
                let waits = groups.window().iter().map(|seq| step - since[seq]);
                longest = longest.max(waits.max().unwrap_or(0));
            }
            assert!(
                longest <= bound,
                "{longest} of {bound}, window {window}, {fallback:?}"
            );
            if window > 2 * rows {
                assert!(longest > 1, "groups had their way: {longest}");
            }
        }
    }
}

/// C38 as it is written: one long row and twenty short ones, decoded.
#[test]
fn c38_one_long_row_and_twenty_short_ones() {
    let model = hash_lm(20);
    let mut prompts = vec![prompt(60)];
    prompts.extend((0..20).map(|i| prompt(2 + i % 2)));
    let target: Target = Arc::new(model.clone());
    let setup = Setup {
        strategy: Strategy::ExSpec { window: 6 },
        rows: 2,
    };
    let drafter = often_right(&prompts, 0.6);
    let (mut decoder, meters) = setup.measured(&target, drafter, FixedLength(3));
    let done = decode_all(
        &mut decoder,
        &target,
        &prompts,
        |i| if i == 0 { 40 } else { 8 },
    );
    for (done, prompt) in done.values().zip(&prompts) {
        assert_eq!(done.tokens, model.greedy(prompt, done.tokens.len()));
    }
    let stats = meters.batch();
    assert!(stats.longest_wait <= 9, "{stats:?}");
    assert!(stats.grouped > 0 && stats.fallback() > 0, "{stats:?}");
    assert_eq!(stats.grouped + stats.fallback(), stats.rounds);
}

/// What refilling does and what grouping does, apart: rounds and rows a round of each strategy.
#[test]
fn refilling_keeps_places_filled() {
    let model = hash_lm(20);
    let prompts: Vec<_> = (0..12).map(|i| prompt(1 + i % 5)).collect();
    let run = |strategy| {
        let setup = Setup { strategy, rows: 2 };
        let target: Target = Arc::new(model.clone());
        let drafter = often_right(&prompts, 0.6);
        let (mut decoder, meters) = setup.measured(&target, drafter, FixedLength(3));
        let done = decode_all(&mut decoder, &target, &prompts, |i| 4 + 5 * (i % 4));
        for (i, done) in done.values().enumerate() {
            assert_eq!(
                done.tokens,
                model.greedy(&prompts[i], 4 + 5 * (i % 4)),
                "{strategy}"
            );
        }
        (meters.batch(), meters.align())
    };
    let (slots, never) = run(Strategy::Slots);
    let (fixed, moved) = run(Strategy::EqSpec);
    let (refilled, moved_too) = run(Strategy::EqSpecRefill);
    let (pool, _) = run(Strategy::ExSpec { window: 12 });
    let filled = |stats: BatchStats| stats.rows_per_round().expect("there were rounds");
    assert_eq!(slots.rounds, refilled.rounds, "the same rows run");
    assert!(fixed.rounds > refilled.rounds, "{fixed:?} {refilled:?}");
    assert!(filled(fixed) < filled(refilled));
    assert!(pool.rounds < fixed.rounds, "{pool:?} {fixed:?}");
    assert!(pool.grouped > refilled.grouped, "{pool:?} {refilled:?}");
    assert_eq!(never, specdec_ragged::AlignStats::default());
    assert!(moved.moved_bytes > 0 && moved_too.moved_bytes > 0);
}

#[test]
fn a_meter_counts_what_was_chosen() {
    let mut scheduler = Metered::new(StaticBatch::new(2));
    let meter = scheduler.meter();
    assert_eq!(meter.read().rows_per_round(), None);
    assert_eq!(meter.read().grouping_rate(), None);
    scheduler.select(&pool(&[(0, 5), (1, 5)], 0));
    scheduler.select(&pool(&[(0, 6), (1, 8)], 1));
    scheduler.select(&pool(&[(1, 9)], 5));
    scheduler.select(&pool(&[], 6));
    let stats = meter.read();
    assert_eq!((stats.rounds, stats.rows, stats.grouped), (3, 5, 2));
    assert_eq!((stats.fallback(), stats.longest_wait), (1, 4));
    // Of one length, and one of them not prefilled: no group.
    let mut mixed = pool(&[(2, 9), (3, 9)], 7);
    mixed.rows[1].cached = 4;
    scheduler.select(&mixed);
    assert_eq!((meter.read().rounds, meter.read().grouped), (4, 2));
}

#[test]
fn strategies_have_names() {
    for strategy in Strategy::ALL
        .into_iter()
        .chain([Strategy::ExSpec { window: 48 }])
    {
        assert_eq!(
            strategy.to_string().parse::<Strategy>().ok(),
            Some(strategy)
        );
    }
    assert_eq!(
        "exspec".parse::<Strategy>().ok(),
        Some(Strategy::ExSpec { window: 32 })
    );
    for bad in ["", "slot", "exspec:", "exspec:0", "exspec:-1"] {
        let error = bad
            .parse::<Strategy>()
            .expect_err("no strategy")
            .to_string();
        assert!(error.contains("eqspec-refill"), "{error}");
    }
}

/// One row in a step is a legal batch of every strategy.
#[test]
fn batches_of_one() {
    let model = hash_lm(20);
    let prompts = [4, 1, 9].map(prompt);
    for setup in setups() {
        let setup = Setup { rows: 0, ..setup };
        let target: Target = Arc::new(model.clone());
        let mut decoder = setup.decoder(&target, often_right(&prompts, 0.6), FixedLength(3));
        for prompt in &prompts {
            let request = Request::new(prompt.clone()).max_new_tokens(9);
            decoder.submit(request).expect("a good request");
        }
        for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
            assert_eq!(done.tokens, model.greedy(prompt, 9), "{setup:?}");
        }
    }
}
