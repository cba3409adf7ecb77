use super::*;
use crate::{AdaptiveOptions, Measurements, RakvError, Reason, break_even};

/// C3: break-even in closed form.
#[test]
fn c3_break_even() {
    let near = |got: Option<f64>, want: f64| {
        assert!(
            got.is_some_and(|a| (a - want).abs() < 5e-4),
            "{got:?} instead of {want}"
        );
    };
    near(break_even(1, 1.3), 0.300);
    near(break_even(4, 3.06 + 4.0 * 0.05), 0.784);
    assert_eq!(break_even(4, 5.0), None);
    assert_eq!(break_even(4, 1.0), Some(0.0));
    // The published band from one reading: a cycle of 1 + 0.89 k steps.
    near(break_even(1, 1.89), 0.890);
    near(break_even(8, 1.0 + 8.0 * 0.89), 0.974);
    let rising: Vec<f64> = (0..40)
        .filter_map(|i| break_even(4, 1.0 + 0.1 * f64::from(i)))
        .collect();
    assert!(
        rising.len() == 40 && rising.windows(2).all(|w| w[0] < w[1]),
        "{rising:?}"
    );
}

/// C3 against the simulated world: around the table's break-even, drafting goes from losing to
/// winning.
#[test]
fn c3_break_even_is_where_drafting_begins_to_pay() {
    let table = A64.table();
    let at = table.break_even(0, 1, 64, 4).expect("it pays somewhere");
    assert!((0.75..0.81).contains(&at), "{at}");
    let steps = |acceptance: Process| {
        let world = World::new(A64, acceptance, 1);
        world.fixed(4).steps / world.fixed(0).steps
    };
    assert!(steps(|_| 0.75) > 1.0 && steps(|_| 0.81) < 1.0);
}

/// C10: a table that falls somewhere is repaired for decisions and kept as measured.
#[test]
fn c10_falling_cells_are_repaired() {
    let table = CostTable::flat(
        1.0,
        &[(1, 2.0), (2, 4.0), (4, 3.0), (8, 5.0)],
        &[("d", 0.1)],
    )
    .expect("a table");
    let got: Vec<f64> = [0, 1, 2, 4, 8]
        .map(|k| table.verify_seconds(1, 1, k))
        .into();
    assert_eq!(got, [1.0, 2.0, 3.5, 3.5, 5.0]);
    assert_eq!(table.measurements().verify, [1.0, 2.0, 4.0, 3.0, 5.0]);
    assert_eq!(table.verify_seconds(1, 1, 6), 4.25, "between lengths");
}

#[test]
fn tables_that_make_no_sense_are_refused() {
    let good = A64.table().measurements().clone();
    let spoilt: [fn(&mut Measurements); 8] = [
        |m| m.lengths[0] = 1,
        |m| m.lengths = vec![0, 2, 2, 4, 8],
        |m| m.rows.clear(),
        |m| m.verify[1] = f64::NAN,
        |m| m.verify[0] = 0.0,
        |m| {
            m.verify.pop();
        },
        |m| m.sources[0].draft[2] = -1.0,
        |m| m.restore.each = f64::INFINITY,
    ];
    for (i, spoil) in spoilt.into_iter().enumerate() {
        let mut raw = good.clone();
        spoil(&mut raw);
        let refused = CostTable::new(raw);
        assert!(
            matches!(refused, Err(RakvError::Table(_))),
            "case {i}: {refused:?}"
        );
    }
    let wrong = AdaptiveOptions {
        memory: 1.0,
        ..AdaptiveOptions::default()
    };
    let refused = crate::Adaptive::with_options(A64.table(), wrong);
    assert!(matches!(
        refused,
        Err(RakvError::Setting {
            setting: "memory",
            ..
        })
    ));
}

/// Between rows and contexts a table is linear, and beyond them too.
#[test]
fn cells_lie_on_lines() {
    let raw = Measurements {
        rows: vec![1, 4],
        contexts: vec![64, 256],
        lengths: vec![0, 4],
        verify: vec![1.0, 2.0, 3.0, 4.0, 2.0, 4.0, 6.0, 8.0],
        ..Measurements::default()
    };
    let table = CostTable::new(raw).expect("a table");
    assert_eq!(table.verify_seconds(1, 64, 0), 1.0);
    assert_eq!(table.verify_seconds(1, 160, 0), 2.0);
    assert_eq!(
        table.verify_seconds(1, 448, 4),
        6.0,
        "beyond the last context"
    );
    assert_eq!(table.verify_seconds(1, 0, 0), 1.0, "below the first");
    assert_eq!(
        table.verify_seconds(7, 64, 0),
        3.0,
        "beyond the last number of rows"
    );
    assert_eq!(table.verify_seconds(4, 64, 2), 3.0, "between lengths");
}

/// C7: the machine becomes three times slower, one step stalls for two seconds: no decision
/// changes.
#[test]
fn c7_a_slow_machine_and_a_stalled_step_change_no_decision() {
    for acceptance in [(|_| 0.5) as Process, |_| 0.9] {
        let quiet = World::new(A64, acceptance, 4);
        let lengths = |world: &World| {
            let run = world.run(&mut Adaptive::new(A64.table()), None);
            run.rounds.iter().map(|r| r.0).collect::<Vec<_>>()
        };
        let want = lengths(&quiet);
        let mut world = quiet;
        world.noise = |round, _| if round > 3_000 { 3.0 } else { 1.0 };
        assert_eq!(lengths(&world), want, "three times slower");
        world.noise = |round, _| if round % 500 == 7 { 200.0 } else { 1.0 };
        assert_eq!(lengths(&world), want, "stalls");
        world.noise = |round, _| if round % 3 == 0 { 0.0 } else { 1.0 };
        assert_eq!(lengths(&world), want, "times of nothing");
        world.noise = |round, _| if round == 0 { 500.0 } else { 1.0 };
        assert_eq!(lengths(&world), want, "a first step that compiles kernels");
    }
}

/// C7: only rounds with drafts become three times slower: lengths fall.
#[test]
fn c7_dearer_drafts_shorten_drafts() {
    let mut world = World::new(PACKED, |_| 0.85, 4);
    let before = world.run(&mut Adaptive::new(PACKED.table()), None);
    assert!(before.share(0, 4) > 0.8, "{}", before.share(0, 4));
    world.noise = |round, k| if round > 1_000 && k > 0 { 4.0 } else { 1.0 };
    let after = world.run(&mut Adaptive::new(PACKED.table()), None);
    assert!(after.share(15_000, 0) > 0.9, "{}", after.share(15_000, 0));
}

/// C8: costs and yields equal within half a percent: hardly any change.
#[test]
fn c8_hysteresis() {
    // E(1) = 1.8 and E(2) = 2.44 at a = .8.
    let costs = Costs {
        cycles: [1.0, 1.5, 2.44 / 1.8 * 1.5 * 1.004, 4.0, 8.0],
        draft: 0.05,
    };
    let world = World::new(costs, |_| 0.8, 8);
    let mut controller = Adaptive::new(costs.table());
    let run = world.run(&mut controller, None);
    let switches = controller.report().switches;
    let rounds = run.rounds.len() as u64;
    assert!(
        switches * 100 <= 2 * rounds,
        "{switches} switches in {rounds} rounds"
    );
}

/// C1: one token left: nothing is drafted; never more than the row can use.
#[test]
fn c1_lengths_stay_within_what_is_left() {
    let mut world = World::new(PACKED, |_| 1.0, 1);
    (world.tokens, world.outputs) = (500, (1, 12));
    let mut controller = Adaptive::new(PACKED.table());
    let run = world.run(&mut controller, None);
    assert!(run.share(0, 0) < 0.5);
    let options = AdaptiveOptions {
        start: 1.0,
        ..AdaptiveOptions::default()
    };
    let mut one = Adaptive::with_options(PACKED.table(), options).expect("good options");
    for (max_draft, most) in [(0, 0), (1, 1), (2, 2), (3, 3), (7, 7), (100, 8)] {
        let mut view = SeqView::new(SeqId(max_draft as u64), 10, 9, 0);
        (view.max_draft, view.left) = (max_draft, max_draft + 1);
        let plan = one.plan(&PoolView::new(vec![view], 0));
        assert_eq!(plan.lengths, [most]);
        let decision = one
            .decision(SeqId(max_draft as u64))
            .expect("it was planned");
        assert_eq!(decision.reason == Reason::NoRoom, most == 0);
    }
}

/// C9: a drafter that must first read the prompt is not worth it for a short output.
#[test]
fn c9_catching_up_must_be_earned_back() {
    let mut raw = A1024.table().measurements().clone();
    let plan = |raw: &Measurements, left: usize| {
        let mut controller = Adaptive::new(CostTable::new(raw.clone()).expect("a table"));
        let mut view = SeqView::new(SeqId(0), 512, 511, 0);
        (view.max_draft, view.left) = (left - 1, left);
        let k = controller.plan(&PoolView::new(vec![view], 0)).lengths[0];
        (k, controller.decision(SeqId(0)).expect("planned").reason)
    };
    // 512 tokens at 0.01 steps each: five steps.
    raw.sources[0].catch_up.each = 0.01 * PLAIN;
    assert_eq!(plan(&raw, 8), (0, Reason::CatchUp));
    let (k, reason) = plan(&raw, 256);
    assert!(k > 0 && reason == Reason::Better);
    // With nothing to catch up, both draft.
    raw.sources[0].catch_up.each = 0.0;
    assert!(plan(&raw, 8).0 > 0 && plan(&raw, 256).0 > 0);
}

/// Predicted times follow measured ones, and the report says by how much they were off.
#[test]
fn predictions_are_compared_with_what_was_measured() {
    let mut world = World::new(PACKED, |_| 0.9, 6);
    world.noise = |_, _| 2.0;
    let mut controller = Adaptive::new(PACKED.table());
    let run = world.run(&mut controller, None);
    let report = controller.report();
    // The last sequence is decoded to its own end.
    let tokens = world.tokens as u64;
    assert!(
        (tokens..tokens + 256).contains(&report.tokens),
        "{}",
        report.tokens
    );
    assert!((report.slowdown - 2.0).abs() < 0.05, "{}", report.slowdown);
    let error = report.time_error().expect("steps were measured");
    assert!(error < 0.05, "{error}");
    assert!(
        (report.measured / report.predicted - 1.0).abs() < 0.05,
        "{report:?}"
    );
    assert!((report.measured / (run.steps * PLAIN * 2.0) - 1.0).abs() < 1e-3);
    let regret = report.regret().expect("rounds were made");
    assert!(regret.abs() < 0.02, "{regret}");
    assert!(
        report.to_string().contains("acceptance drafter 0.9"),
        "{report}"
    );
}
