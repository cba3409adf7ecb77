use super::Generated;
use super::output::Collector;
use crate::Result;
use specdec_core::{Completion, Emitted, Event, Stream, Token};

/// A piece of output.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// Text that has become certain: never half a character, nothing of a stop string. May be
    /// empty while a character is incomplete or a stop string may be under way.
    pub text: String,
    /// The tokens that came with it; empty for a last piece that only held text back.
    pub tokens: Vec<Emitted>,
}

/// Text as it is generated: an iterator of pieces. Their texts joined are the text of the result.
/// Dropping it cancels the rest.
#[derive(Debug)]
pub struct TextStream<'g> {
    events: Stream<'g>,
    collector: Collector,
    prompt: Vec<Token>,
    completion: Option<Completion>,
}

impl<'g> TextStream<'g> {
    pub(super) fn new(events: Stream<'g>, collector: Collector, prompt: Vec<Token>) -> Self {
        Self {
            events,
            collector,
            prompt,
            completion: None,
        }
    }

    /// The ids of the prompt.
    pub fn prompt_tokens(&self) -> &[Token] {
        &self.prompt
    }

    /// The whole result, once the stream has ended by itself.
    pub fn into_generated(self) -> Option<Generated> {
        let Self {
            collector,
            prompt,
            completion,
            ..
        } = self;
        completion.map(|completion| collector.finish(completion, prompt))
    }
}

impl Iterator for TextStream<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.events.next()? {
                Err(error) => return Some(Err(error.into())),
                Ok(Event::Tokens { tokens, .. }) => {
                    let piece = self.collector.push(&tokens);
                    return Some(piece.map(|text| Piece { text, tokens }));
                }
                Ok(Event::Finished(completion)) => {
                    self.completion = Some(completion);
                    let text = self.collector.close();
                    if !text.is_empty() {
                        return Some(Ok(Piece {
                            text,
                            tokens: Vec::new(),
                        }));
                    }
                }
                Ok(_) => {}
            }
        }
    }
}
