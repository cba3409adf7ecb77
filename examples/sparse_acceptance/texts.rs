//! Long documents.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use specdec::{Model, Prompt};
use std::path::{Path, PathBuf};

/// Documents of one kind.
pub struct Kind {
    pub name: String,
    pub prompts: Vec<Vec<u32>>,
}

/// A line of a file in the format of Spec-Bench.
#[derive(Deserialize)]
struct Question {
    category: String,
    turns: Vec<String>,
}

/// How many documents, and how long.
#[derive(Clone, Copy)]
pub struct Size {
    pub documents: usize,
    pub tokens: usize,
}

/// The kinds found in the files: articles to summarise and passages with a question in one of Spec-Bench's
/// format, any other text to continue; and records to copy, which are made up.
pub fn kinds(model: &Model, files: &[PathBuf], size: Size) -> Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        if file.extension().is_some_and(|ending| ending == "jsonl") {
            let questions: Vec<Question> = text
                .lines()
                .filter(|line| !line.trim().is_empty())
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()
                .with_context(|| format!("{} is not in Spec-Bench's format", file.display()))?;
            kinds.push(summaries(model, &questions, size)?);
            kinds.push(answers(model, &questions, size)?);
        } else {
            kinds.push(continued(model, file, &text, size)?);
        }
    }
    let records = (0..size.documents as u64).map(|seed| copied(model, seed, size.tokens));
    kinds.push(Kind {
        name: "records to copy".into(),
        prompts: records.collect::<Result<_>>()?,
    });
    Ok(kinds)
}

fn tokens(model: &Model, text: &str) -> Result<usize> {
    Ok(model.encode(&text.into())?.len())
}

/// Takes parts until they have about as many tokens as wanted.
fn join(model: &Model, parts: &mut dyn Iterator<Item = &str>, wanted: usize) -> Result<String> {
    let mut joined = String::new();
    let mut held = 0;
    while held < wanted {
        let part = parts
            .next()
            .context("the file has too few texts of a kind")?;
        held += tokens(model, part)?;
        joined += part;
        joined += "\n\n";
    }
    Ok(joined)
}

/// Articles one after the other, and the wish for a summary of them.
fn summaries(model: &Model, questions: &[Question], size: Size) -> Result<Kind> {
    let mut articles = questions
        .iter()
        .filter(|question| question.category == "summarization")
        .filter_map(|question| question.turns.first())
        .map(|text| text.trim_start_matches("Summarize: "));
    let prompts = (0..size.documents).map(|_| {
        let joined = join(model, &mut articles, size.tokens)?;
        let asked = format!("{joined}Summarize each of these articles in a few sentences.");
        Ok(model.encode(&Prompt::user(asked))?)
    });
    Ok(Kind {
        name: "articles to summarise".into(),
        prompts: prompts.collect::<Result<_>>()?,
    })
}

/// Passages of several questions, and the question of the first of them.
fn answers(model: &Model, questions: &[Question], size: Size) -> Result<Kind> {
    let mut asked = questions
        .iter()
        .filter(|question| question.category == "rag")
        .filter_map(|question| question.turns.first()?.rsplit_once('\n'));
    let prompts = (0..size.documents).map(|_| {
        let (passage, question) = asked.next().context("the file has too few questions")?;
        let mut passages = std::iter::once(passage).chain(asked.by_ref().map(|(text, _)| text));
        let joined = join(model, &mut passages, size.tokens)?;
        let prompt = format!("{joined}{question} Quote the sentences that say so.");
        Ok(model.encode(&Prompt::user(prompt))?)
    });
    Ok(Kind {
        name: "passages and a question".into(),
        prompts: prompts.collect::<Result<_>>()?,
    })
}

/// Pieces of a text, to be continued.
fn continued(model: &Model, file: &Path, text: &str, size: Size) -> Result<Kind> {
    let all = model.encode(&text.into())?;
    ensure!(
        all.len() >= size.tokens,
        "{} has {} tokens",
        file.display(),
        all.len()
    );
    let last = all.len() - size.tokens;
    let starts = (0..size.documents).map(|n| last * n / (size.documents.max(2) - 1));
    let name = file.file_name().unwrap_or(file.as_os_str());
    Ok(Kind {
        name: name.to_string_lossy().into_owned(),
        prompts: starts
            .map(|start| all[start..start + size.tokens].to_vec())
            .collect(),
    })
}

const NAMES: [&str; 8] = [
    "Hartwell",
    "Okafor",
    "Lindqvist",
    "Moreau",
    "Tanaka",
    "Vasquez",
    "Brandt",
    "Nakamura",
];
const TOWNS: [&str; 8] = [
    "Bergen", "Lagos", "Turin", "Quito", "Osaka", "Galway", "Split", "Tampere",
];
const THINGS: [&str; 8] = [
    "copper kettle",
    "oak ladder",
    "glass lamp",
    "wool blanket",
    "steel rake",
    "clay pot",
    "paper kite",
    "brass bell",
];

/// A list of records, and its beginning once more: each line is found at the other end of the document only.
fn copied(model: &Model, seed: u64, wanted: usize) -> Result<Vec<u32>> {
    let mut state = seed;
    let mut pick = |of: usize| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % of as u64) as usize
    };
    let mut record = || {
        let (name, town, thing) = (NAMES[pick(8)], TOWNS[pick(8)], THINGS[pick(8)]);
        format!("{name}, {town}: {thing}, code {}\n", 1000 + pick(9000))
    };
    let first: Vec<String> = (0..3).map(|_| record()).collect();
    let mut list = first.concat();
    while tokens(model, &list)? < wanted {
        list.extend((0..4).map(|_| record()));
    }
    // Three lines show the model that it is to copy; it goes on with the fourth.
    let text = format!(
        "Orders:\n{list}\nThe same orders once more:\n{}",
        first.concat()
    );
    Ok(model.encode(&text.as_str().into())?)
}
