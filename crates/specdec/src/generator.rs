mod builder;
mod options;
mod output;
mod prompt;
mod stream;

pub use builder::{DraftLength, Drafting, GeneratorBuilder};
pub use options::Options;
pub use output::Generated;
pub use prompt::Prompt;
pub use stream::{Piece, TextStream};

use crate::{Model, Result};
use output::Collector;
use specdec_core::{Decoder, Event, Request, SeqId, Stats};
use std::collections::HashMap;

/// Generates text with a model: plainly or speculatively, one prompt or many, whole or streamed.
///
/// The output is the same with every drafter, draft length and batch; see the guarantees in the
/// guide for what "the same" means on each backend.
#[derive(Debug)]
pub struct Generator {
    model: Model,
    decoder: Decoder,
}

impl Generator {
    /// Starts building a generator for this model. The defaults: n-gram drafts of up to 4 tokens,
    /// coupled acceptance.
    pub fn builder(model: &Model) -> GeneratorBuilder {
        GeneratorBuilder::new(model.clone())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The decoder under the text.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Counts and times of everything generated so far.
    pub fn stats(&self) -> &Stats {
        self.decoder.stats()
    }

    /// Continues a prompt.
    ///
    /// # Errors
    /// [`crate::Error`], naming what was wrong with prompt, options or model; the generator can go
    /// on with other prompts.
    pub fn generate(&mut self, prompt: impl Into<Prompt>, options: &Options) -> Result<Generated> {
        let mut done = None;
        let mut stream = self.stream(prompt, options)?;
        for piece in stream.by_ref() {
            piece?;
        }
        if let Some(generated) = stream.into_generated() {
            done = Some(generated);
        }
        done.ok_or_else(|| {
            let what = "a stream ended without its last event".into();
            specdec_core::Error::Contract {
                part: "decoder",
                what,
            }
            .into()
        })
    }

    /// Continues a prompt piece by piece. Dropping the stream cancels the rest.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn stream(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &Options,
    ) -> Result<TextStream<'_>> {
        let ids = self.model.encode(&prompt.into())?;
        let collector = Collector::new(&self.model, options)?;
        let request = self.request(ids.clone(), options)?;
        let events = self.decoder.stream(request)?;
        Ok(TextStream::new(events, collector, ids))
    }

    /// Continues many prompts together, each row at its own pace; the results in order. A prompt
    /// that cannot be served gets its own error and does not touch the others.
    ///
    /// `progress` is told the number of prompts that are done, and how many there are.
    ///
    /// # Errors
    /// When the step itself fails: the model, the cache or the drafter.
    pub fn generate_batch(
        &mut self,
        prompts: impl IntoIterator<Item = (Prompt, Options)>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Result<Generated>>> {
        let mut results: Vec<Option<Result<Generated>>> = Vec::new();
        let mut running: HashMap<SeqId, (usize, Collector, Vec<u32>)> = HashMap::new();
        for (i, (prompt, options)) in prompts.into_iter().enumerate() {
            results.push(None);
            match self.admit(&prompt, &options) {
                Ok((seq, collector, ids)) => {
                    running.insert(seq, (i, collector, ids));
                }
                Err(error) => results[i] = Some(Err(error)),
            }
        }
        let total = results.len();
        progress(total - running.len(), total);
        while !running.is_empty() {
            let events = match self.decoder.step() {
                Ok(events) => events,
                Err(error) => {
                    for seq in running.into_keys() {
                        // Those that ended in the same step are not live any more.
                        let _ = self.decoder.cancel(seq);
                    }
                    return Err(error.into());
                }
            };
            for event in events {
                let seq = event.seq();
                let Some((i, collector, _)) = running.get_mut(&seq) else {
                    continue;
                };
                let i = *i;
                match event {
                    Event::Tokens { tokens, .. } => {
                        if let Err(error) = collector.push(&tokens) {
                            results[i] = Some(Err(error));
                            running.remove(&seq);
                            let _ = self.decoder.cancel(seq);
                        }
                    }
                    Event::Finished(completion) => {
                        if let Some((i, collector, ids)) = running.remove(&seq) {
                            results[i] = Some(Ok(collector.finish(completion, ids)));
                            progress(total - running.len(), total);
                        }
                    }
                    Event::Failed { error, .. } => {
                        running.remove(&seq);
                        results[i] = Some(Err(error.into()));
                        progress(total - running.len(), total);
                    }
                    _ => {}
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    fn admit(
        &mut self,
        prompt: &Prompt,
        options: &Options,
    ) -> Result<(SeqId, Collector, Vec<u32>)> {
        let ids = self.model.encode(prompt)?;
        let collector = Collector::new(&self.model, options)?;
        let request = self.request(ids.clone(), options)?;
        Ok((self.decoder.submit(request)?, collector, ids))
    }

    fn request(&self, ids: Vec<u32>, options: &Options) -> Result<Request> {
        options.request(&self.model, ids)
    }
}
