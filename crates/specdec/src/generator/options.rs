use crate::{Model, Result};
use specdec_core::{
    CancelToken, Granularity, Limits, LogitRule, Request, SamplingParams, Speculation, StopRule,
    Token,
};
use specdec_text::{StopState, StopStrings};
use std::sync::Arc;

/// How to continue one prompt.
///
/// | option | default |
/// |---|---|
/// | `max_new_tokens` | 256 |
/// | `min_new_tokens` | 0 |
/// | `sampling` | greedy |
/// | `stop` | no stop strings |
/// | `end_tokens` | none beside the model's own |
/// | `ignore_end_tokens` | false |
/// | `speculation` | as the generator is built |
/// | `show_special` | false |
/// | `granularity` | a piece per token |
#[derive(Debug, Clone)]
pub struct Options {
    /// Most tokens to generate.
    pub max_new_tokens: usize,
    /// Fewest tokens before an end token or stop string may end the output.
    pub min_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the output; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the output, beside the model's own.
    pub end_tokens: Vec<Token>,
    /// Go on past the model's own end tokens, to `max_new_tokens`.
    pub ignore_end_tokens: bool,
    /// The request's own logit rules, such as a grammar.
    pub rules: Vec<Arc<dyn LogitRule>>,
    /// Whether to draft.
    pub speculation: Speculation,
    /// Whether special tokens show in the text.
    pub show_special: bool,
    /// Ends the request from another thread.
    pub cancel: Option<CancelToken>,
    /// A piece per token or per round.
    pub granularity: Granularity,
}

impl Default for Options {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_new_tokens: limits.max_new_tokens,
            min_new_tokens: limits.min_new_tokens,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            end_tokens: Vec::new(),
            ignore_end_tokens: false,
            rules: Vec::new(),
            speculation: Speculation::default(),
            show_special: false,
            cancel: None,
            granularity: Granularity::default(),
        }
    }
}

impl Options {
    /// Greedy, at most this many tokens.
    pub fn max_new_tokens(n: usize) -> Self {
        Self {
            max_new_tokens: n,
            ..Self::default()
        }
    }

    /// The same, drawn at a temperature.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = temperature;
        self
    }

    /// The same with a seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }

    /// The same with stop strings.
    pub fn stop<S: Into<String>>(mut self, strings: impl IntoIterator<Item = S>) -> Self {
        self.stop = strings.into_iter().map(Into::into).collect();
        self
    }

    /// The same without drafts.
    pub fn plain(mut self) -> Self {
        self.speculation = Speculation::Off;
        self
    }

    pub(super) fn stops(&self) -> Result<Option<StopStrings>> {
        Ok(if self.stop.is_empty() {
            None
        } else {
            Some(StopStrings::new(self.stop.clone())?)
        })
    }

    pub(super) fn request(&self, model: &Model, prompt: Vec<Token>) -> Result<Request> {
        let mut request = Request::new(prompt).sampling(self.sampling.clone());
        request.limits = Limits {
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
        };
        let own = model
            .end_tokens()
            .iter()
            .copied()
            .filter(|_| !self.ignore_end_tokens);
        request.end_tokens = own.chain(self.end_tokens.iter().copied()).collect();
        request.rules = self.rules.clone();
        request.speculation = self.speculation;
        request.cancel = self.cancel.clone();
        request.granularity = self.granularity;
        if let Some(stops) = self.stops()? {
            let state = StopState::new(&stops, model.tokenizer())
                .show_special(self.show_special)
                .continuing();
            request.stop = Some(Box::new(StopText(state)));
        }
        Ok(request)
    }
}

/// Stop strings as a rule over tokens.
#[derive(Debug)]
struct StopText(StopState);

impl StopRule for StopText {
    fn hits(&mut self, token: Token) -> bool {
        // Before the fewest tokens a stop string is complete and does not count.
        self.0.hear(token).is_some()
    }
}
