use crate::{RequestError, Token};

/// How tokens are chosen from the target's logits.
///
/// Applied in this order at every position, drafted or not: repetition, presence and frequency
/// penalty, logit bias, allowed and banned tokens, the request's own rules, minimum length;
/// then temperature, top-k, top-p, min-p.
///
/// | option | default | range |
/// |---|---|---|
/// | `temperature` | 0 (greedy) | 0 or above |
/// | `top_k` | none | 1 or more |
/// | `top_p` | none | above 0, at most 1 |
/// | `min_p` | none | 0 to 1 |
/// | `repetition_penalty` | 1 (off) | above 0 |
/// | `presence_penalty`, `frequency_penalty` | 0 (off) | -2 to 2 |
/// | `logit_bias` | none | any number but NaN; minus infinity forbids |
/// | `allowed` | all | at least one token |
/// | `banned` | none | |
/// | `seed` | drawn at random | any |
/// | `logprobs` | none | 0 to the vocabulary size |
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the best token.
    pub temperature: f32,
    /// Keeps the k best tokens (lowest ids where equal).
    pub top_k: Option<usize>,
    /// Keeps the smallest set of best tokens whose probabilities reach this sum.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this probable in relation to the best.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of every token in prompt or output.
    pub repetition_penalty: f32,
    /// Taken off the logit of every token in the output.
    pub presence_penalty: f32,
    /// Taken off the logit of a token in the output once per occurrence.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// The only tokens that may be chosen.
    pub allowed: Option<Vec<Token>>,
    /// Tokens that may not be chosen.
    pub banned: Vec<Token>,
    /// Seed of the noise; the same seed gives the same tokens, alone or in any batch. With
    /// [`crate::Rejection`] that holds for the same drafts only, and draft lengths that follow measured
    /// times change from run to run.
    pub seed: Option<u64>,
    /// Which of several samples of one seed this is.
    pub sample: u64,
    /// Return log-probabilities, with this many best tokens at each place.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed: None,
            banned: Vec::new(),
            seed: None,
            sample: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Takes the best token always.
    pub fn greedy() -> Self {
        Self::default()
    }

    /// Draws at this temperature.
    pub fn sampled(temperature: f32) -> Self {
        Self {
            temperature,
            ..Self::default()
        }
    }

    /// Checks ranges and token ids.
    ///
    /// # Errors
    /// [`RequestError::OptionValue`] or [`RequestError::OptionToken`], naming the option.
    pub fn check(&self, vocab: usize) -> Result<(), RequestError> {
        range(
            "temperature",
            self.temperature,
            |v| v >= 0.0,
            "a finite number, 0 or above",
        )?;
        range(
            "repetition_penalty",
            self.repetition_penalty,
            |v| v > 0.0,
            "a finite number above 0",
        )?;
        let penalty = |v: f32| (-2.0..=2.0).contains(&v);
        range(
            "presence_penalty",
            self.presence_penalty,
            penalty,
            "a number from -2 to 2",
        )?;
        range(
            "frequency_penalty",
            self.frequency_penalty,
            penalty,
            "a number from -2 to 2",
        )?;
        if let Some(p) = self.top_p {
            range(
                "top_p",
                p,
                |v| v > 0.0 && v <= 1.0,
                "a number above 0, at most 1",
            )?;
        }
        if let Some(p) = self.min_p {
            range(
                "min_p",
                p,
                |v| (0.0..=1.0).contains(&v),
                "a number from 0 to 1",
            )?;
        }
        if self.top_k == Some(0) {
            return Err(value("top_k", 0, "1 or more"));
        }
        if let Some(n) = self.logprobs.filter(|&n| n > vocab) {
            return Err(value("logprobs", n, "at most the vocabulary size"));
        }
        if let Some((token, bias)) = self
            .logit_bias
            .iter()
            .find(|(_, b)| b.is_nan() || *b == f32::INFINITY)
        {
            return Err(value(
                "logit_bias",
                format!("{bias} for token {token}"),
                "a number, or minus infinity",
            ));
        }
        if self.allowed.as_ref().is_some_and(Vec::is_empty) {
            return Err(value("allowed", "empty", "at least one token"));
        }
        tokens("logit_bias", self.logit_bias.iter().map(|(t, _)| *t), vocab)?;
        tokens("allowed", self.allowed.iter().flatten().copied(), vocab)?;
        tokens("banned", self.banned.iter().copied(), vocab)
    }
}

fn value(option: &'static str, value: impl ToString, allowed: &'static str) -> RequestError {
    RequestError::OptionValue {
        option,
        value: value.to_string(),
        allowed,
    }
}

fn range(
    option: &'static str,
    v: f32,
    ok: impl Fn(f32) -> bool,
    allowed: &'static str,
) -> Result<(), RequestError> {
    if v.is_finite() && ok(v) {
        Ok(())
    } else {
        Err(value(option, v, allowed))
    }
}

fn tokens(
    option: &'static str,
    mut ids: impl Iterator<Item = Token>,
    vocab: usize,
) -> Result<(), RequestError> {
    match ids.find(|&t| t as usize >= vocab) {
        Some(token) => Err(RequestError::OptionToken {
            option,
            token,
            vocab,
        }),
        None => Ok(()),
    }
}
