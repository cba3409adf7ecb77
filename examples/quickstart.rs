//! Answers one prompt plainly and speculatively, and shows that the outputs are the same.
//!
//! `cargo run --release --example quickstart`

use anyhow::{Result, ensure};
use clap::Parser;
use specdec::prelude::*;
use specdec::{DraftLength, Generated};
use specdec_examples::ModelArgs;
use std::str::FromStr;

const PROMPT: &str = "Rewrite this note for a newsletter, keeping its sentences where they are good: \
    The river path between the old mill and the stone bridge is open again. The river path had been \
    closed since the storm in March. Volunteers cleared the fallen trees, and the council repaired \
    the stone bridge. Please keep dogs on a lead between the old mill and the stone bridge.";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// What to ask
    #[arg(long, default_value = PROMPT)]
    prompt: String,
    /// Most tokens to generate
    #[arg(long, default_value_t = 160)]
    max_new: usize,
    /// Tokens to draft at a time: a number, or auto for what measured costs and acceptance make best
    #[arg(long, default_value = "auto")]
    draft_length: Length,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
enum Length {
    Auto,
    Fixed(usize),
}

impl FromStr for Length {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .map(Self::Fixed)
                .map_err(|_| "a number, or auto"),
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let mut plain = Generator::builder(&model).plain().build()?;
    let mut fast = Generator::builder(&model)
        .drafting(Drafting::ngram())
        .draft_length(match args.draft_length {
            Length::Auto => DraftLength::adaptive(),
            Length::Fixed(k) => DraftLength::Fixed(k),
        })
        .build()?;
    let prompt = Prompt::user(&args.prompt);
    let options = Options::max_new_tokens(args.max_new);
    // Touch every weight once before anything is timed.
    plain.generate(prompt.clone(), &Options::max_new_tokens(2))?;
    let reference = plain.generate(prompt.clone(), &options)?;
    let answer = fast.generate(prompt, &options)?;

    let speed = |g: &Generated| g.stats.tokens_per_second().unwrap_or(0.0);
    let (slow, quick) = (speed(&reference), speed(&answer));
    ensure!(
        slow > 0.0,
        "nothing was generated: there is nothing to compare"
    );
    let equal = reference.tokens == answer.tokens;
    let length = answer.stats.acceptance_length().unwrap_or(1.0);
    // What the controller did: how often it drafted how much, at which acceptance.
    let control = fast.adaptive().map(|control| control.report().to_string());
    if args.json {
        let report = serde_json::json!({
            "equal": equal,
            "plain_tokens_per_second": slow,
            "speculative_tokens_per_second": quick,
            "speedup": quick / slow,
            "acceptance_length": length,
            "control": control,
        });
        println!("{report}");
    } else {
        let stats = &answer.stats;
        println!("{}\n", answer.text);
        println!(
            "plain        {slow:7.1} tokens/s   {} passes",
            reference.stats.rounds
        );
        println!(
            "speculative  {quick:7.1} tokens/s   {} passes",
            stats.rounds
        );
        println!("speed-up     {:7.2}x", quick / slow);
        println!(
            "accepted     {} of {} drafts, {length:.2} tokens a pass",
            stats.accepted, stats.drafted
        );
        if let Some(control) = control {
            println!("draft lengths: {control}");
        }
        println!(
            "the same {} tokens: {}",
            answer.tokens.len(),
            if equal { "yes" } else { "NO" }
        );
    }
    ensure!(equal, "speculation changed the output");
    Ok(())
}
