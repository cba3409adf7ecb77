//! The target drafts for itself and attends to a part of a long document only: budget against acceptance and
//! speed, beside a plain window (StreamingLLM) of the same budget.
//!
//! `cargo run --release --example sparse_self_draft -- --tokens 2000 --plot vegas.svg`

use anyhow::{Context, Result, ensure};
use clap::Parser;
use specdec::core::{Completion, Decoder, FixedLength, Request, TargetModel};
use specdec::ragged::SlotCache;
use specdec::vegas::{CheckedConfig, Ranked, Select, Streaming, Vegas, VegasConfig, VegasDrafter};
use specdec_examples::{Curve, ModelArgs, plot};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A text file to continue; the project's guide by default
    #[arg(long)]
    document: Option<PathBuf>,
    /// Tokens of it
    #[arg(long, default_value_t = 1000)]
    tokens: usize,
    /// Tokens to generate
    #[arg(long, default_value_t = 64)]
    max_new: usize,
    /// Tokens to draft at a time
    #[arg(long, default_value_t = 4)]
    draft_length: usize,
    /// Where to write the plot
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let text = match &args.document {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
        None => [
            include_str!("../docs/performance.md"),
            include_str!("../docs/how-a-step-works.md"),
        ]
        .concat(),
    };
    let mut prompt = model.encode(&text.as_str().into())?;
    prompt.truncate(args.tokens);
    let request = || Request::new(prompt.clone()).max_new_tokens(args.max_new);
    let target = model.target();
    let cache = SlotCache::new(target.spec())?;
    let plain = Decoder::builder(target.clone())
        .cache(cache)
        .build()?
        .generate(request())?;
    let base = plain.stats.tokens_per_second().unwrap_or(0.0);
    println!(
        "{} tokens of context, plain {base:.1} tokens/s",
        plain.prompt_tokens
    );
    println!("budget  rule       accepted  tokens/pass  speed");
    let mut curves = [
        Curve::new("what verification weighed"),
        Curve::new("first and last positions"),
    ];
    for ratio in [0.03, 0.07, 0.15, 0.3, 1.0] {
        let config = VegasConfig {
            ratio,
            min: 16,
            ..VegasConfig::default()
        }
        .check()?;
        let runs = [
            run(&args, target, &config, Ranked::new(&config), request())?,
            run(&args, target, &config, Streaming::default(), request())?,
        ];
        for ((name, done), curve) in runs.into_iter().zip(&mut curves) {
            ensure!(
                done.tokens == plain.tokens,
                "speculation changed the output"
            );
            let accepted = done.stats.acceptance_rate().unwrap_or(0.0);
            let length = done.stats.acceptance_length().unwrap_or(1.0);
            let speed = done.stats.tokens_per_second().unwrap_or(0.0) / base;
            println!(
                "{ratio:>6}  {name:<9}  {:>7.1}%  {length:>11.2}  {speed:.2}x",
                100.0 * accepted
            );
            curve.points.push((ratio, accepted));
        }
    }
    println!("the same {} tokens every time", plain.tokens.len());
    if let Some(path) = &args.plot {
        plot(
            path,
            "share of the context drafts attend to",
            "drafts accepted",
            &curves,
        )?;
    }
    Ok(())
}

fn run(
    args: &Args,
    target: &Arc<dyn TargetModel>,
    config: &CheckedConfig,
    rule: impl Select + 'static,
    request: Request,
) -> Result<(&'static str, Completion)> {
    let name = rule.name();
    let cache = SlotCache::new(target.spec())?;
    let mut decoder = Decoder::builder(target.clone())
        .cache(Vegas::with_select(
            cache,
            target.spec(),
            config.clone(),
            rule,
        ))
        .drafter(VegasDrafter::new())
        .controller(FixedLength(args.draft_length))
        .build()?;
    Ok((name, decoder.generate(request)?))
}
