//! Four prompts in one batch, each row at its own pace: a table of the tokens that every row kept in
//! every round. Each row ends with exactly the text it would have alone.
//!
//! `cargo run --release --example ragged_batch`

use anyhow::{Result, ensure};
use clap::Parser;
use specdec::core::{Granularity, SeqId};
use specdec::prelude::*;
use specdec::{DraftLength, Generated, TextEvent};
use specdec_examples::ModelArgs;
use std::collections::BTreeMap;

const PROMPTS: [&str; 4] = [
    "Say the word river ten times.",
    "Write one sentence about the sea.",
    "Repeat exactly: the old mill, the stone bridge, the old mill, the stone bridge, the old mill.",
    "What is the capital of Italy?",
];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Most tokens to generate for each prompt
    #[arg(long, default_value_t = 48)]
    max_new: usize,
    /// Print what every row kept in every round
    #[arg(long)]
    trace: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    // A fixed length, so that there is something to see; by default drafts that do not pay are left out.
    let mut batch = Generator::builder(&model)
        .draft_length(DraftLength::Fixed(4))
        .build()?;
    let mut options = Options::max_new_tokens(args.max_new);
    options.granularity = Granularity::Block;
    let rows: Vec<SeqId> = PROMPTS
        .iter()
        .map(|prompt| batch.submit(Prompt::user(*prompt), &options))
        .collect::<specdec::Result<_>>()?;
    let mut done: BTreeMap<SeqId, Generated> = BTreeMap::new();
    let mut round = 0;
    while !batch.is_idle() {
        let mut kept = BTreeMap::new();
        for event in batch.step()? {
            match event {
                TextEvent::Piece { seq, piece } => drop(kept.insert(seq, piece.tokens.len())),
                TextEvent::Finished { seq, generated } => drop(done.insert(seq, generated)),
                TextEvent::Failed { error, .. } => return Err(error.into()),
            }
        }
        if args.trace && !kept.is_empty() {
            let cell = |seq| kept.get(seq).map_or("     .".into(), |n| format!("{n:6}"));
            round += 1;
            println!(
                "round {round:3} {}",
                rows.iter().map(cell).collect::<String>()
            );
        }
    }
    let mut alone = Generator::builder(&model).plain().build()?;
    for (seq, prompt) in rows.iter().zip(PROMPTS) {
        let row = &done[seq];
        let same = alone.generate(Prompt::user(prompt), &options)?.tokens == row.tokens;
        ensure!(same, "a row differs from its single run: {prompt}");
        let (tokens, rounds) = (row.tokens.len(), row.stats.rounds);
        println!(
            "\n{prompt}\n  {}\n  {tokens} tokens in {rounds} rounds, as alone",
            row.text.trim()
        );
    }
    Ok(())
}
