use specdec_text::{ChatOptions, Message};

/// What to continue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Prompt {
    /// Raw text; special tokens in it are recognised, and the tokenizer's begin token is added
    /// where it asks for one.
    Text(String),
    /// Messages, put into the model's chat template. Their contents are plain text: they cannot
    /// forge special tokens.
    Chat(Vec<Message>, Box<ChatOptions>),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// One user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::Chat(vec![Message::user(content)], Box::default())
    }
}

impl From<&str> for Prompt {
    /// Raw text.
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Prompt {
    /// Raw text.
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self::Tokens(ids)
    }
}

impl From<&[Message]> for Prompt {
    /// A chat with the template's default options.
    fn from(messages: &[Message]) -> Self {
        Self::Chat(messages.to_vec(), Box::default())
    }
}

impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Self {
        Self::Chat(messages, Box::default())
    }
}
