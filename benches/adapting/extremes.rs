//! Drafters that are never right, and always.

use crate::replay::{Known, Right};
use crate::statistics::{excess, interval, percent};
use crate::timed::Clock;
use crate::world::{Drafts, Runs, World};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use specdec::DraftLength;
use std::sync::Arc;

const PROMPT: usize = 64;
const OUTPUT: usize = 64;
/// Blocks in which the controller starts up.
const START: usize = 3;
/// Fixed draft lengths; the last arm is adaptive.
const LENGTHS: [usize; 5] = [0, 1, 2, 4, 8];

pub fn run(world: &World, prompts: usize) {
    let texts: Vec<Vec<u32>> = (0..START + prompts)
        .map(|i| world.text(PROMPT, 80_000 + i as u64))
        .collect();
    let asked: Vec<(&[u32], usize)> = texts.iter().map(|text| (&text[..], OUTPUT)).collect();
    let outputs = world.outputs(&asked);
    let known: Known = texts.iter().cloned().zip(outputs).collect();
    let known = Arc::new(known);
    let mut clock = Clock::default();
    let mut order = Xoshiro256PlusPlus::seed_from_u64(9);
    println!("\n## Never and always right\n");
    println!(
        "| drafts | cost of | best fixed | adaptive against it | adaptive against plain | in the first {START} blocks | the controller |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, right) in [("never right", 0.0), ("always right", 1.0)] {
        for runs in [Runs::Cheap, Runs::Dear] {
            let drafts = Drafts {
                runs,
                replay: Some((Right::new(right), Arc::clone(&known))),
            };
            let some = |k: usize| (k > 0).then_some(&drafts);
            let mut arms: Vec<_> = LENGTHS
                .map(|k| world.generator(some(k), DraftLength::Fixed(k), None))
                .into();
            arms.push(world.generator(Some(&drafts), DraftLength::adaptive(), None));
            let adaptive = LENGTHS.len();
            let mut logs = vec![Vec::new(); arms.len()];
            for text in &texts {
                let mut turns: Vec<usize> = (0..arms.len()).collect();
                turns.shuffle(&mut order);
                for i in turns {
                    let run = clock.generate(&mut arms[i], text, &known[text]);
                    logs[i].push(run.seconds.ln());
                }
            }
            let against = |a: usize, b: usize| -> Vec<f64> {
                logs[a].iter().zip(&logs[b]).map(|(a, b)| a - b).collect()
            };
            let settled = |a, b| excess(&against(a, b)[START..]);
            let best = (0..adaptive)
                .min_by(|a, b| settled(*a, 0).total_cmp(&settled(*b, 0)))
                .expect("there are fixed lengths");
            let told = |logs: &[f64]| {
                let (low, high) = interval(logs);
                format!(
                    "{} ({} to {})",
                    percent(excess(logs)),
                    percent(low),
                    percent(high)
                )
            };
            println!(
                "| {name} | {} | k = {}, {:.3}x | {} | {} | {} | {} |",
                runs.name(),
                LENGTHS[best],
                1.0 + settled(best, 0),
                told(&against(adaptive, best)[START..]),
                told(&against(adaptive, 0)[START..]),
                percent(excess(&against(adaptive, 0)[..START])),
                arms[adaptive].adaptive().expect("it is adaptive").report(),
            );
        }
    }
    println!(
        "\nThe thread had a processor for {:.1} % of the time.",
        100.0 * clock.share()
    );
}
