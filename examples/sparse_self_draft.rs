//! The target drafts for itself and attends to a part of a long document only: budget against acceptance and
//! speed, beside a plain window (StreamingLLM) of the same budget, and what the cost model makes of it.
//!
//! `cargo run --release --example sparse_self_draft -- --tokens 2000 --plot vegas.svg`

use anyhow::{Context, Result, ensure};
use clap::Parser;
use specdec::core::{Decoder, FixedLength, Request, Stats, TargetModel};
use specdec::ragged::SlotCache;
use specdec::rakv::{Identity, PrefixStore, StoreOptions, StoredPrefixes};
use specdec::vegas::{
    CheckedConfig, CostModel, Ranked, Select, Streaming, Vegas, VegasConfig, VegasDrafter,
};
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
    /// Rows that are decoded together: the document from its first token on, from its second, ..
    #[arg(long, default_value_t = 1)]
    rows: usize,
    /// Tokens to generate
    #[arg(long, default_value_t = 64)]
    max_new: usize,
    /// Tokens to draft at a time
    #[arg(long, default_value_t = 4)]
    draft_length: usize,
    /// Positions kept or left out together
    #[arg(long, default_value_t = 16)]
    page: usize,
    /// Where to write the plot
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// What all runs share.
struct Bench<'a> {
    args: &'a Args,
    target: &'a Arc<dyn TargetModel>,
    prompts: Vec<Vec<u32>>,
    /// Prompts are prefilled once.
    store: PrefixStore,
}

struct Done {
    stats: Stats,
    tokens: Vec<Vec<u32>>,
    /// Draft passes of all rows together.
    drafts: f64,
    /// Share of the entries that they attended to.
    kept: f64,
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
            include_str!("../docs/testing.md"),
        ]
        .concat(),
    };
    let document = model.encode(&text.as_str().into())?;
    let spec = model.target().spec();
    let options = StoreOptions {
        memory: 4 << 30,
        ..StoreOptions::default()
    };
    let bench = Bench {
        args: &args,
        target: model.target(),
        prompts: (0..args.rows)
            .map(|row| {
                document
                    .iter()
                    .skip(row)
                    .take(args.tokens)
                    .copied()
                    .collect()
            })
            .collect(),
        store: PrefixStore::open(Identity::of(spec)?, options)?,
    };
    // The first run prefills, and is not measured.
    bench.run(None)?;
    let plain = bench.run(None)?;
    let step = plain.stats.decode_time() * args.rows as u32 / plain.stats.rounds as u32;
    let context: usize = bench.prompts.iter().map(Vec::len).sum();
    let entry = 2 * spec.layers * spec.kv_heads * spec.head_dim * size_of::<f32>();
    let x = CostModel::kv_share(context, entry, model.report().memory_bytes);
    println!(
        "{} rows, {context} tokens of context: a plain step takes {:.1} ms, {:.1} tokens/s; keys and values \
         are {x:.2} of the weights (x)",
        args.rows,
        step.as_secs_f64() * 1e3,
        plain.stats.tokens_per_second().unwrap_or(0.0),
    );
    println!(
        "drafts of {}: acceptance length tau; a draft pass takes c plain steps and a verify pass v; the speed \
         that follows from these, from bytes alone, and as measured",
        args.draft_length
    );
    println!(
        "budget  rule        kept  accepted   tau     c     v  tau/(kc+v)  by bytes  measured"
    );
    let mut curves = ["ranked: drafts accepted", "window: drafts accepted"].map(Curve::new);
    let mut speeds = ["ranked: speed", "window: speed"].map(Curve::new);
    for ratio in [0.03, 0.07, 0.15, 0.3, 1.0] {
        let config = VegasConfig {
            ratio,
            min: 16,
            page: args.page,
            ..VegasConfig::default()
        }
        .check()?;
        let rules: [(&str, Vegas<SlotCache>); 2] = [
            ("ranked", bench.cache(&config, Ranked::new(&config))?),
            ("window", bench.cache(&config, Streaming::default())?),
        ];
        for (number, (name, cache)) in rules.into_iter().enumerate() {
            let done = bench.run(Some(cache))?;
            ensure!(
                done.tokens == plain.tokens,
                "speculation changed the output"
            );
            let rounds = done.stats.rounds as f64 / args.rows as f64;
            let accepted = done.stats.acceptance_rate().unwrap_or(0.0);
            let tau = done.stats.acceptance_length().unwrap_or(1.0);
            let c = done.stats.draft_time.as_secs_f64() / done.drafts / step.as_secs_f64();
            let v = done.stats.verify_time.as_secs_f64() / rounds / step.as_secs_f64();
            let predicted = CostModel::measured(args.draft_length, tau, c, v);
            let bytes = CostModel::new(x, done.kept).speedup(args.draft_length, tau);
            let times = |stats: &Stats| stats.decode_time().as_secs_f64();
            let measured = times(&plain.stats) / times(&done.stats);
            println!(
                "{ratio:>6}  {name:<9}  {:>4.0}%  {:>7.1}%  {tau:.2}  {c:.2}  {v:.2}  {predicted:>9.2}x  \
                 {bytes:>7.2}x  {measured:>7.2}x",
                100.0 * done.kept,
                100.0 * accepted
            );
            curves[number].points.push((ratio, accepted));
            speeds[number].points.push((ratio, measured));
        }
    }
    println!("the same tokens every time");
    if let Some(path) = &args.plot {
        plot(
            path,
            "share of the context drafts attend to",
            "drafts accepted; speed (plain decoding is 1)",
            &[curves, speeds].concat(),
        )?;
    }
    Ok(())
}

impl Bench<'_> {
    fn cache(
        &self,
        config: &CheckedConfig,
        rule: impl Select + 'static,
    ) -> Result<Vegas<SlotCache>> {
        let spec = self.target.spec();
        let cache = SlotCache::new(spec)?;
        Ok(Vegas::with_select(cache, spec, config.clone(), rule))
    }

    /// Decodes all rows; without a cache to draft with, plainly.
    fn run(&self, drafting: Option<Vegas<SlotCache>>) -> Result<Done> {
        let spec = self.target.spec();
        let prefixes = StoredPrefixes::new(self.store.clone(), &spec.device);
        let builder = Decoder::builder(self.target.clone()).prefixes(prefixes);
        let meter = drafting.as_ref().map(Vegas::meter);
        let mut decoder = match drafting {
            Some(cache) => builder
                .cache(cache)
                .drafter(VegasDrafter::new())
                .controller(FixedLength(self.args.draft_length)),
            None => builder.cache(SlotCache::new(spec)?),
        }
        .build()?;
        for prompt in &self.prompts {
            let max_new = self.args.max_new;
            decoder.submit(Request::new(prompt.clone()).max_new_tokens(max_new))?;
        }
        let done = decoder.run()?;
        let drafted = meter.map(|meter| meter.read()).unwrap_or_default();
        Ok(Done {
            stats: decoder.stats().clone(),
            tokens: done.into_iter().map(|row| row.tokens).collect(),
            drafts: drafted.draft_rows as f64 / self.args.rows as f64,
            kept: drafted.attended_share().unwrap_or(1.0),
        })
    }
}
