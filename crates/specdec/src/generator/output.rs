use super::Options;
use crate::{Model, Result};
use specdec_core::{Completion, Emitted, FinishReason, Stats, Token};
use specdec_text::{Detokenizer, StopMatcher};

/// What a prompt was continued with.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Generated {
    /// The text, up to a stop string, without special tokens unless asked for.
    pub text: String,
    /// The generated ids, an end token included.
    pub tokens: Vec<Token>,
    /// The ids of the prompt.
    pub prompt_tokens: Vec<Token>,
    /// Why it ended.
    pub finish: FinishReason,
    /// One entry a token when log-probabilities were asked for.
    pub logprobs: Vec<Emitted>,
    /// Counts and times.
    pub stats: Stats,
    /// The seed that was used.
    pub seed: u64,
    /// The drafter that ran, `None` for plain decoding.
    pub drafter: Option<&'static str>,
}

/// Turns tokens into text as they come.
#[derive(Debug)]
pub(super) struct Collector {
    detokenizer: Detokenizer,
    stops: Option<StopMatcher>,
    /// Tokens that are still to come before a stop string counts.
    waiting: usize,
    text: String,
    closed: bool,
}

impl Collector {
    pub(super) fn new(model: &Model, options: &Options) -> Result<Self> {
        Ok(Self {
            detokenizer: Detokenizer::new(model.tokenizer())
                .show_special(options.show_special)
                .continuing(),
            stops: options.stops()?.map(|stops| StopMatcher::new(&stops)),
            // The last of the fewest tokens may complete one.
            waiting: options.min_new_tokens.saturating_sub(1),
            text: String::new(),
            closed: false,
        })
    }

    /// The text that these tokens make certain, maybe none.
    pub(super) fn push(&mut self, tokens: &[Emitted]) -> Result<String> {
        let mut piece = String::new();
        for emitted in tokens {
            let text = self.detokenizer.push(emitted.token)?;
            piece.push_str(&self.pass(&text));
            self.waiting = self.waiting.saturating_sub(1);
        }
        self.text.push_str(&piece);
        Ok(piece)
    }

    /// The text that was held back and is certain now that nothing follows.
    pub(super) fn close(&mut self) -> String {
        if std::mem::replace(&mut self.closed, true) {
            return String::new();
        }
        let last = self.detokenizer.finish();
        let mut piece = self.pass(&last);
        if let Some(stops) = &mut self.stops {
            piece.push_str(&stops.finish().text);
        }
        self.text.push_str(&piece);
        piece
    }

    fn pass(&mut self, text: &str) -> String {
        match &mut self.stops {
            None => text.to_owned(),
            Some(stops) if self.waiting > 0 => stops.pass_over(text).text,
            Some(stops) => stops.push(text).text,
        }
    }

    pub(super) fn finish(mut self, completion: Completion, prompt: Vec<Token>) -> Generated {
        self.close();
        Generated {
            text: self.text,
            tokens: completion.tokens,
            prompt_tokens: prompt,
            finish: completion.finish,
            logprobs: completion.logprobs,
            stats: completion.stats,
            seed: completion.seed,
            drafter: completion.drafter,
        }
    }
}
