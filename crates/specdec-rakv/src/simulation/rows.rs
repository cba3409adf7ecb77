use super::*;
use crate::{AdaptiveOptions, ControllerState, Reason};

/// Lengths of the rounds of one sequence in which drafts are right with this probability.
fn sequence(controller: &mut Adaptive, name: u64, text: u64, right: f64) -> Vec<usize> {
    let (mut at, mut lengths) = (0, Vec::new());
    while at < 120 {
        let plan = controller.plan(&PoolView::new(vec![view(name, at)], 0));
        let k = plan.lengths[0];
        let accepted = (0..k)
            .take_while(|j| unit(&[text, (at + j) as u64]) < right)
            .count();
        lengths.push(k);
        controller.observe(&outcome(&[(name, at, k, accepted)]));
        at += accepted + 1;
    }
    controller.evict(SeqId(name));
    lengths
}

fn view(name: u64, emitted: usize) -> SeqView {
    let mut view = SeqView::new(SeqId(name), 30 + emitted, 29 + emitted, emitted);
    (view.max_draft, view.left) = (200 - emitted, 201 - emitted);
    view
}

fn outcome(rows: &[(u64, usize, usize, usize)]) -> Outcome {
    let mut outcome = Outcome::default();
    for &(name, emitted, k, accepted) in rows {
        let mut row = RowOutcome::new(SeqId(name), k, accepted);
        row.context = 29 + emitted;
        outcome.block += k + 1;
        outcome.rows.push(row);
    }
    outcome
}

fn independent() -> Adaptive {
    let options = AdaptiveOptions {
        carry_over: false,
        ..AdaptiveOptions::default()
    };
    Adaptive::with_options(PACKED.table(), options).expect("good options")
}

/// F7: an easy, a hard and again an easy prompt: the first and the third have the same lengths.
#[test]
fn f7_easy_hard_easy() {
    let mut controller = independent();
    let first = sequence(&mut controller, 0, 7, 0.95);
    let hard = sequence(&mut controller, 1, 8, 0.1);
    let third = sequence(&mut controller, 2, 7, 0.95);
    assert_eq!(first, third);
    assert_ne!(first, hard);
}

/// F7: the adversary falls to the minimum, the oracle rises to the maximum, all within the limits.
#[test]
fn f7_adversary_and_oracle() {
    for carry_over in [false, true] {
        let options = AdaptiveOptions {
            carry_over,
            ..AdaptiveOptions::default()
        };
        let table = A64.table();
        let mut controller = Adaptive::with_options(table, options).expect("good options");
        let adversary = sequence(&mut controller, 0, 1, 0.0);
        let tail = &adversary[adversary.len() / 2..];
        assert!(tail.iter().all(|k| *k == 0), "{adversary:?}");
        let mut controller = independent();
        let oracle = sequence(&mut controller, 1, 1, 1.0);
        assert_eq!(oracle.iter().rev().nth(1), Some(&8), "{oracle:?}");
        assert!(adversary.iter().chain(&oracle).all(|k| *k <= 8));
    }
}

/// F7: a row's lengths are the same beside any neighbours of the same number.
#[test]
fn f7_a_rows_lengths_do_not_depend_on_its_neighbours_text() {
    let together = |neighbour: f64| {
        let mut controller = Adaptive::new(PACKED.table());
        let (mut at, mut lengths) = ([0; 2], Vec::new());
        while at[0] < 150 && at[1] < 190 {
            let views = vec![view(0, at[0]), view(1, at[1])];
            let plan = controller.plan(&PoolView::new(views, 0));
            let mut rows = Vec::new();
            for (row, right) in [(0, 0.7), (1, neighbour)] {
                let k = plan.lengths[row];
                let hit = |j: &usize| unit(&[row as u64, (at[row] + j) as u64]) < right;
                let accepted = (0..k).take_while(hit).count();
                rows.push((row as u64, at[row], k, accepted));
            }
            lengths.push(plan.lengths[0]);
            controller.observe(&outcome(&rows));
            rows.iter()
                .for_each(|(row, _, _, n)| at[*row as usize] += n + 1);
        }
        lengths
    };
    let (beside_easy, beside_hard) = (together(0.9), together(0.05));
    let n = beside_easy.len().min(beside_hard.len());
    assert!(n > 20);
    assert_eq!(beside_easy[..n], beside_hard[..n]);
}

/// C5: acceptance falls for a while and rises again: how long until lengths follow.
#[test]
fn c5_a_change_of_topic_is_followed() {
    let process: Process = |i| {
        if (4_000..5_500).contains(&i) {
            0.40
        } else {
            0.95
        }
    };
    for (costs, rounds_down, tokens_up) in [
        (B64, 20, 3_000),
        (A64, 25, 1_000),
        (A1024, 100, 300),
        (PACKED, 200, 60),
    ] {
        let (mut downs, mut ups) = (Vec::new(), Vec::new());
        for seed in 0..40 {
            let mut world = World::new(costs, process, seed);
            (world.tokens, world.outputs) = (9_000, (9_000, 9_000));
            let (mut controller, steering) = steered(costs);
            let run = world.run(&mut controller, Some(&steering));
            let low = if costs.cycles[4] < 2.0 { 2 } else { 0 };
            let down = run.rounds.iter().filter(|r| r.2 >= 4_000);
            downs.push(down.take_while(|r| r.0 > low).count());
            let up = run
                .rounds
                .iter()
                .filter(|r| r.2 >= 5_500)
                .find(|r| r.0 >= 4);
            ups.push(up.map_or(usize::MAX, |r| r.2 - 5_500));
        }
        downs.sort_unstable();
        ups.sort_unstable();
        let text = format!("{costs:?}: down {downs:?}, up {ups:?}");
        assert!(downs[39] <= rounds_down * 2, "{text}");
        assert!(ups[20] <= tokens_up, "{text}");
    }
}

/// C11: the same outcomes give the same plans; a controller that goes on from a saved state plans
/// as the one that was saved.
#[test]
fn c11_saved_and_restored() {
    let mut first = Adaptive::new(A1024.table());
    let world = World {
        tokens: 3_000,
        ..World::new(A1024, |_| 0.8, 3)
    };
    let one = world.run(&mut first, None);
    let mut again = Adaptive::new(A1024.table());
    let two = world.run(&mut again, None);
    assert!(
        one.rounds
            .iter()
            .map(|r| r.0)
            .eq(two.rounds.iter().map(|r| r.0))
    );

    let json = serde_json::to_string(&first.state()).expect("a state is plain data");
    let state: ControllerState = serde_json::from_str(&json).expect("what was written");
    let mut restored = Adaptive::new(A1024.table());
    restored.restore(&state).expect("the same table");
    let other = World {
        tokens: 3_000,
        ..World::new(A1024, |_| 0.6, 4)
    };
    let (a, b) = (other.run(&mut first, None), other.run(&mut restored, None));
    assert!(
        a.rounds
            .iter()
            .map(|r| r.0)
            .eq(b.rounds.iter().map(|r| r.0))
    );

    let fresh = Adaptive::new(CostTable::flat(0.01, &[(4, 2.0)], &[("drafter", 0.1)]).expect("ok"));
    assert!(fresh.restore(&state).is_err(), "a state of other lengths");
}

/// Several drafters: each has its own estimates, and the better one is found.
#[test]
fn the_better_drafter_is_found() {
    let verify = [(1, 1.1), (2, 1.2), (4, 1.4), (8, 1.8)];
    let table = CostTable::flat(0.01, &verify, &[("cheap", 0.01), ("dear", 0.10)]).expect("ok");
    for (rights, better) in [([0.3, 0.9], 1), ([0.7, 0.72], 0)] {
        let mut controller = Adaptive::new(table.clone());
        let steering = controller.steering();
        steering.board().drafters = 2;
        let mut chosen = [0, 0];
        for name in 0..40 {
            let mut at = 0;
            while at < 150 {
                let plan = controller.plan(&PoolView::new(vec![view(name, at)], 0));
                let source = steering.source(SeqId(name));
                let k = source.map_or(0, |_| plan.lengths[0]);
                let right = rights[source.unwrap_or(0)];
                let hit = |j: &usize| unit(&[name, (at + j) as u64, 5]) < right;
                let accepted = (0..k).take_while(hit).count();
                let mut outcome = outcome(&[(name, at, k, accepted)]);
                outcome.rows[0].planned = plan.lengths[0];
                controller.observe(&outcome);
                at += accepted + 1;
                if let Some(source) = source.filter(|_| name >= 10) {
                    chosen[source] += 1;
                }
            }
            controller.evict(SeqId(name));
        }
        let share = f64::from(chosen[better]) / f64::from(chosen[0] + chosen[1]);
        assert!(share > 0.9, "{rights:?}: {chosen:?}");
        let acceptance = controller.report().acceptance;
        assert!(
            (acceptance[better].1[0] - rights[better]).abs() < 0.1,
            "{acceptance:?}"
        );
    }
}

/// It says why.
#[test]
fn decisions_explain_themselves() {
    let options = AdaptiveOptions {
        carry_over: false,
        ..AdaptiveOptions::default()
    };
    let mut controller = Adaptive::with_options(B64.table(), options).expect("good options");
    controller.plan(&PoolView::new(vec![view(3, 0)], 0));
    let decision = controller.decision(SeqId(3)).expect("planned");
    assert_eq!((decision.length, decision.reason), (0, Reason::Best));
    assert_eq!(
        decision.to_string(),
        "k = 0: acceptance .80, k = 8 needs .90 here"
    );
    assert!(controller.decision(SeqId(4)).is_none());
    assert_eq!(decision.time, Duration::from_millis(10));
}

/// S6 of the field: nothing of an ended sequence stays behind.
#[test]
fn ended_sequences_leave_nothing_but_what_they_taught() {
    let mut controller = independent();
    let before = format!("{:?}", controller.state());
    for name in 0..50 {
        sequence(&mut controller, name, name, 0.5);
    }
    assert!(controller.decision(SeqId(7)).is_none());
    let means = |state: &str| state.split("factors").next().map(str::to_owned);
    assert_eq!(means(&before), means(&format!("{:?}", controller.state())));
}
