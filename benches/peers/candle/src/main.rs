//! Greedy decoding of a GGUF file of the Llama family by candle, for the comparison in `run.py`.
//!
//! The model is `candle_transformers::models::quantized_llama`: weights stay in the file's blocks, activations are
//! rounded to 8 bits in blocks of 32 before each product, keys and values are kept in f32 and concatenated with the
//! new ones at each pass. A prompt goes through in one pass, then one pass makes one token.
//!
//! Reads lines `{"prompt_ids": [...]}` from standard input, one sequence after the other, and writes a line
//! `{"ids", "prefill_seconds", "decode_seconds"}` for each. The first id belongs to the prompt's pass; an end token
//! ends the sequence and is part of the ids. `RAYON_NUM_THREADS` sets the threads.

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file;
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Parser)]
struct Args {
    /// A GGUF file
    #[arg(long)]
    model: PathBuf,
    /// Most tokens to generate
    #[arg(long, default_value_t = 128)]
    max_new: usize,
    /// Ids that end a sequence [default: the file's end token]
    #[arg(long)]
    end: Vec<u32>,
}

#[derive(Deserialize)]
struct Line {
    prompt_ids: Vec<u32>,
}

#[derive(Serialize)]
struct Output {
    ids: Vec<u32>,
    prefill_seconds: f64,
    decode_seconds: f64,
}

/// One pass over new tokens behind `position` earlier ones: the best next token, read back.
fn pass(model: &mut ModelWeights, tokens: &[u32], position: usize) -> Result<u32> {
    let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let logits = model.forward(&input, position)?;
    Ok(logits.argmax(D::Minus1)?.squeeze(0)?.to_scalar()?)
}

fn decode(model: &mut ModelWeights, prompt: &[u32], max_new: usize, end: &[u32]) -> Result<Output> {
    ensure!(!prompt.is_empty(), "a prompt is empty");
    model.clear_kv_cache();
    let started = Instant::now();
    let mut ids = vec![pass(model, prompt, 0)?];
    let prefill_seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    while ids.len() < max_new && !end.contains(&ids[ids.len() - 1]) {
        let position = prompt.len() + ids.len() - 1;
        ids.push(pass(model, &ids[ids.len() - 1..], position)?);
    }
    Ok(Output {
        ids,
        prefill_seconds,
        decode_seconds: started.elapsed().as_secs_f64(),
    })
}

fn main() -> Result<()> {
    let args = Args::parse();
    let file =
        File::open(&args.model).with_context(|| format!("cannot read {}", args.model.display()))?;
    let mut file = BufReader::new(file);
    let content = gguf_file::Content::read(&mut file)?;
    let end = match content.metadata.get("tokenizer.ggml.eos_token_id") {
        Some(id) if args.end.is_empty() => vec![id.to_u32()?],
        _ => args.end,
    };
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let mut stdout = std::io::stdout().lock();
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let line: Line = serde_json::from_str(&line?)?;
        if number == 0 {
            // What happens once is in no engine's figures.
            decode(&mut model, &line.prompt_ids, args.max_new.min(4), &end)?;
        }
        let output = decode(&mut model, &line.prompt_ids, args.max_new, &end)?;
        writeln!(stdout, "{}", serde_json::to_string(&output)?)?;
        stdout.flush()?;
    }
    Ok(())
}
