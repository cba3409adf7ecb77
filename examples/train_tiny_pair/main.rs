//! Trains the pair of tiny models in `assets/tiny-pair`, writes them, reads them back and checks
//! that they compute the same.
//!
//! `cargo run --release --example train_tiny_pair -- --out assets/tiny-pair`

mod corpus;
mod export;
mod model;
mod report;
mod training;
mod vocabulary;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::prelude::*;
use clap::Parser;
use corpus::Corpus;
use model::{DRAFT, TARGET, TinyLm};
use std::{fs, path::PathBuf};
use training::Course;
use vocabulary::{Batches, Vocabulary};

#[derive(Parser)]
struct Args {
    /// Folder to write: a new one, or that of an earlier pair
    #[arg(long)]
    out: PathBuf,
    /// Training steps of the target
    #[arg(long, default_value_t = 2800)]
    steps: usize,
    /// Training steps of the draft model [default: half of the target's]
    #[arg(long)]
    draft_steps: Option<usize>,
    /// Seed of texts and weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print so many of the texts and do nothing else
    #[arg(long)]
    show_texts: Option<usize>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(n) = args.show_texts {
        Corpus::new(args.seed)
            .take(n)
            .for_each(|text| println!("{text}\n"));
        return Ok(());
    }
    let (out, seed) = (&args.out, args.seed);
    let fresh = !out.exists() || out.join("target/config.json").is_file();
    ensure!(fresh, "{} is there and holds no tiny pair", out.display());
    let steps = [args.steps, args.draft_steps.unwrap_or(args.steps / 2)];

    let plain = Device::flex();
    let device = plain.clone().autodiff();
    device.seed(seed);
    let vocabulary = Vocabulary::train(TARGET.vocab, Corpus::new(seed).take(4000))?;
    let mut batches = Batches::new(&vocabulary, seed.wrapping_add(1));
    let course = Course {
        name: "target",
        steps: steps[0],
        rate: 3e-3,
        teacher: None,
    };
    let (target, target_seconds) =
        training::train(TinyLm::new(TARGET, &device), &course, &mut batches, &device)?;
    let target = target.valid().rounded();
    let course = Course {
        name: "draft",
        steps: steps[1],
        rate: 5e-3,
        teacher: Some(&target),
    };
    let (draft, draft_seconds) =
        training::train(TinyLm::new(DRAFT, &device), &course, &mut batches, &device)?;
    let draft = draft.valid().rounded();

    let mut unseen = Batches::new(&vocabulary, seed.wrapping_add(2));
    let held_out = training::evaluate(&target, &draft, &mut unseen, &plain)?;
    let [a, b] = held_out.losses;
    println!(
        "held-out loss: target {a:.3}, draft {b:.3}; agreement {:.3}\n",
        held_out.agreement
    );

    let finished = out.with_extension("partial");
    fs::remove_dir_all(&finished).ok();
    let row = unseen.row(160)?;
    for (name, model) in [("target", &target), ("draft", &draft)] {
        let folder = finished.join(name);
        export::write(model, &vocabulary, &folder)
            .with_context(|| format!("cannot write {}", folder.display()))?;
        let difference = export::compare(model, &folder, &row)?;
        println!("{name}: read back, the largest difference of a logit is {difference:.1e}");
    }
    let measured = report::measure(&finished)?;
    let card = report::Card {
        models: [&target, &draft],
        steps,
        seconds: [target_seconds, draft_seconds],
        seed,
        held_out,
        measured,
    };
    let card = card.text()?;
    fs::write(finished.join("README.md"), &card)?;
    export::replace(&finished, out)?;
    println!("{card}");
    Ok(())
}
