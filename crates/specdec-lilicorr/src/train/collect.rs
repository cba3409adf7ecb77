//! Text written by the target, with its hidden states.

use crate::frozen::numbers;
use crate::train::error::Result;
use crate::train::store::{FeatureStore, StoredText};
use burn::prelude::*;
use specdec_core::{
    Block, Completion, Decoder, FirstCome, KvCache, ModelSpec, Phase, Request, SamplingParams,
    SeqId, TargetModel, Token,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How the target writes.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectOptions {
    /// Most tokens of an answer.
    pub max_new_tokens: usize,
    /// How tokens are chosen; text i takes seed `seed + i`.
    pub sampling: SamplingParams,
    /// The first text's seed.
    pub seed: u64,
    /// Tokens that end an answer.
    pub ends: Vec<Token>,
    /// Texts written at a time. They do not depend on it.
    pub batch: usize,
}

impl CollectOptions {
    /// Answers of at most so many tokens, drawn at temperature 1, 16 at a time.
    pub fn new(max_new_tokens: usize) -> Self {
        Self {
            max_new_tokens,
            sampling: SamplingParams::sampled(1.0),
            seed: 1,
            ends: Vec::new(),
            batch: 16,
        }
    }
}

/// Lets the target answer prompts and stores the texts with the states of every position. Prompts whose
/// texts are stored already are passed over, so that an interrupted run goes on with the same ones.
///
/// * `cache` makes an empty cache of the target's kind;
/// * `progress` is told after each batch how many texts are stored; `Break` stops there.
///
/// # Errors
/// Those of decoding, and of the store.
pub fn collect<C: KvCache + 'static>(
    target: &Arc<dyn TargetModel>,
    cache: impl Fn(&ModelSpec) -> C,
    prompts: impl IntoIterator<Item = Vec<Token>>,
    options: &CollectOptions,
    store: &mut FeatureStore,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<()> {
    let mut prompts = prompts.into_iter().enumerate().skip(store.len());
    loop {
        let batch: Vec<(usize, Vec<Token>)> = prompts.by_ref().take(options.batch.max(1)).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let mut decoder = Decoder::builder(Arc::clone(target))
            .cache(cache(target.spec()))
            .scheduler(FirstCome {
                max_rows: batch.len(),
            })
            .build()?;
        let mut prompt_lens = Vec::with_capacity(batch.len());
        let mut texts: Vec<Vec<Token>> = Vec::with_capacity(batch.len());
        for (index, prompt) in batch {
            let mut sampling = options.sampling.clone();
            sampling.seed = Some(options.seed.wrapping_add(index as u64));
            let request = Request::new(prompt.clone())
                .max_new_tokens(options.max_new_tokens)
                .end_tokens(options.ends.iter().copied())
                .sampling(sampling);
            decoder.submit(request)?;
            prompt_lens.push(prompt.len());
            texts.push(prompt);
        }
        let mut done: Vec<Completion> = decoder.run()?;
        done.sort_by_key(|d| d.seq);
        for (text, done) in texts.iter_mut().zip(&done) {
            text.extend_from_slice(&done.tokens);
        }
        for (tokens, prompt_len) in texts.into_iter().zip(prompt_lens) {
            let text = states(
                &**target,
                cache(target.spec()),
                store.taps(),
                tokens,
                prompt_len,
            )?;
            store.push(&text)?;
        }
        if progress(store.len()).is_break() {
            return Ok(());
        }
    }
}

/// One pass over a finished text: the states that decoding went through.
fn states(
    target: &dyn TargetModel,
    mut cache: impl KvCache,
    taps: &[usize],
    tokens: Vec<Token>,
    prompt_len: usize,
) -> Result<StoredText> {
    let block = Block::single(SeqId(0), 0, &tokens, &target.spec().device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill)?;
    let forward = target.forward(&block, &mut *attend, taps)?;
    drop(attend);
    Ok(StoredText {
        taps: numbers(Tensor::cat(forward.taps, 1))?,
        hidden: numbers(forward.hidden)?,
        tokens,
        prompt_len,
    })
}
