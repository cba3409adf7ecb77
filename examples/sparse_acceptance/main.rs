//! Which keys drafts should attend to: what is accepted by each rule at the same budget, in long documents. Nothing
//! is timed, and nothing depends on the machine but the rounding of its arithmetic.
//!
//! `cargo run --release --example sparse_acceptance -- --tokens 3000 --input question.jsonl --input main.rs`

mod measure;
mod texts;

use anyhow::{Result, ensure};
use clap::Parser;
use measure::{Noted, Rounds, Sets, Text, recall};
use specdec::core::TargetModel;
use specdec::ragged::SlotCache;
use specdec::vegas::{
    Collect, Everything, HeadSets, Random, Ranked, Score, Streaming, Vegas, VegasConfig,
};
use specdec_examples::ModelArgs;
use std::path::PathBuf;
use texts::{Size, kinds};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Files: JSON lines in the format of Spec-Bench, or texts [default: spec-bench-dev.jsonl in the folder that
    /// SPECDEC_DATA names, if it does]
    #[arg(long)]
    input: Vec<PathBuf>,
    /// Tokens of a document
    #[arg(long, default_value_t = 3000)]
    tokens: usize,
    /// Documents of each kind
    #[arg(long, default_value_t = 2)]
    documents: usize,
    /// Share of the keys that drafts attend to
    #[arg(long, default_value_t = 0.07)]
    ratio: f64,
    /// Tokens of a draft
    #[arg(long, default_value_t = 6)]
    gamma: usize,
    /// Most rounds in a document
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

/// Which keys.
enum Rule {
    Ranked(VegasConfig),
    Window,
    Random,
    All,
}

fn rules(base: &VegasConfig) -> Vec<(&'static str, Rule)> {
    let with = |change: fn(&mut VegasConfig)| {
        let mut config = base.clone();
        change(&mut config);
        Rule::Ranked(config)
    };
    vec![
        ("first and last query (the default)", with(|_| {})),
        ("all queries", with(|c| c.collect = Collect::All)),
        ("last query", with(|c| c.collect = Collect::Last)),
        ("nothing reserved", with(|c| (c.sinks, c.recent) = (0, 0))),
        ("by logits", with(|c| c.score = Score::Logits)),
        (
            "a set for each head",
            with(|c| c.heads = HeadSets::PerKvHead),
        ),
        ("pages of 16", with(|c| c.page = 16)),
        ("first and last positions (StreamingLLM)", Rule::Window),
        ("random", Rule::Random),
        ("everything", Rule::All),
    ]
}

fn cache(
    target: &dyn TargetModel,
    base: &VegasConfig,
    rule: &Rule,
) -> Result<(Vegas<SlotCache>, Sets)> {
    let sets = Sets::default();
    let spec = target.spec();
    let inner = SlotCache::new(spec)?;
    let checked = match rule {
        Rule::Ranked(config) => config.clone().check()?,
        _ => base.clone().check()?,
    };
    let cache = match rule {
        Rule::Ranked(_) => {
            let rule = Ranked::new(&checked);
            let sets = sets.clone();
            Vegas::with_select(inner, spec, checked, Noted { rule, sets })
        }
        Rule::Window => Vegas::with_select(inner, spec, checked, Streaming::default()),
        Rule::Random => Vegas::with_select(inner, spec, checked, Random::default()),
        Rule::All => Vegas::with_select(inner, spec, checked, Everything),
    };
    Ok((cache, sets))
}

/// Mean, and the standard error of it.
fn mean(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let spread: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (spread / (n - 1.0).max(1.0) / n).sqrt())
}

fn main() -> Result<()> {
    let mut args = Args::parse();
    let model = args.model.open()?;
    if let (true, Some(folder)) = (args.input.is_empty(), std::env::var_os("SPECDEC_DATA")) {
        args.input
            .push(PathBuf::from(folder).join("spec-bench-dev.jsonl"));
    }
    let target = &**model.target();
    let base = VegasConfig {
        ratio: args.ratio,
        min: 16,
        ..VegasConfig::default()
    };
    let rules = rules(&base);
    let size = Size {
        documents: args.documents,
        tokens: args.tokens,
    };
    println!(
        "{:.0} % of the keys, drafts of {}, {} documents of a kind with some {} tokens; along the target's own \
         greedy continuation, each round after one in which all was accepted. In percent: drafted tokens that are \
         the target's; the mean sum of min(p, q), and how much more of it than with StreamingLLM's window (over \
         rounds, ± the standard error)\n",
        100.0 * args.ratio,
        args.gamma,
        args.documents,
        args.tokens
    );
    for kind in kinds(&model, &args.input, size)? {
        let mut done: Vec<Rounds> = rules.iter().map(|_| Rounds::default()).collect();
        let mut recalls = Vec::new();
        let (mut lengths, mut quoted) = (Vec::new(), Vec::new());
        for prompt in kind.prompts {
            let most = (args.rounds + 1) * (args.gamma + 1);
            let text = Text::new(target, prompt, (most, model.end_tokens()))?;
            lengths.push(text.len());
            quoted.push(text.quoted());
            let mut chosen = Vec::new();
            for ((_, rule), done) in rules.iter().zip(&mut done) {
                let (mut cache, sets) = cache(target, &base, rule)?;
                let rounds = text.measure(target, &mut cache, args.gamma)?;
                done.greedy.extend(rounds.greedy);
                done.overlap.extend(rounds.overlap);
                chosen.push(sets);
            }
            let reserved = (base.sinks, base.recent);
            recalls.push([0, 2].map(|found| recall(&chosen[found], &chosen[1], reserved)));
        }
        let place = |wanted: fn(&Rule) -> bool| rules.iter().position(|(_, rule)| wanted(rule));
        let window = place(|rule| matches!(rule, Rule::Window)).expect("it is one of them");
        let all = place(|rule| matches!(rule, Rule::All)).expect("it is one of them");
        println!(
            "{} (prompt, continuation: {lengths:?}; {:.0} % of the continuation stands in the prompt, in runs \
             of eight tokens)\n",
            kind.name,
            100.0 * mean(&quoted).0
        );
        ensure!(
            done[all].overlap.len() > 1,
            "the continuations are too short to draft in"
        );
        // With every key a draft is the target's own token.
        ensure!(
            mean(&done[all].overlap).0 > 0.999,
            "the measurement is wrong"
        );
        println!("| keys | greedy | sum of min(p, q) | to the window |\n|---|---|---|---|");
        for ((name, _), rounds) in rules.iter().zip(&done) {
            let pairs = rounds.overlap.iter().zip(&done[window].overlap);
            let (gain, error) = mean(&pairs.map(|(a, b)| 100.0 * (a - b)).collect::<Vec<_>>());
            println!(
                "| {name} | {:.1} | {:.1} | {gain:+.1} ± {error:.1} |",
                100.0 * mean(&rounds.greedy).0,
                100.0 * mean(&rounds.overlap).0,
            );
        }
        for (number, queries) in ["first and last query", "last query"].iter().enumerate() {
            let shares: Vec<f64> = recalls.iter().map(|recall| recall[number]).collect();
            println!(
                "{queries}: {:.0} % of the keys that all queries rank",
                100.0 * mean(&shares).0
            );
        }
        println!();
    }
    Ok(())
}
