//! What the grid comes to.

use crate::grid::{Condition, Grid, POLICIES, Policy, place};
use crate::statistics::{excess, interval, mean, median, percent};
use specdec::rakv::Accuracy;

/// Conditions whose two classes differ by more than this are to be told apart without a mistake.
const APART: f64 = 0.05;

impl Condition {
    fn logs(&self, policy: Policy) -> Vec<f64> {
        let runs = &self.runs[place(policy)];
        runs.iter().map(|run| run.seconds.ln()).collect()
    }

    /// Logarithms of the ratios of two policies' times, block by block.
    fn against(&self, policy: Policy, other: Policy) -> Vec<f64> {
        let pairs = self.logs(policy).into_iter().zip(self.logs(other));
        pairs.map(|(a, b)| a - b).collect()
    }

    /// The fixed policy of the least mean logarithm over the blocks chosen.
    fn best(&self, chosen: impl Fn(usize) -> bool) -> Policy {
        let time = |policy: &Policy| {
            let logs = self.logs(*policy).into_iter().enumerate();
            let logs: Vec<f64> = logs.filter(|(i, _)| chosen(*i)).map(|(_, x)| x).collect();
            mean(&logs)
        };
        let fixed = POLICIES.into_iter().filter(|p| *p != Policy::Adaptive);
        let best = fixed.min_by(|a, b| time(a).total_cmp(&time(b)));
        best.expect("there are fixed policies")
    }

    fn best_of_all(&self) -> Policy {
        self.best(|_| true)
    }

    /// How much longer the adaptive policy takes than the best fixed one.
    fn regret(&self) -> f64 {
        excess(&self.against(Policy::Adaptive, self.best_of_all()))
    }

    /// The same, the best fixed one being chosen by the other half of the blocks.
    fn regret_by_halves(&self) -> f64 {
        let half = |parity: usize| {
            let best = self.best(|i| i % 2 != parity);
            let logs = self.against(Policy::Adaptive, best).into_iter();
            let own = logs.enumerate().filter(|(i, _)| i % 2 == parity);
            own.map(|(_, x)| x).collect::<Vec<_>>()
        };
        excess(&[half(0), half(1)].concat())
    }

    /// By how much the best drafting policy is faster (or slower, below 0) than not drafting.
    fn drafting_gains(&self) -> f64 {
        let times = [1, 2, 4, 8].map(|k| excess(&self.against(Policy::Reuse(k), Policy::Reuse(0))));
        let least = times.into_iter().fold(f64::MAX, f64::min);
        1.0 / (1.0 + least) - 1.0
    }

    /// Share of the adaptive policy's rounds in which something was drafted.
    fn drafted(&self) -> f64 {
        let runs = &self.runs[place(Policy::Adaptive)];
        let sum = |count: fn(&specdec::core::Stats) -> u64| {
            runs.iter().map(|run| count(&run.stats)).sum::<u64>() as f64
        };
        sum(|stats| stats.speculative_rounds) / sum(|stats| stats.rounds)
    }

    /// Share of drafts of one token that were right.
    fn acceptance(&self) -> f64 {
        let runs = &self.runs[place(Policy::Reuse(1))];
        let of = |count: fn(&specdec::core::Stats) -> u64| {
            runs.iter().map(|run| count(&run.stats)).sum::<u64>() as f64
        };
        of(|stats| stats.accepted) / of(|stats| stats.drafted)
    }
}

/// Ratios over the blocks of some conditions, as text.
fn compared(conditions: &[&Condition], policy: Policy, other: Policy) -> String {
    let logs: Vec<f64> = conditions
        .iter()
        .flat_map(|c| c.against(policy, other))
        .collect();
    if logs.is_empty() {
        return "no such condition".into();
    }
    let total = |policy: Policy| {
        let runs = conditions.iter().flat_map(|c| &c.runs[place(policy)]);
        runs.map(|run| run.seconds).sum::<f64>()
    };
    let (low, high) = interval(&logs);
    format!(
        "{} ({} to {}; totals {}; {} blocks)",
        percent(excess(&logs)),
        percent(low),
        percent(high),
        percent(total(policy) / total(other) - 1.0),
        logs.len()
    )
}

fn accuracy(conditions: &[&Condition]) -> String {
    let mut accuracy = Accuracy::default();
    for condition in conditions {
        accuracy.count(condition.drafting_gains() > 0.0, condition.drafted() > 0.5);
    }
    let ((drafting, of_drafting), (plain, of_plain)) = (accuracy.drafting, accuracy.plain);
    let balanced = accuracy.balanced();
    let balanced = balanced.map_or("not defined".into(), |x| format!("{:.1} %", 100.0 * x));
    format!("{balanced} (drafting {drafting} of {of_drafting}, plain {plain} of {of_plain})")
}

pub fn print(grid: &Grid) {
    let all: Vec<&Condition> = grid.conditions.iter().collect();
    let runs: usize = all.iter().flat_map(|c| &c.runs).map(Vec::len).sum();
    println!("\n## Grid\n");
    println!(
        "| drafter | prompt | output | first drafts right | reuse, k = 0 | fresh, k = 0 | reuse, k = 4 | \
         best fixed | adaptive | regret | rounds drafted |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for condition in &all {
        let ratio = |policy| excess(&condition.against(policy, Policy::Reuse(0))) + 1.0;
        let plain = condition.runs[place(Policy::Reuse(0))].iter();
        let best = condition.best_of_all();
        println!(
            "| {} | {} | {} | {:.2} | {:.2} ms | {:.2}x | {:.2}x | {best:?} {:.2}x | {:.3}x | {} | {:.0} % |",
            condition.drafter,
            condition.prompt,
            condition.output,
            condition.acceptance(),
            1e3 * median(plain.map(|run| run.seconds).collect()),
            ratio(Policy::Fresh(0)),
            ratio(Policy::Reuse(4)),
            ratio(best),
            ratio(Policy::Adaptive),
            percent(condition.regret()),
            100.0 * condition.drafted(),
        );
    }
    println!("\nTimes are geometric means, as multiples of reuse without drafting.\n");
    for (drafter, report) in &grid.reports {
        println!("* {drafter}: {report}");
    }
    let plain: Vec<&Condition> = all
        .iter()
        .copied()
        .filter(|c| c.drafting_gains() <= 0.0)
        .collect();
    let clear: Vec<&Condition> = all
        .iter()
        .copied()
        .filter(|c| (1.0 + c.drafting_gains()).ln().abs() > APART.ln_1p())
        .collect();
    let regrets: Vec<f64> = all.iter().map(|c| c.regret()).collect();
    let halves: Vec<f64> = all.iter().map(|c| c.regret_by_halves()).collect();
    let worst = |regrets: &[f64]| percent(regrets.iter().copied().fold(f64::MIN, f64::max));
    let dear = all.iter().copied().filter(|c| c.drafter.contains("dear"));
    let dear: Vec<&Condition> = dear.collect();
    println!("\n| figure | measured |\n|---|---|");
    println!("| timed generations, all outputs equal | {runs} |");
    println!(
        "| conditions | {}; drafting is best in {} |",
        all.len(),
        all.len() - plain.len()
    );
    let rows = [
        (
            "adaptive against reuse without drafting, where that is best",
            &plain,
            Policy::Adaptive,
            Policy::Reuse(0),
        ),
        (
            "adaptive against always 4, there",
            &plain,
            Policy::Adaptive,
            Policy::Reuse(4),
        ),
        (
            "the same with the dear replay drafter",
            &dear,
            Policy::Adaptive,
            Policy::Reuse(4),
        ),
        (
            "adaptive against fresh, always 4, there",
            &plain,
            Policy::Adaptive,
            Policy::Fresh(4),
        ),
        (
            "adaptive against reuse without drafting, everywhere",
            &all,
            Policy::Adaptive,
            Policy::Reuse(0),
        ),
        (
            "adaptive against always 4, everywhere",
            &all,
            Policy::Adaptive,
            Policy::Reuse(4),
        ),
        (
            "reuse against fresh, without drafting",
            &all,
            Policy::Reuse(0),
            Policy::Fresh(0),
        ),
    ];
    for (what, conditions, policy, other) in rows {
        println!("| {what} | {} |", compared(conditions, policy, other));
    }
    println!(
        "| regret to the best fixed policy of each condition, in hindsight | mean {}, worst {} |",
        percent(mean(&regrets)),
        worst(&regrets)
    );
    println!(
        "| the same, the best chosen by the other half of the blocks | mean {}, worst {} |",
        percent(mean(&halves)),
        worst(&halves)
    );
    println!(
        "| balanced accuracy of drafting or not | {} |",
        accuracy(&all)
    );
    println!(
        "| the same where the two differ by more than 5 % | {} |",
        accuracy(&clear)
    );
    println!(
        "| share of the time for which the thread had a processor | {:.1} % |",
        100.0 * grid.share
    );
}
