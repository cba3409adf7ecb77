//! A document asked some questions, with and without stored keys and values of what came before: the time to the
//! first token, cold and warm, and from disk.
//!
//! `cargo run --release --example prefix_reuse -- --store prefixes`

use anyhow::{Result, ensure};
use clap::Parser;
use specdec::prelude::*;
use specdec::rakv::{DiskOptions, Identity, PrefixStore, StoreOptions, StoredPrefixes};
use specdec_examples::ModelArgs;
use std::path::PathBuf;

const DOCUMENT: &str = include_str!("../docs/how-a-step-works.md");
const QUESTIONS: [&str; 5] = [
    "What is this text about?",
    "Which words does it define?",
    "What is an anchor?",
    "What happens when a draft is rejected?",
    "Give it a title.",
];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder of the store; a temporary one by default
    #[arg(long)]
    store: Option<PathBuf>,
    /// Tokens of each answer
    #[arg(long, default_value_t = 16)]
    max_new: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let temporary = std::env::temp_dir().join(format!("specdec-prefixes-{}", std::process::id()));
    let folder = args.store.as_ref().unwrap_or(&temporary);
    let open = || -> Result<PrefixStore> {
        let disk = Some(DiskOptions::new(folder));
        let options = StoreOptions {
            disk,
            ..StoreOptions::default()
        };
        Ok(PrefixStore::open(
            Identity::of(model.target().spec())?,
            options,
        )?)
    };
    let ask = |store: Option<&PrefixStore>| -> Result<Vec<(Vec<u32>, f64, u64)>> {
        let mut generator = Generator::builder(&model).plain();
        if let Some(store) = store {
            generator = generator.prefixes(StoredPrefixes::new(store.clone(), model.device()));
        }
        let mut generator = generator.build()?;
        let options = Options::max_new_tokens(args.max_new);
        QUESTIONS
            .iter()
            .map(|question| {
                let done = generator
                    .generate(Prompt::user(format!("{DOCUMENT}\n\n{question}")), &options)?;
                let first = done.stats.prefill_time + done.stats.reuse_time;
                Ok((done.tokens, first.as_secs_f64() * 1e3, done.stats.reused))
            })
            .collect()
    };
    let cold = ask(None)?;
    let store = open()?;
    let warm = ask(Some(&store))?;
    store.flush()?;
    drop(store);
    let disk = ask(Some(&open()?))?;
    println!("milliseconds to the first token (tokens taken from the store)");
    println!(
        "{:>8} {:>16} {:>16}   question",
        "cold", "warm", "from disk"
    );
    for (((cold, warm), disk), question) in cold.iter().zip(&warm).zip(&disk).zip(QUESTIONS) {
        ensure!(
            cold.0 == warm.0 && cold.0 == disk.0,
            "reuse changed the output"
        );
        println!(
            "{:>8.1} {:>8.1} ({:>5}) {:>8.1} ({:>5})   {question}",
            cold.1, warm.1, warm.2, disk.1, disk.2
        );
    }
    println!("the same answers every time");
    if args.store.is_none() {
        std::fs::remove_dir_all(temporary)?;
    }
    Ok(())
}
