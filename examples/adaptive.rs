//! An easy, a hard and again an easy text: how long the controller lets drafts be, and whether that paid.
//!
//! `cargo run --release --example adaptive -- --plot adaptive.svg`

use anyhow::{Context, Result, ensure};
use clap::Parser;
use specdec::core::Speculation;
use specdec::prelude::*;
use specdec::{DraftLength, TextEvent};
use specdec_examples::{Curve, ModelArgs, plot};
use std::path::PathBuf;

const EASY: &str = "Repeat this list in the same order, one item a line: copper kettle, silver spoon, wooden \
    bowl, copper pan, glass jar, silver fork, wooden board, glass bottle, copper lid, silver knife.";
const HARD: &str = "Invent a riddle about the sea, with words that nobody would expect in it.";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Most tokens of each answer
    #[arg(long, default_value_t = 80)]
    max_new: usize,
    /// Where to write the plot
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let mut generator = Generator::builder(&model)
        .draft_length(DraftLength::adaptive())
        .build()?;
    let mut plain = Generator::builder(&model).plain().build()?;
    let mut curve = Curve::new("tokens drafted in a step");
    let mut options = Options::max_new_tokens(args.max_new);
    for (name, text) in [("easy", EASY), ("hard", HARD), ("easy", EASY)] {
        options.speculation = Speculation::On;
        let seq = generator.submit(Prompt::user(text), &options)?;
        let mut done = None;
        while done.is_none() {
            let events = generator.step()?;
            let control = generator.adaptive().context("it is adaptive")?;
            if let Some(decision) = control.decision(seq) {
                curve
                    .points
                    .push((curve.points.len() as f64, decision.length as f64));
            }
            done = events.into_iter().find_map(|event| match event {
                TextEvent::Finished { generated, .. } => Some(generated),
                _ => None,
            });
        }
        let (done, reference) = (
            done.context("it ended")?,
            plain.generate(Prompt::user(text), &options)?,
        );
        ensure!(
            done.tokens == reference.tokens,
            "speculation changed the output"
        );
        let rate = |stats: &specdec::core::Stats| stats.tokens_per_second().unwrap_or(0.0);
        println!(
            "{name}: {:.1} tokens/s, plain {:.1}; {} of {} drafts accepted in {} passes for {} tokens",
            rate(&done.stats),
            rate(&reference.stats),
            done.stats.accepted,
            done.stats.drafted,
            done.stats.rounds,
            done.tokens.len()
        );
    }
    println!(
        "\n{}",
        generator.adaptive().context("it is adaptive")?.report()
    );
    if let Some(path) = &args.plot {
        plot(path, "step", "tokens drafted", &[curve])?;
    }
    Ok(())
}
