//! What the target is asked: prompts of a file, prompts it writes itself, and tasks over its own answers.

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use specdec::core::FinishReason;
use specdec::prelude::*;
use std::collections::HashSet;
use std::path::Path;

/// What to do with a passage.
const TASKS: [&str; 6] = [
    "Summarize the following text.\n\n{}",
    "Summarize this passage in one sentence:\n\n{}",
    "{}\n\nWrite a short summary of the text above.",
    "Read the passage and list its main points.\n\nPassage: {}",
    "Rewrite the following text so that it is shorter.\n\n{}",
    "Answer the question from the passage.\n\nPassage: {}\n\nQuestion: What is this passage about?",
];

/// The longest passage, in characters.
const PASSAGE: usize = 900;

/// Prompts, one a line.
pub fn from_file(path: &Path) -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let prompts: Vec<String> = lines(&text);
    ensure!(!prompts.is_empty(), "{} has no prompts", path.display());
    Ok(prompts)
}

pub fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// What every chat of one user message begins with, before the message.
fn opening(model: &Model) -> Result<Vec<u32>> {
    let (a, b) = (
        model.encode(&Prompt::user("0"))?,
        model.encode(&Prompt::user("Q"))?,
    );
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    Ok(a[..same].to_vec())
}

/// What was drawn so far.
#[derive(Default, Serialize, Deserialize)]
struct Drawn {
    /// Seeds that are spent.
    seeds: u64,
    prompts: Vec<String>,
}

/// User messages drawn from the target itself, behind the opening of its chat template: what it was
/// trained to expect. They are kept in a file, which an interrupted run goes on with.
pub fn self_written(
    model: &Model,
    count: usize,
    longest: usize,
    kept: &Path,
    bar: &ProgressBar,
) -> Result<Vec<String>> {
    let mut drawn: Drawn = match std::fs::read_to_string(kept) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged; delete it", kept.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Drawn::default(),
        Err(error) => return Err(error).context(format!("cannot read {}", kept.display())),
    };
    let opening = opening(model)?;
    let mut seen: HashSet<String> = drawn.prompts.iter().cloned().collect();
    let mut generator = Generator::builder(model).plain().max_rows(32).build()?;
    let mut idle = 0;
    while drawn.prompts.len() < count {
        let seeds = drawn.seeds..drawn.seeds + 64;
        drawn.seeds = seeds.end;
        let batch = seeds.map(|seed| {
            let options = Options::max_new_tokens(longest).temperature(1.0).seed(seed);
            (Prompt::from(opening.clone()), options)
        });
        let before = drawn.prompts.len();
        for message in generator.generate_batch(batch, |_, _| {})? {
            let message = message?;
            // A message that was cut is none.
            let whole = message.finish == FinishReason::EndToken;
            let text = message.text.trim().to_owned();
            if whole && text.split_whitespace().count() >= 3 && seen.insert(text.clone()) {
                drawn.prompts.push(text);
            }
        }
        idle = if drawn.prompts.len() == before {
            idle + 1
        } else {
            0
        };
        ensure!(idle < 8, "the target writes no messages of its own");
        let partial = kept.with_extension("partial");
        std::fs::write(&partial, serde_json::to_string(&drawn)?)?;
        std::fs::rename(&partial, kept)?;
        bar.set_position(drawn.prompts.len().min(count) as u64);
    }
    drawn.prompts.truncate(count);
    Ok(drawn.prompts)
}

/// Tasks over passages, of several kinds in turn.
pub fn over_passages(passages: impl IntoIterator<Item = String>) -> Vec<String> {
    let passages = passages.into_iter().filter(|p| p.len() >= 80);
    passages
        .zip(TASKS.iter().cycle())
        .map(|(passage, task)| {
            let cut: String = passage.chars().take(PASSAGE).collect();
            task.replace("{}", cut.trim())
        })
        .collect()
}
