//! Answers one prompt plainly and speculatively, and shows that the outputs are the same.
//!
//! `cargo run --release --example quickstart`

use anyhow::{Result, ensure};
use clap::Parser;
use specdec::prelude::*;
use specdec::{DraftLength, Generated};
use specdec_examples::ModelArgs;

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
    /// Tokens to draft at a time
    #[arg(long, default_value_t = 4)]
    draft_length: usize,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let mut plain = Generator::builder(&model).plain().build()?;
    let mut fast = Generator::builder(&model)
        .drafting(Drafting::ngram())
        .draft_length(DraftLength::Fixed(args.draft_length))
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
    if args.json {
        let report = serde_json::json!({
            "equal": equal,
            "plain_tokens_per_second": slow,
            "speculative_tokens_per_second": quick,
            "speedup": quick / slow,
            "acceptance_length": length,
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
        println!(
            "the same {} tokens: {}",
            answer.tokens.len(),
            if equal { "yes" } else { "NO" }
        );
    }
    ensure!(equal, "speculation changed the output");
    Ok(())
}
