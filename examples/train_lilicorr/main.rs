//! Trains a block drafter and its head for a target, on text that the target writes itself. Killed, it goes on where
//! it was.
//!
//! `cargo run --release --example train_lilicorr -- --model assets/tiny-pair/target --work target/lilicorr`
//!
//! For a larger target, with prompts that it writes itself (hours):
//! `... -- --work target/smollm2 --self-prompts 4000 --passages 618 --held-out 50 --max-new 112 --temperature 0
//! --text-activations int8 --draft-vocab 4096 --head-width 128 --head-layers 1 --deviation 0.03 --rate 1.5e-3
//! --anchors 24 --head-share 0.5 --steps 1800 --f16`

mod prompts;

use anyhow::{Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use specdec::lilicorr::train::{
    CollectOptions, FeatureStore, LossWeights, TrainOptions, Trainer, collect, evaluate,
};
use specdec::lilicorr::{DraftConfig, HeadConfig, LayerKind};
use specdec::prelude::*;
use specdec::ragged::SlotCache;
use specdec_examples::{ActivationArg, Curve, ModelArgs, plot};
use std::ops::ControlFlow;
use std::path::PathBuf;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompts, one a line (chat messages); the example's own by default
    #[arg(long)]
    prompts: Option<PathBuf>,
    /// Prompts that the target writes itself, instead
    #[arg(long, conflicts_with = "prompts")]
    self_prompts: Option<usize>,
    /// Most tokens of a prompt the target writes
    #[arg(long, default_value_t = 96)]
    prompt_tokens: usize,
    /// Further texts: tasks over passages, which are answers to the first
    #[arg(long, default_value_t = 0)]
    passages: usize,
    /// What the target's quantised weights are multiplied with while it writes: int8 is faster
    #[arg(long, value_enum)]
    text_activations: Option<ActivationArg>,
    /// Folder of texts, run and result; an existing one is gone on with
    #[arg(long)]
    work: PathBuf,
    /// Texts to write [default: one for each of the target's own prompts, else 240]
    #[arg(long)]
    texts: Option<usize>,
    /// Last of the texts, for measuring only
    #[arg(long, default_value_t = 0)]
    held_out: usize,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 64)]
    max_new: usize,
    /// How the answers are drawn; 0 takes the best token always
    #[arg(long, default_value_t = 1.0)]
    temperature: f32,
    /// Training steps
    #[arg(long, default_value_t = 600)]
    steps: usize,
    /// Texts of a step
    #[arg(long, default_value_t = 8)]
    step_texts: usize,
    /// Blocks of a text and step
    #[arg(long, default_value_t = 32)]
    anchors: usize,
    /// Highest learning rate
    #[arg(long, default_value_t = 2e-3)]
    rate: f64,
    /// Deviation of the starting weights
    #[arg(long, default_value_t = 0.05)]
    deviation: f64,
    /// Share of the blocks that the head learns from
    #[arg(long, default_value_t = 1.0)]
    head_share: f64,
    /// Transformer layers of the drafter
    #[arg(long, default_value_t = 1)]
    layers: usize,
    /// Tapped layers of the target
    #[arg(long, default_value_t = 3)]
    taps: usize,
    /// Tokens of a block, the anchor included
    #[arg(long, default_value_t = 6)]
    block_size: usize,
    /// Draft among the most frequent tokens of the texts only
    #[arg(long)]
    draft_vocab: Option<usize>,
    /// Width of the head
    #[arg(long, default_value_t = 64)]
    head_width: usize,
    /// Layers of the head
    #[arg(long, default_value_t = 2)]
    head_layers: usize,
    /// Train the drafter alone
    #[arg(long)]
    without_head: bool,
    /// Store the weights as 16-bit floats
    #[arg(long)]
    f16: bool,
    /// Name of run and result in the folder
    #[arg(long, default_value = "drafter")]
    name: String,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let target = model.target();
    let mut config = config(&args, &model);
    std::fs::create_dir_all(&args.work)?;
    let open = |name| FeatureStore::open(args.work.join(name), target.spec(), &config.taps);
    let (mut store, mut held) = (open("texts")?, open("held-out")?);
    match args.text_activations {
        None => write_texts(&args, &model, &mut store, &mut held)?,
        Some(activations) => {
            let writer = args
                .model
                .open_as(&args.model.model, args.model.dtype, activations)?;
            write_texts(&args, &writer, &mut store, &mut held)?;
        }
    }

    if let Some(count) = args.draft_vocab {
        let frequent = store.frequent_tokens(count, model.end_tokens().iter().copied())?;
        println!(
            "{} of {} tokens cover {:.2} % of the answers",
            frequent.tokens.len(),
            config.vocab,
            100.0 * frequent.coverage
        );
        config.draft_vocab = Some(frequent.tokens);
    }
    let mut options = TrainOptions::new(args.steps, args.block_size);
    options.weights = LossWeights::SOFT;
    options.texts = args.step_texts;
    options.anchors = args.anchors;
    options.rate = args.rate;
    options.deviation = args.deviation;
    options.head_share = args.head_share;
    let run = args.work.join(format!("{}-run", args.name));
    let mut trainer = Trainer::new(&config, &**target, &store, run, options)?;
    let bar = bar("training", args.steps)?;
    bar.set_position(trainer.steps_taken() as u64);
    bar.reset_eta();
    let mut loss = Curve::new("loss");
    trainer.run(&mut |m| {
        bar.set_position(m.step as u64);
        bar.set_message(format!(
            "loss {:.3}, {:.2} tokens right, {:.2} possible, {:.2} without the head",
            m.loss, m.selected_prefix, m.oracle_prefix, m.top1_prefix
        ));
        loss.points.push((m.step as f64, f64::from(m.loss)));
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    let trained = trainer.model();
    let folder = args.work.join(&args.name);
    if args.f16 {
        trained.save_f16(&folder)?;
    } else {
        trained.save(&folder)?;
    }
    if loss.points.len() > 1 {
        let path = args.work.join(format!("{}-loss.svg", args.name));
        plot(&path, "step", "loss", &[loss])?;
    }
    let measured = if held.is_empty() { &store } else { &held };
    println!(
        "{:?}",
        evaluate(&trained, &**target, measured, 64, 1)?.metrics
    );
    println!("drafter in {}", folder.display());
    Ok(())
}

/// Writes the texts that are not there yet.
fn write_texts(
    args: &Args,
    model: &Model,
    store: &mut FeatureStore,
    held: &mut FeatureStore,
) -> Result<()> {
    let mut prompts = match (&args.prompts, args.self_prompts) {
        (Some(path), _) => prompts::from_file(path)?,
        (None, Some(count)) => {
            let bar = bar("writing prompts", count)?;
            let kept = args.work.join("prompts.json");
            prompts::self_written(model, count, args.prompt_tokens, &kept, &bar)?
        }
        (None, None) => prompts::lines(include_str!("prompts.txt")),
    };
    let texts = args
        .texts
        .unwrap_or(args.self_prompts.map_or(240, |_| prompts.len()));
    ensure!(
        args.held_out < texts,
        "of {texts} texts, {} cannot be held out",
        args.held_out
    );
    ensure!(
        args.held_out == 0 || texts <= prompts.len(),
        "texts to hold out want prompts of their own: there are {} for {texts} texts",
        prompts.len()
    );
    let last: Vec<String> = (texts - args.held_out..texts)
        .map(|i| prompts[i % prompts.len()].clone())
        .collect();
    prompts = (0..texts - args.held_out)
        .map(|i| prompts[i % prompts.len()].clone())
        .collect();
    let bar = bar(
        "writing texts",
        prompts.len() + args.passages + args.held_out,
    )?;
    answer(args, model, &last, held, &bar)?;
    answer(args, model, &prompts, store, &bar)?;
    if args.passages > 0 {
        let mut passages = Vec::new();
        for index in 0..args.passages.min(prompts.len()) {
            let text = store.read(index)?;
            passages.push(
                model
                    .tokenizer()
                    .decode(&text.tokens[text.prompt_len..], false)?,
            );
        }
        prompts.extend(prompts::over_passages(passages));
        answer(args, model, &prompts, store, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn answer(
    args: &Args,
    model: &Model,
    prompts: &[String],
    store: &mut FeatureStore,
    bar: &ProgressBar,
) -> Result<()> {
    let mut options = CollectOptions::new(args.max_new);
    options.ends = model.end_tokens().iter().copied().collect();
    options.sampling.temperature = args.temperature;
    options.batch = 32;
    let prompts: Vec<Vec<u32>> = prompts
        .iter()
        .map(|text| Ok(model.encode(&Prompt::user(text))?))
        .collect::<Result<_>>()?;
    let cache = |spec: &_| SlotCache::new(spec).expect("a cache of the default options");
    collect(
        model.target(),
        cache,
        prompts,
        &options,
        store,
        &mut |done| {
            bar.set_position(done as u64);
            ControlFlow::Continue(())
        },
    )?;
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
        taps: DraftConfig::usual_taps(spec.layers, spec.layers.min(args.taps)),
        mask_token: (spec.vocab - 1) as u32,
        block_size: args.block_size,
        draft_vocab: None,
        head: (!args.without_head).then(|| HeadConfig {
            heads: 4,
            layers: args.head_layers,
            ..HeadConfig::new(args.head_width, args.head_width / 2)
        }),
    }
}

fn bar(what: &'static str, len: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {eta} {msg}")?;
    Ok(ProgressBar::new(len as u64)
        .with_style(style)
        .with_prefix(what))
}
