//! Stop strings, over pieces of text and over token ids.

use std::sync::Arc;

use crate::{
    Tokenizer,
    automaton::{Automaton, State},
    detokenize::Hearing,
    error::{Result, TextError},
};

/// A set of stop strings, compiled once and shared.
///
/// Whichever stop string is complete first ends the text; when several are complete at the same
/// character, the longest does, so the text before it is the shortest.
#[derive(Debug, Clone)]
pub struct StopStrings {
    automaton: Arc<Automaton>,
    strings: Arc<[String]>,
}

impl StopStrings {
    /// Compiles the strings. None at all is fine and never stops.
    ///
    /// # Errors
    /// [`TextError::EmptyStopString`].
    pub fn new<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Result<Self> {
        let strings: Arc<[String]> = strings.into_iter().map(Into::into).collect();
        if let Some(index) = strings.iter().position(String::is_empty) {
            return Err(TextError::EmptyStopString { index });
        }
        let automaton = Arc::new(Automaton::new(strings.iter().map(String::as_bytes)));
        Ok(Self { automaton, strings })
    }

    /// The strings, in the order given; what [`StopOutput::matched`] counts in.
    #[must_use]
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// Whether there is nothing to stop at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }
}

/// What a [`StopMatcher`] lets through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutput {
    /// Text that can no longer be part of a stop string.
    pub text: String,
    /// The stop string that ended the text, by its place in the list.
    pub matched: Option<usize>,
}

/// Takes pieces of text and lets through what cannot become a stop string.
///
/// Held back is the longest end of the text that begins a stop string, and nothing more. After a
/// match nothing is let through any more.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: StopStrings,
    state: State,
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher at the beginning of a text.
    #[must_use]
    pub fn new(stops: &StopStrings) -> Self {
        Self {
            stops: stops.clone(),
            state: State::default(),
            held: String::new(),
            matched: None,
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        self.take(piece, true)
    }

    /// Takes the next piece, one in which no stop string ends the text. One that begins there can end it later.
    pub fn pass_over(&mut self, piece: &str) -> StopOutput {
        self.take(piece, false)
    }

    fn take(&mut self, piece: &str, ends: bool) -> StopOutput {
        if self.matched.is_some() {
            return StopOutput {
                text: String::new(),
                matched: self.matched,
            };
        }
        let held = self.held.len();
        self.held.push_str(piece);
        for (index, &byte) in piece.as_bytes().iter().enumerate() {
            self.state = self.stops.automaton.step(self.state, byte);
            let longest = self.stops.automaton.matches(self.state).next();
            if let Some((stop, length)) = longest.filter(|_| ends) {
                let mut text = std::mem::take(&mut self.held);
                text.truncate(held + index + 1 - length);
                self.matched = Some(stop);
                return StopOutput {
                    text,
                    matched: self.matched,
                };
            }
        }
        // A stop string begins with a whole character, so this is a character boundary.
        let keep = self.held.len() - self.stops.automaton.depth(self.state);
        let rest = self.held.split_off(keep);
        StopOutput {
            text: std::mem::replace(&mut self.held, rest),
            matched: None,
        }
    }

    /// The text held back just now.
    #[must_use]
    pub fn held(&self) -> &str {
        &self.held
    }

    /// The stop string that was found, by its place in the list.
    #[must_use]
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// Ends the text: what was held back is no stop string after all, and comes out. The matcher is
    /// then at the beginning of a new text.
    pub fn finish(&mut self) -> StopOutput {
        self.state = State::default();
        StopOutput {
            text: std::mem::take(&mut self.held),
            matched: self.matched.take(),
        }
    }
}

/// A stop string completed by a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopHit {
    /// The place, among the ids asked about, of the token that completes it.
    pub token: usize,
    /// The stop string, by its place in the list.
    pub stop: usize,
}

/// Watches token ids, rather than text, for stop strings: what a decoder asks to know after which
/// token of a block the text is over.
///
/// It reads the bytes of the tokens, so characters and stop strings may be spread over tokens in any
/// way, and it hears the text that a [`crate::Detokenizer`] with the same settings writes: hidden special
/// tokens are silent and the leading space that decoding drops is dropped. Cloning it is cheap.
/// The one difference: ill-formed bytes, which the text shows as U+FFFD, never match a stop
/// string that has U+FFFD in it.
#[derive(Debug, Clone)]
pub struct StopState {
    stops: StopStrings,
    state: State,
    hearing: Hearing,
    matched: Option<usize>,
}

impl StopState {
    /// A watcher at the beginning of a text; special tokens are hidden.
    #[must_use]
    pub fn new(stops: &StopStrings, tokenizer: &Tokenizer) -> Self {
        Self {
            stops: stops.clone(),
            state: State::default(),
            hearing: Hearing::new(tokenizer),
            matched: None,
        }
    }

    /// Whether special tokens are part of the text.
    #[must_use]
    pub fn show_special(mut self, show: bool) -> Self {
        self.hearing.show_special = show;
        self
    }

    /// The text goes on from a prompt, so a leading space is part of it.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.hearing.continuing();
        self
    }

    /// Takes one token; returns the stop string that it completes, or that was complete before.
    /// Ids without text are silent.
    pub fn push(&mut self, id: u32) -> Option<usize> {
        if self.matched.is_none() {
            self.matched = self.hear(id);
        }
        self.matched
    }

    /// Takes one token; returns the stop string that it completes, whatever was complete before.
    pub fn hear(&mut self, id: u32) -> Option<usize> {
        if self.stops.is_empty() {
            return None;
        }
        let Self {
            stops,
            state,
            hearing,
            ..
        } = self;
        let mut first = None;
        for &byte in hearing.hear(id).unwrap_or_default() {
            *state = stops.automaton.step(*state, byte);
            let matched = stops.automaton.matches(*state).next();
            first = first.or(matched.map(|(stop, _)| stop));
        }
        first
    }

    /// Which of these tokens would complete a stop string; the state stays as it is.
    #[must_use]
    pub fn first_match(&self, ids: &[u32]) -> Option<StopHit> {
        let mut ahead = self.clone();
        ids.iter()
            .enumerate()
            .find_map(|(token, &id)| ahead.push(id).map(|stop| StopHit { token, stop }))
    }

    /// The stop string found so far, by its place in the list.
    #[must_use]
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }
}
