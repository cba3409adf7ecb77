//! What deciding costs.

use crate::replay::Right;
use crate::statistics::median;
use crate::world::{Drafts, Runs, World};
use specdec::DraftLength;
use specdec::core::{Controller, Outcome, PoolView, RowOutcome, SeqId, SeqView};
use specdec::draft::NgramDrafter;
use specdec::rakv::{Adaptive, SwitchDrafter};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Batches of decisions that are timed together.
const BATCHES: usize = 101;
const BATCH: usize = 200;
/// Tokens of a sequence.
const OUTPUT: usize = 64;

pub fn run(world: &World) {
    let drafts = Drafts {
        runs: Runs::Dear,
        replay: Some((Right::new(0.5), Arc::default())),
    };
    let measured = world.generator(Some(&drafts), DraftLength::adaptive(), None);
    let table = measured.adaptive().expect("it is adaptive").costs();
    println!("\n## A decision\n");
    println!("| rows | planning | learning from a step |\n|---|---|---|");
    for rows in [1, 4, 16] {
        let mut controller = Adaptive::new(table.clone());
        let switch = SwitchDrafter::new(
            [Box::new(NgramDrafter::default()) as _],
            controller.steering(),
        );
        let _switch = switch.expect("one drafter");
        let (mut planning, mut learning) = (Vec::new(), Vec::new());
        let mut step = 0;
        for _ in 0..BATCHES {
            let (mut plan_time, mut learn_time) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..BATCH {
                let view = view(rows, step);
                let started = Instant::now();
                let plan = black_box(controller.plan(black_box(&view)));
                plan_time += started.elapsed();
                let outcome = outcome(&view, &plan.lengths);
                let started = Instant::now();
                controller.observe(black_box(&outcome));
                learn_time += started.elapsed();
                step += 1;
                if step % OUTPUT == 0 {
                    view.rows.iter().for_each(|row| controller.evict(row.seq));
                }
            }
            let each = |time: Duration| 1e6 * time.as_secs_f64() / BATCH as f64;
            planning.push(each(plan_time));
            learning.push(each(learn_time));
        }
        println!(
            "| {rows} | {:.2} us | {:.2} us |",
            median(planning),
            median(learning)
        );
    }
    println!("\nThe clock's own time, some tens of nanoseconds, is in it.");
}

/// Rows in a step of their lives.
fn view(rows: usize, step: usize) -> PoolView {
    let emitted = step % OUTPUT;
    let row = |row: usize| {
        let name = SeqId((step / OUTPUT * rows + row) as u64);
        let mut view = SeqView::new(name, 65 + emitted, 64 + emitted, emitted);
        view.left = OUTPUT - emitted;
        view.max_draft = view.left - 1;
        view
    };
    PoolView::new((0..rows).map(row).collect(), step as u64)
}

/// Every other drafted token is right.
fn outcome(view: &PoolView, lengths: &[usize]) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.draft_time = Duration::from_micros(1 + 150 * lengths[0] as u64);
    outcome.verify_time = Duration::from_micros(300 + 30 * lengths[0] as u64);
    for (row, &k) in view.rows.iter().zip(lengths) {
        let mut row_outcome = RowOutcome::new(row.seq, k, k / 2);
        row_outcome.context = row.cached;
        outcome.block += k + 1;
        outcome.rows.push(row_outcome);
    }
    outcome
}
