//! Trains a block drafter and its head for a target, on text that the target writes itself. Killed, it goes on where
//! it was.
//!
//! `cargo run --release --example train_lilicorr -- --model assets/tiny-pair/target --work target/lilicorr`

use anyhow::{Context, Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use specdec::lilicorr::train::{
    CollectOptions, FeatureStore, LossWeights, TrainOptions, Trainer, collect, evaluate,
};
use specdec::lilicorr::{DraftConfig, HeadConfig, LayerKind};
use specdec::prelude::*;
use specdec::ragged::SlotCache;
use specdec_examples::{Curve, ModelArgs, plot};
use std::ops::ControlFlow;
use std::path::PathBuf;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompts, one a line (chat messages); the example's own by default
    #[arg(long)]
    prompts: Option<PathBuf>,
    /// Folder of texts, run and result; an existing one is gone on with
    #[arg(long)]
    work: PathBuf,
    /// Texts to write
    #[arg(long, default_value_t = 240)]
    texts: usize,
    /// Most tokens of a text
    #[arg(long, default_value_t = 64)]
    max_new: usize,
    /// Training steps
    #[arg(long, default_value_t = 600)]
    steps: usize,
    /// Transformer layers of the drafter
    #[arg(long, default_value_t = 1)]
    layers: usize,
    /// Tokens of a block, the anchor included
    #[arg(long, default_value_t = 6)]
    block_size: usize,
    /// Train the drafter alone
    #[arg(long)]
    without_head: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let target = model.target();
    let config = config(&args, &model);
    let mut store = FeatureStore::open(args.work.join("texts"), target.spec(), &config.taps)?;
    let bar = bar("writing texts", args.texts)?;
    let mut options = CollectOptions::new(args.max_new);
    options.ends = model.end_tokens().iter().copied().collect();
    let cache = |spec: &_| SlotCache::new(spec).expect("a cache of the default options");
    let prompts = prompts(&args)?;
    ensure!(!prompts.is_empty(), "there are no prompts");
    let prompts: Vec<Vec<u32>> = (0..args.texts)
        .map(|i| Ok(model.encode(&Prompt::user(&prompts[i % prompts.len()]))?))
        .collect::<Result<_>>()?;
    collect(target, cache, prompts, &options, &mut store, &mut |done| {
        bar.set_position(done as u64);
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    let mut options = TrainOptions::new(args.steps, args.block_size);
    options.weights = LossWeights::SOFT;
    let mut trainer = Trainer::new(&config, &**target, &store, args.work.join("run"), options)?;
    let bar = self::bar("training", args.steps)?;
    let mut loss = Curve::new("loss");
    trainer.run(&mut |m| {
        bar.set_position(m.step as u64);
        bar.set_message(format!(
            "loss {:.3}, {:.2} tokens right, {:.2} possible",
            m.loss, m.selected_prefix, m.oracle_prefix
        ));
        loss.points.push((m.step as f64, f64::from(m.loss)));
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    let trained = trainer.model();
    trained.save(args.work.join("drafter"))?;
    if loss.points.len() > 1 {
        plot(&args.work.join("loss.svg"), "step", "loss", &[loss])?;
    }
    println!(
        "{:?}",
        evaluate(&trained, &**target, &store, 64, 1)?.metrics
    );
    println!("drafter in {}", args.work.join("drafter").display());
    Ok(())
}

/// Sizes that go with the target's.
fn config(args: &Args, model: &Model) -> DraftConfig {
    let (spec, own) = (model.target().spec(), model.config());
    DraftConfig {
        hidden: spec.hidden,
        layers: vec![LayerKind::Full; args.layers],
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        intermediate: own.intermediate,
        rms_eps: own.rms_eps,
        rope_theta: own.rope_theta,
        vocab: spec.vocab,
        target_layers: spec.layers,
        taps: DraftConfig::usual_taps(spec.layers, spec.layers.min(3)),
        mask_token: (spec.vocab - 1) as u32,
        block_size: args.block_size,
        draft_vocab: None,
        head: (!args.without_head).then(|| HeadConfig {
            heads: 4,
            ..HeadConfig::new(64, 32)
        }),
    }
}

fn prompts(args: &Args) -> Result<Vec<String>> {
    let text = match &args.prompts {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
        None => include_str!("train_prompts.txt").into(),
    };
    Ok(text
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect())
}

fn bar(what: &'static str, len: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {eta} {msg}")?;
    Ok(ProgressBar::new(len as u64)
        .with_style(style)
        .with_prefix(what))
}
