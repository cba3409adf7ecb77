//! From which acceptance on drafts of each length pay: measured, and by the measured costs.

use crate::replay::{Known, Right};
use crate::statistics::excess;
use crate::timed::Clock;
use crate::world::{Drafts, REPLAY_SEED, Runs, World};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use specdec::DraftLength;
use std::sync::Arc;

const RIGHT: [f64; 10] = [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0];
const LENGTHS: [usize; 5] = [0, 1, 2, 4, 8];
/// Short, so that the time of reading it is a small part.
const PROMPT: usize = 16;
const OUTPUT: usize = 192;

pub fn run(world: &World, prompts: usize) {
    let texts: Vec<Vec<u32>> = (0..prompts)
        .map(|i| world.text(PROMPT, 90_000 + i as u64))
        .collect();
    let asked: Vec<(&[u32], usize)> = texts.iter().map(|text| (&text[..], OUTPUT)).collect();
    let outputs = world.outputs(&asked);
    let known: Known = texts.iter().cloned().zip(outputs).collect();
    let known = Arc::new(known);
    let right = Right::new(0.0);
    let mut clock = Clock::default();
    let mut order = Xoshiro256PlusPlus::seed_from_u64(5);
    println!("\n## Break-even\n");
    println!(
        "Time as a multiple of plain decoding's, by the share of drafted tokens that are right:\n"
    );
    let shares: Vec<f64> = RIGHT.map(|a| right.share(a, &known)).into();
    let list: Vec<String> = shares.iter().map(|a| format!("{a:.2}")).collect();
    println!("| cost of | k | {} |", list.join(" | "));
    println!("|---|---|{}", "---|".repeat(RIGHT.len()));
    let mut crossings = Vec::new();
    for runs in [Runs::Cheap, Runs::Dear] {
        let drafts = Drafts {
            runs,
            replay: Some((right.clone(), Arc::clone(&known))),
        };
        let some = |k: usize| (k > 0).then_some(&drafts);
        let mut arms = LENGTHS.map(|k| world.generator(some(k), DraftLength::Fixed(k), None));
        let adaptive = world.generator(Some(&drafts), DraftLength::adaptive(), None);
        let costs = adaptive.adaptive().expect("it is adaptive").costs();
        // Logarithms of ratios to plain decoding, by length and acceptance.
        let mut logs = vec![vec![Vec::new(); RIGHT.len()]; LENGTHS.len()];
        let mut cells: Vec<(usize, usize)> = (0..RIGHT.len())
            .flat_map(|a| (0..texts.len()).map(move |text| (a, text)))
            .collect();
        cells.shuffle(&mut order);
        for (a, text) in cells {
            right.set(RIGHT[a]);
            let (prompt, want) = (&texts[text], &known[&texts[text]]);
            let mut turns: Vec<usize> = (0..LENGTHS.len()).collect();
            turns.shuffle(&mut order);
            let mut seconds = [0.0; LENGTHS.len()];
            for i in turns {
                seconds[i] = clock.generate(&mut arms[i], prompt, want).seconds;
            }
            for (logs, each) in logs.iter_mut().zip(seconds) {
                logs[a].push((each / seconds[0]).ln());
            }
        }
        for (k, logs) in LENGTHS.into_iter().zip(&logs).skip(1) {
            let excesses: Vec<f64> = logs.iter().map(|logs| excess(logs)).collect();
            let list: Vec<String> = excesses.iter().map(|x| format!("{:.2}", 1.0 + x)).collect();
            println!("| {} | {k} | {} |", runs.name(), list.join(" | "));
            let predicted = costs.break_even(0, 1, PROMPT + OUTPUT / 2, k);
            crossings.push((runs.name(), k, crossing(&shares, &excesses), predicted));
        }
    }
    println!("\n| cost of | k | pays from, measured | by the cost table | difference |");
    println!("|---|---|---|---|---|");
    for (runs, k, measured, predicted) in crossings {
        let share = |a: Option<f64>| a.map_or("never".into(), |a| format!("{a:.3}"));
        let difference = measured.zip(predicted);
        let difference = difference.map_or("".into(), |(m, p)| format!("{:+.3}", m - p));
        println!(
            "| {runs} | {k} | {} | {} | {difference} |",
            share(measured),
            share(predicted)
        );
    }
    println!(
        "\nThe thread had a processor for {:.1} % of the time.",
        100.0 * clock.share()
    );
}

impl Right {
    /// The share of all places at which a drafter set to `probability` is right.
    fn share(&self, probability: f64, known: &Known) -> f64 {
        self.set(probability);
        let mistakes = self.mistakes(REPLAY_SEED);
        let places = known
            .iter()
            .flat_map(|(prompt, output)| (0..output.len()).map(move |i| (prompt, i)));
        let (mut right, mut all) = (0, 0);
        for (prompt, i) in places {
            right += usize::from(!mistakes.wrong(prompt, i));
            all += 1;
        }
        right as f64 / all as f64
    }
}

/// Where the excess over plain decoding falls through 0, between two shares.
fn crossing(shares: &[f64], excesses: &[f64]) -> Option<f64> {
    let points: Vec<(f64, f64)> = shares
        .iter()
        .copied()
        .zip(excesses.iter().copied())
        .collect();
    if points[0].1 <= 0.0 {
        return Some(points[0].0);
    }
    points.windows(2).find_map(|pair| {
        let [(a, above), (b, below)] = [pair[0], pair[1]];
        (below <= 0.0).then(|| a + (b - a) * above / (above - below))
    })
}
