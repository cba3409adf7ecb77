//! Reads an answer piece by piece and stops in the middle: dropping the stream cancels the rest.
//!
//! `cargo run --release --example stream_and_cancel -- --words 40`

use anyhow::Result;
use clap::Parser;
use specdec::prelude::*;
use specdec_examples::ModelArgs;
use std::io::Write;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// What to ask
    #[arg(
        long,
        default_value = "Tell me the story of a lighthouse keeper and her cat."
    )]
    prompt: String,
    /// Stop reading after this many words
    #[arg(long, default_value_t = 40)]
    words: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let mut generator = Generator::builder(&model).build()?;
    let mut words = 0;
    for piece in generator.stream(Prompt::user(&args.prompt), &Options::default())? {
        let piece = piece?;
        print!("{}", piece.text);
        std::io::stdout().flush()?;
        words += piece.text.matches(' ').count();
        if words >= args.words {
            break; // The stream is dropped here; nothing more is computed.
        }
    }
    println!(
        "\n\ncancelled: {} sequences are live",
        generator.decoder().live().count()
    );

    let again = generator.generate("The capital of France is", &Options::max_new_tokens(8))?;
    println!(
        "and the generator goes on: The capital of France is{}",
        again.text
    );
    Ok(())
}
