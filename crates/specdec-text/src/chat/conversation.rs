//! What is said, by whom, and what a template is told besides.

use serde_json::{Map, Value};

use super::marks::Marker;
use crate::error::{Result, TextError};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Message {
    /// Who speaks: letters, digits, `_`, `-` and spaces.
    pub role: String,
    /// What they say; `None` for a message that only calls tools.
    pub content: Option<String>,
    /// What else templates may look for: `tool_calls`, `reasoning_content`, `name`, a `content` made
    /// of parts.
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message with words.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(content.into()),
            fields: Map::new(),
        }
    }

    /// A message of the role `system`.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the role `user`.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the role `assistant`.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The message with one more field.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Whether the text ends where the assistant begins to speak. True by default.
    pub add_generation_prompt: bool,
    /// The tools on offer, a list of JSON schemas.
    pub tools: Option<Value>,
    /// Documents to answer from.
    pub documents: Option<Value>,
    /// The template to use, by name. Without one it is `tool_use` if there are tools and the model has such a
    /// template, and `default` otherwise.
    pub template: Option<String>,
    /// Variables of this template alone, such as `enable_thinking`. They are the caller's own words: a
    /// template may make special tokens of them.
    pub variables: Map<String, Value>,
    /// The moment that `strftime_now` tells, in seconds since 1970, UTC. The present, by default.
    pub now: Option<i64>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: None,
            documents: None,
            template: None,
            variables: Map::new(),
            now: None,
        }
    }
}

impl ChatOptions {
    /// The options with one more template variable.
    #[must_use]
    pub fn with(mut self, variable: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(variable.into(), value.into());
        self
    }

    /// The options with tools.
    #[must_use]
    pub fn with_tools(mut self, tools: impl Into<Value>) -> Self {
        self.tools = Some(tools.into());
        self
    }
}

/// All that others have written, as the template gets it.
pub(super) struct Words {
    pub(super) messages: Value,
    pub(super) tools: Value,
    pub(super) documents: Value,
}

impl Words {
    pub(super) fn of(
        messages: &[Message],
        options: &ChatOptions,
        mut marker: Option<&mut Marker<'_>>,
    ) -> Self {
        let mut marked = |value: &Value| match &mut marker {
            Some(marker) => marker.json(value),
            None => value.clone(),
        };
        let messages = messages
            .iter()
            .map(|message| {
                let mut map = Map::new();
                map.insert("role".to_owned(), Value::String(message.role.clone()));
                map.insert(
                    "content".to_owned(),
                    marked(&Value::from(message.content.clone())),
                );
                if let Value::Object(fields) = marked(&Value::Object(message.fields.clone())) {
                    map.extend(fields);
                }
                map.insert("role".to_owned(), Value::String(message.role.clone()));
                Value::Object(map)
            })
            .collect();
        let mut optional = |value: &Option<Value>| value.as_ref().map_or(Value::Null, &mut marked);
        Self {
            messages,
            tools: optional(&options.tools),
            documents: optional(&options.documents),
        }
    }

    /// Whether something holds for any string; every string is shown.
    pub(super) fn any(&self, holds: &mut dyn FnMut(&str) -> bool) -> bool {
        let all = [&self.messages, &self.tools, &self.documents];
        all.into_iter()
            .fold(false, |found, value| strings(value, holds) | found)
    }
}

fn strings(value: &Value, holds: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => holds(text),
        Value::Array(list) => list
            .iter()
            .fold(false, |found, item| strings(item, holds) | found),
        Value::Object(map) => map.iter().fold(false, |found, (key, item)| {
            holds(key) | strings(item, holds) | found
        }),
        _ => false,
    }
}

/// Roles become part of special tokens in many templates, so they must be plain words.
pub(super) fn check_roles(messages: &[Message], spells: impl Fn(&str) -> bool) -> Result<()> {
    let plain =
        |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | ' ');
    match messages
        .iter()
        .find(|message| !message.role.chars().all(plain) || spells(&message.role))
    {
        Some(message) => Err(TextError::Role {
            role: message.role.clone(),
        }),
        None => Ok(()),
    }
}
