//! Tokens per second, plain and speculative.

use super::filled::Filled;
use super::table::Table;
use specdec::core::{
    Completion, Decoder, Drafter, FirstCome, FixedLength, Request, TargetModel, Token,
};
use specdec::ragged::{SlotCache, SlotOptions};
use specdec_testkit::oracle::Continuations;
use specdec_testkit::scripted::ScriptedDrafter;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps at the start that do not count: kernels are compiled and memory is taken.
const WARM: usize = 3;
/// Draft length of the speculative runs.
pub const K: usize = 4;
/// Probability that a drafted token of the speculative runs is right.
const RIGHT: f64 = 0.8;

/// A batch over contexts of one length.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    /// Sequences.
    pub rows: usize,
    /// Tokens of each prompt.
    pub context: usize,
    /// Tokens emitted for each.
    pub new: usize,
}

impl Batch {
    fn place(self) -> String {
        format!("{} rows, {} tokens of context", self.rows, self.context)
    }
}

/// What a run came to.
struct Run {
    done: Vec<Completion>,
    per_second: f64,
    step: Duration,
    length: f64,
}

/// A prompt for each row: its first token tells them apart.
pub fn prompts(batch: Batch, vocab: usize) -> Vec<Vec<Token>> {
    let token = |row: usize, i: usize| ((i * 31 + i * i * 7 + row * 1009 + 5) % vocab) as Token;
    (0..batch.rows)
        .map(|row| (0..batch.context).map(|i| token(row, i)).collect())
        .collect()
}

/// A cache with room for a batch, so that it need not grow.
pub fn cache(target: &dyn TargetModel, batch: Batch) -> Result<SlotCache, specdec::core::Error> {
    let chunk = 64;
    let row = (batch.context + batch.new + 2 * K).next_multiple_of(chunk);
    let options = SlotOptions {
        chunk,
        preallocate: batch.rows * row,
        ..SlotOptions::default()
    };
    SlotCache::with_options(target.spec(), &options)
}

/// Decodes a batch whose contexts have these entries.
fn run(
    target: &Arc<dyn TargetModel>,
    (batch, filled): (Batch, &Filled),
    drafter: Option<Box<dyn Drafter>>,
) -> Result<Run, Box<dyn Error>> {
    let spec = target.spec();
    let mut decoder = Decoder::builder(Arc::clone(target))
        .cache(cache(&**target, batch)?)
        .prefixes(filled.clone())
        .scheduler(FirstCome {
            max_rows: batch.rows,
        })
        .drafter_boxed(drafter)
        .controller(FixedLength(K))
        .build()?;
    for prompt in prompts(batch, spec.vocab) {
        decoder.submit(Request::new(prompt).max_new_tokens(batch.new))?;
    }
    let mut done = Vec::new();
    let (mut emitted, mut rounds) = (0, 0);
    let mut started = Instant::now();
    let mut steps = 0;
    while !decoder.is_idle() {
        if steps == WARM {
            (emitted, rounds, started) = (
                decoder.stats().emitted,
                decoder.stats().rounds,
                Instant::now(),
            );
        }
        for event in decoder.step()? {
            if let specdec::core::Event::Finished(completion) = event {
                done.push(completion);
            }
        }
        steps += 1;
    }
    let time = started.elapsed();
    done.sort_by_key(|done| done.seq);
    let emitted = (decoder.stats().emitted - emitted) as f64;
    let rounds = (decoder.stats().rounds - rounds).max(1) as f64;
    Ok(Run {
        done,
        per_second: emitted / time.as_secs_f64(),
        step: time / steps.saturating_sub(WARM).max(1) as u32,
        length: emitted / rounds,
    })
}

/// One batch plainly, then with drafts that are right four times out of five.
///
/// # Errors
/// When a step fails.
pub fn compare(
    table: &mut Table,
    name: &str,
    target: &Arc<dyn TargetModel>,
    batch: Batch,
) -> Result<(), Box<dyn Error>> {
    let filled = Filled::new(target.spec(), batch.context);
    let plain = run(target, (batch, &filled), None)?;
    let figure = |run: &Run| {
        let step = run.step.as_secs_f64() * 1e3;
        format!(
            "{:.1} tokens/s, {:.2} tokens a row and step, {step:.2} ms a step",
            run.per_second, run.length
        )
    };
    table.row("plain", name, batch.place(), figure(&plain));
    if !table.has_time("speculative", name, batch.place()) {
        return Ok(());
    }
    let vocab = target.spec().vocab;
    let prompts = prompts(batch, vocab);
    let known = Continuations::of_runs(prompts.iter().map(Vec::as_slice), &plain.done);
    let drafter = ScriptedDrafter::sometimes(known, vocab, RIGHT, 1);
    let fast = run(target, (batch, &filled), Some(Box::new(drafter)))?;
    let equal = plain
        .done
        .iter()
        .zip(&fast.done)
        .filter(|(a, b)| a.tokens == b.tokens)
        .count();
    let figure = format!(
        "{}; {:.2} times plain; {equal} of {} texts equal",
        figure(&fast),
        fast.per_second / plain.per_second,
        batch.rows,
    );
    table.row(format!("speculative, k = {K}"), name, batch.place(), figure);
    Ok(())
}
