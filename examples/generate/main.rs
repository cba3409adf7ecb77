//! Continues many prompts, one JSON object a line in and out, with a summary of what it cost.
//!
//! `cargo run --release --example generate -- --input prompts.jsonl --output out.jsonl --batch 8`

mod input;
mod report;

use anyhow::{Context, Result, bail};
use clap::Parser;
use indicatif::ProgressBar;
use specdec::core::Speculation;
use specdec::lilicorr::DraftModel;
use specdec::prelude::*;
use specdec::ragged::Strategy;
use specdec::rakv::{DiskOptions, Identity, PrefixStore, StoreOptions, StoredPrefixes};
use specdec::vegas::VegasConfig;
use specdec::{DraftLength, Model};
use specdec_examples::{AcceptRule, ActivationArg, Dtype, ModelArgs, smollm2_drafter};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// JSON lines of {"id", "prompt" | "messages" | "prompt_ids", options}; - is standard input
    #[arg(long)]
    input: PathBuf,
    /// Where the results go, in input order; - is standard output
    #[arg(long, default_value = "-")]
    output: PathBuf,
    /// Where the summary goes, one JSON object
    #[arg(long)]
    summary: Option<PathBuf>,
    /// none, ngram, model:PATH, vegas or vegas:RATIO (the share of the context that drafts attend to) or
    /// vegas:RATIO:PAGE (in pages of so many positions; 16 suit the CPU),
    /// lilicorr:FOLDER (a drafter that train_lilicorr made) or lilicorr (the one for SmolLM2 in assets/),
    /// dflash:FOLDER or dflash (the same without the head)
    #[arg(long, default_value = "ngram")]
    drafter: String,
    /// How the weights of model:PATH are held in memory [default: like the target's]
    #[arg(long, value_enum)]
    draft_dtype: Option<Dtype>,
    /// What quantised weights of model:PATH are multiplied with [default: like the target's]
    #[arg(long, value_enum)]
    draft_activations: Option<ActivationArg>,
    /// Tokens to draft at a time: a number; auto (or adaptive) for what measured costs and acceptance make
    /// best, 0 included; per-row for what each row's drafts deserve, whatever passes cost
    #[arg(long, default_value = "auto", value_parser = draft_length)]
    draft_length: Length,
    /// Folder of keys and values of earlier prompts: those with the same beginning are not computed again
    #[arg(long)]
    prefix_store: Option<PathBuf>,
    /// Most prompts at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// How the rows of a batch share memory and steps: slots, eqspec, eqspec-refill, exspec[:WINDOW]
    #[arg(long, default_value_t = Strategy::Slots)]
    strategy: Strategy,
    /// Most tokens to generate, where a line does not say
    #[arg(long, default_value_t = 128)]
    max_new: usize,
    /// 0 takes the best token always, where a line does not say
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Seed of the noise, where a line does not say
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How drafts are judged
    #[arg(long, value_enum, default_value_t = AcceptRule::Coupled)]
    accept: AcceptRule,
    /// Continue the first prompts by so many tokens beforehand, so that the summary is without what happens once
    #[arg(long, default_value_t = 0)]
    warm_up: usize,
}

/// A draft length as it is typed.
#[derive(Debug, Clone, Copy)]
enum Length {
    Fixed(usize),
    Adaptive,
    PerRow,
}

fn draft_length(text: &str) -> Result<Length, String> {
    match text {
        "auto" | "adaptive" => Ok(Length::Adaptive),
        "per-row" => Ok(Length::PerRow),
        _ => text
            .parse()
            .map(Length::Fixed)
            .map_err(|_| "a number, auto, adaptive or per-row".into()),
    }
}

fn drafting(args: &Args, model: &Model) -> Result<Drafting> {
    Ok(match args.drafter.as_str() {
        "none" => Drafting::Off,
        "ngram" => Drafting::ngram(),
        "vegas" => Drafting::Vegas(VegasConfig::default()),
        other => {
            let (kind, what) = other.split_once(':').unwrap_or((other, ""));
            let block = || -> Result<DraftModel> {
                let folder = match what {
                    "" => smollm2_drafter(),
                    folder => folder.into(),
                };
                let loaded = DraftModel::load(&folder, model.device());
                loaded.with_context(|| format!("cannot load {}", folder.display()))
            };
            match kind {
                "model" => Drafting::Model(args.model.open_as(
                    what,
                    args.draft_dtype.unwrap_or(args.model.dtype),
                    args.draft_activations.unwrap_or(args.model.activations),
                )?),
                "vegas" => {
                    let (ratio, page) = what.split_once(':').unwrap_or((what, "1"));
                    Drafting::Vegas(VegasConfig {
                        ratio: ratio.parse().context("vegas:RATIO wants a number")?,
                        page: page.parse().context("vegas:RATIO:PAGE wants a number")?,
                        ..VegasConfig::default()
                    })
                }
                "lilicorr" => Drafting::LiLiCorr(block()?),
                "dflash" => Drafting::DFlash(block()?),
                _ => bail!(
                    "--drafter {other} is none of none, ngram, model:PATH, vegas[:RATIO[:PAGE]], \
                     lilicorr[:FOLDER], dflash[:FOLDER]"
                ),
            }
        }
    })
}

fn generator(args: &Args, model: &Model, store: Option<&PrefixStore>) -> Result<Generator> {
    let builder = Generator::builder(model)
        .drafting(drafting(args, model)?)
        .draft_length(match args.draft_length {
            Length::Fixed(k) => DraftLength::Fixed(k),
            Length::Adaptive => DraftLength::adaptive(),
            Length::PerRow => DraftLength::per_row(8),
        })
        .strategy(args.strategy)
        .acceptance(args.accept.rule())
        .max_rows(args.batch as usize);
    let builder = match store {
        Some(store) => builder.prefixes(StoredPrefixes::new(store.clone(), model.device())),
        None => builder,
    };
    Ok(builder.build()?)
}

/// The store in `--prefix-store`; files in it that cannot be used are named on stderr.
fn store(args: &Args, model: &Model) -> Result<Option<PrefixStore>> {
    let Some(folder) = &args.prefix_store else {
        return Ok(None);
    };
    let options = StoreOptions {
        disk: Some(DiskOptions::new(folder)),
        ..StoreOptions::default()
    };
    let store = PrefixStore::open(Identity::of(model.target().spec())?, options)?;
    store
        .refusals()
        .iter()
        .for_each(|refusal| eprintln!("{refusal}"));
    Ok(Some(store))
}

fn defaults(args: &Args) -> Options {
    let mut options = Options::max_new_tokens(args.max_new).temperature(args.temperature);
    options.sampling.seed = Some(args.seed);
    options.speculation = Speculation::On;
    options
}

/// Continues the first prompts in a generator of their own.
fn warm_up(args: &Args, model: &Model, prompts: &[(Prompt, Options)]) -> Result<()> {
    let first = prompts.iter().take(args.batch as usize).cloned();
    let first: Vec<_> = first
        .map(|(prompt, mut options)| {
            options.max_new_tokens = args.warm_up;
            (prompt, options)
        })
        .collect();
    generator(args, model, None)?.generate_batch(first, |_, _| {})?;
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let store = store(&args, &model)?;
    let mut generator = generator(&args, &model, store.as_ref())?;
    let lines = input::read(&args.input, &defaults(&args))?;
    let prompts: Vec<_> = lines
        .iter()
        .filter_map(|l| l.request.as_ref().ok().cloned())
        .collect();
    // Before the work, so that a path that cannot be written costs nothing.
    let mut output = create(&args.output)?;
    let summary_file = args.summary.as_deref().map(create).transpose()?;
    if args.warm_up > 0 {
        warm_up(&args, &model, &prompts)?;
    }
    let bar = ProgressBar::new(prompts.len() as u64);
    let started = Instant::now();
    let results = generator.generate_batch(prompts, |done, _| bar.set_position(done as u64))?;
    let time = started.elapsed();
    bar.finish_and_clear();
    let mut results = results.into_iter();
    let mut summary = report::Summary::new(model.report(), time);
    for line in lines {
        let result = match line.request {
            Ok(_) => results
                .next()
                .context("a result is missing")?
                .map_err(|e| e.to_string()),
            Err(error) => Err(error),
        };
        summary.add(&result);
        writeln!(output, "{}", report::line(&line.id, &result))?;
    }
    output.flush()?;
    if let Some(store) = store {
        store.flush()?;
    }
    if let Some(mut file) = summary_file {
        let report = summary.finish(&generator, &format!("{args:?}"));
        writeln!(file, "{report}")?;
        file.flush()?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout().lock()));
    }
    let file =
        std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Box::new(std::io::BufWriter::new(file)))
}
