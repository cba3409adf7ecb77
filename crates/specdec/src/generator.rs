mod builder;
mod length;
mod options;
mod output;
mod prompt;
mod stream;

pub use builder::{Drafting, GeneratorBuilder};
pub use length::DraftLength;
pub use options::Options;
pub use output::Generated;
pub use prompt::Prompt;
pub use stream::{Piece, TextStream};

use crate::{Model, Result};
use output::Collector;
use specdec_core::{Decoder, Event, SeqId, Stats};
use specdec_lilicorr::{PrefixCounts, PrefixStatistics};
use specdec_ragged::BatchMeters;
use specdec_rakv::Adaptive;
use specdec_vegas::{VegasMeter, VegasStats};
use std::collections::HashMap;

/// Generates text with a model: plainly or speculatively, one prompt or many, whole or streamed.
///
/// The output is the same with every drafter, draft length and batch; see the guarantees in the
/// guide for what "the same" means on each backend.
#[derive(Debug)]
pub struct Generator {
    model: Model,
    decoder: Decoder,
    /// Sequences that were submitted, with what turns them into text, and their prompts.
    running: HashMap<SeqId, (Collector, Vec<u32>)>,
    meters: BatchMeters,
    vegas: Option<VegasMeter>,
    blocks: Option<PrefixStatistics>,
    adaptive: Option<Adaptive>,
}

impl Generator {
    /// Starts building a generator for this model. The defaults: n-gram drafts of a length that adapts,
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

    /// What the batch strategy counts: live rows, groups, what aligning cost.
    pub fn meters(&self) -> &BatchMeters {
        &self.meters
    }

    /// With [`Drafting::Vegas`], what was collected, chosen and attended to.
    pub fn vegas(&self) -> Option<VegasStats> {
        self.vegas.as_ref().map(VegasMeter::read)
    }

    /// With [`Drafting::DFlash`] and [`Drafting::LiLiCorr`], how much of their blocks was right.
    pub fn blocks(&self) -> Option<PrefixCounts> {
        self.blocks.as_ref().map(PrefixStatistics::counts)
    }

    /// With [`DraftLength::adaptive`], the controller: what it chose and why, and how right it was.
    pub fn adaptive(&self) -> Option<&Adaptive> {
        self.adaptive.as_ref()
    }

    /// Continues a prompt.
    ///
    /// # Errors
    /// [`crate::Error`], naming what was wrong with prompt, options or model; the generator can go
    /// on with other prompts.
    pub fn generate(&mut self, prompt: impl Into<Prompt>, options: &Options) -> Result<Generated> {
        let mut stream = self.stream(prompt, options)?;
        for piece in stream.by_ref() {
            piece?;
        }
        stream.into_generated().ok_or_else(|| {
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
        let request = options.request(&self.model, ids.clone())?;
        let events = self.decoder.stream(request)?;
        Ok(TextStream::new(events, collector, ids))
    }

    /// Takes a prompt in, to be continued by [`Self::step`] beside the others.
    ///
    /// # Errors
    /// As [`Self::generate`]; nothing has changed then. A generator built with a limit of sequences
    /// refuses with [`specdec_core::RequestError::Busy`] while it is reached.
    pub fn submit(&mut self, prompt: impl Into<Prompt>, options: &Options) -> Result<SeqId> {
        let ids = self.model.encode(&prompt.into())?;
        let collector = Collector::new(&self.model, options)?;
        let seq = self
            .decoder
            .submit(options.request(&self.model, ids.clone())?)?;
        self.running.insert(seq, (collector, ids));
        Ok(seq)
    }

    /// Does one step for all prompts taken in, and returns what happened. Without work it returns
    /// nothing.
    ///
    /// # Errors
    /// When the model, the cache or the drafter fails; calling again tries the step again.
    pub fn step(&mut self) -> Result<Vec<TextEvent>> {
        let events = self.decoder.step()?;
        Ok(events
            .into_iter()
            .filter_map(|event| self.text_of(event))
            .collect())
    }

    /// Whether every prompt taken in has ended and been told.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.decoder.is_idle()
    }

    /// Ends a sequence now; what it has so far is the result. The others go on.
    ///
    /// # Errors
    /// [`specdec_core::Error::UnknownSequence`] when it is not live.
    pub fn cancel(&mut self, seq: SeqId) -> Result<Generated> {
        let completion = self.decoder.cancel(seq)?;
        let (collector, ids) = self
            .running
            .remove(&seq)
            .ok_or(specdec_core::Error::UnknownSequence(seq))?;
        Ok(collector.finish(completion, ids))
    }

    /// Continues many prompts together, each row at its own pace; the results in order. A prompt
    /// that cannot be served gets its own error and does not touch the others.
    ///
    /// `progress` is told the number of prompts that are done, and how many there are.
    ///
    /// # Errors
    /// When a step fails: the model, the cache or the drafter. The prompts are cancelled then.
    pub fn generate_batch(
        &mut self,
        prompts: impl IntoIterator<Item = (Prompt, Options)>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Result<Generated>>> {
        let mut results: Vec<Option<Result<Generated>>> = Vec::new();
        let mut places: HashMap<SeqId, usize> = HashMap::new();
        for (i, (prompt, options)) in prompts.into_iter().enumerate() {
            let (seq, refused) = match self.submit(prompt, &options) {
                Ok(seq) => (Some(seq), None),
                Err(error) => (None, Some(Err(error))),
            };
            results.push(refused);
            places.extend(seq.map(|seq| (seq, i)));
        }
        let total = results.len();
        progress(total - places.len(), total);
        while !places.is_empty() {
            let events = match self.step() {
                Ok(events) => events,
                Err(error) => {
                    for seq in places.into_keys() {
                        // One that ended in the failed step is not live any more: no matter.
                        self.cancel(seq).ok();
                    }
                    return Err(error);
                }
            };
            for event in events {
                let (seq, result) = match event {
                    TextEvent::Piece { .. } => continue,
                    TextEvent::Finished { seq, generated } => (seq, Ok(generated)),
                    TextEvent::Failed { seq, error } => (seq, Err(error)),
                };
                if let Some(i) = places.remove(&seq) {
                    results[i] = Some(result);
                    progress(total - places.len(), total);
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// What an event means in text; `None` for sequences that were not taken in here.
    fn text_of(&mut self, event: Event) -> Option<TextEvent> {
        let seq = event.seq();
        match event {
            Event::Tokens { tokens, .. } => {
                let (collector, _) = self.running.get_mut(&seq)?;
                match collector.push(&tokens) {
                    Ok(text) => Some(TextEvent::Piece {
                        seq,
                        piece: Piece { text, tokens },
                    }),
                    Err(error) => {
                        self.running.remove(&seq);
                        // It may have ended in the same step.
                        self.decoder.cancel(seq).ok();
                        Some(TextEvent::Failed { seq, error })
                    }
                }
            }
            Event::Finished(completion) => {
                let (collector, ids) = self.running.remove(&seq)?;
                let generated = collector.finish(completion, ids);
                Some(TextEvent::Finished { seq, generated })
            }
            Event::Failed { error, .. } => {
                self.running.remove(&seq)?;
                Some(TextEvent::Failed {
                    seq,
                    error: error.into(),
                })
            }
            _ => None,
        }
    }
}

/// Something happened to a sequence.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "an event is looked at and gone; a box would be in the way of patterns"
)]
pub enum TextEvent {
    /// Text and tokens were generated.
    Piece {
        /// The sequence.
        seq: SeqId,
        /// What there is of it.
        piece: Piece,
    },
    /// It ended. Text that was held back until then is in the result only.
    Finished {
        /// The sequence.
        seq: SeqId,
        /// The whole result.
        generated: Generated,
    },
    /// It could not go on; others are not affected.
    Failed {
        /// The sequence.
        seq: SeqId,
        /// Why.
        error: crate::Error,
    },
}
