//! A block drafter, with and without the head that makes its tokens fit together.
//!
//! `cargo run --release --example block_draft -- --model assets/tiny-pair/target --drafter target/lilicorr/drafter`
//! (`train_lilicorr` makes one)

use anyhow::{Result, ensure};
use clap::Parser;
use specdec::DraftLength;
use specdec::lilicorr::DraftModel;
use specdec::prelude::*;
use specdec_examples::ModelArgs;
use std::path::PathBuf;

const PROMPTS: [&str; 6] = [
    "Tell me a story about a fox named Mia.",
    "What does the owl eat?",
    "Count from three to twelve.",
    "Make a list of five fruits.",
    "How do you make soup?",
    "Sing a song.",
];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder of the trained drafter
    #[arg(long)]
    drafter: PathBuf,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 64)]
    max_new: usize,
    /// Softens the distribution; 0 takes the best token always
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let block = DraftModel::load(&args.drafter, model.device())?;
    let length = block.config().block_size - 1;
    let options = Options::max_new_tokens(args.max_new)
        .temperature(args.temperature)
        .seed(1);
    let mut reference: Vec<Vec<u32>> = Vec::new();
    println!(
        "{:<9} {:>9} {:>12} {:>9} {:>9} {:>9}",
        "drafter", "tokens/s", "tokens/pass", "possible", "chosen", "top 1"
    );
    for drafting in [
        Drafting::Off,
        Drafting::DFlash(block.clone()),
        Drafting::LiLiCorr(block),
    ] {
        let name = format!("{drafting:?}");
        let mut generator = Generator::builder(&model)
            .drafting(drafting)
            .draft_length(DraftLength::Fixed(length))
            .build()?;
        let prompts = PROMPTS.map(|text| (Prompt::user(text), options.clone()));
        let mut tokens = Vec::new();
        for result in generator.generate_batch(prompts, |_, _| {})? {
            tokens.push(result?.tokens);
        }
        if reference.is_empty() {
            reference = tokens;
        } else {
            ensure!(tokens == reference, "speculation changed the output");
        }
        let (stats, blocks) = (generator.stats(), generator.blocks());
        let prefix = |value: fn(&specdec::lilicorr::PrefixCounts) -> Option<f64>| {
            let value = blocks.as_ref().and_then(value);
            value.map_or(String::from("-"), |value| format!("{value:.2}"))
        };
        println!(
            "{name:<9} {:>9.1} {:>12.2} {:>9} {:>9} {:>9}",
            stats.tokens_per_second().unwrap_or(0.0),
            stats.acceptance_length().unwrap_or(1.0),
            prefix(|c| c.oracle_prefix()),
            prefix(|c| c.selected_prefix()),
            prefix(|c| c.top1_prefix())
        );
    }
    println!(
        "the same {} tokens every time",
        reference.iter().map(Vec::len).sum::<usize>()
    );
    Ok(())
}
