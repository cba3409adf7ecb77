//! What grouping and refilling do: the same prompts under every batch strategy, as a table. The
//! output is the same in all of them; what differs is how full the passes are and what is moved.
//!
//! `cargo run --release --example cross_batch`

use anyhow::{Result, ensure};
use clap::Parser;
use specdec::DraftLength;
use specdec::prelude::*;
use specdec::ragged::Strategy;
use specdec_examples::ModelArgs;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Most rows in a pass
    #[arg(long, default_value_t = 4)]
    batch: usize,
    /// How many prompts there are
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    prompts: u32,
    /// Tokens to draft at a time
    #[arg(long, default_value_t = 4)]
    draft_length: usize,
}

fn prompt(i: usize) -> (Prompt, Options) {
    let things = [
        "river", "bridge", "mill", "garden", "library", "harbour", "forest",
    ];
    let thing = things[i % things.len()];
    let text = match i % 3 {
        0 => format!("Repeat three times: the old {thing} by the sea."),
        1 => format!("Write a sentence about a {thing}."),
        _ => format!("List five words that go with {thing}, then list them again."),
    };
    (
        Prompt::user(text),
        Options::max_new_tokens(16 + 12 * (i % 4)),
    )
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let mut first: Option<Vec<Vec<u32>>> = None;
    println!("strategy       tokens/s  rounds  rows/round  grouped  moved MB  share of time");
    for strategy in Strategy::ALL {
        let mut generator = Generator::builder(&model)
            .draft_length(DraftLength::Fixed(args.draft_length))
            .strategy(strategy)
            .max_rows(args.batch)
            .build()?;
        let results =
            generator.generate_batch((0..args.prompts as usize).map(prompt), |_, _| {})?;
        let tokens: Vec<Vec<u32>> = results
            .into_iter()
            .map(|r| Ok(r?.tokens))
            .collect::<specdec::Result<_>>()?;
        let (stats, batch) = (generator.stats(), generator.meters().batch());
        let align = generator.meters().align();
        println!(
            "{:13} {:9.1} {:7} {:11.2} {:7.0}% {:9.1} {:13.1}%",
            strategy.to_string(),
            stats.tokens_per_second().unwrap_or(0.0),
            batch.rounds,
            batch.rows_per_round().unwrap_or(0.0),
            100.0 * batch.grouping_rate().unwrap_or(0.0),
            align.moved_bytes as f64 / 1e6,
            100.0 * align.move_time.as_secs_f64() / stats.decode_time().as_secs_f64(),
        );
        let same = first.get_or_insert_with(|| tokens.clone()) == &tokens;
        ensure!(same, "{strategy} changed the output");
    }
    println!("the same output under all of them");
    Ok(())
}
