//! A seeded generator of small English texts: stories, songs, talk in a shop, questions and answers
//! about a little world, lists, copies. The same seed gives the same texts.

mod answers;
mod stories;
mod teller;
mod words;

use teller::Teller;

/// Begins every document, and ends one that is no conversation.
pub const BEGIN: &str = "<|endoftext|>";
/// Begins a message.
pub const MESSAGE: &str = "<|im_start|>";
/// Ends a message.
pub const END: &str = "<|im_end|>";

/// An endless row of documents.
pub struct Corpus(Teller);

impl Corpus {
    pub fn new(seed: u64) -> Self {
        Self(Teller::new(seed))
    }
}

impl Iterator for Corpus {
    type Item = String;

    /// The next document, special tokens spelt out.
    fn next(&mut self) -> Option<String> {
        let t = &mut self.0;
        let text = match t.below(20) {
            0..3 => stories::story_of_anyone(t),
            3..5 => stories::shop(t),
            5 => stories::song(t),
            _ => conversation(t),
        };
        Some(format!("{BEGIN}{text}"))
    }
}

/// One to three questions and their answers, as the chat template writes them.
fn conversation(t: &mut Teller) -> String {
    let turns = [1, 1, 2, 3][t.below(4)];
    let mut text = String::new();
    for _ in 0..turns {
        for (question, answer) in answers::exchange(t) {
            text += &format!("{MESSAGE}user\n{question}{END}\n");
            text += &format!("{MESSAGE}assistant\n{answer}{END}\n");
        }
    }
    text
}
