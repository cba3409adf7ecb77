//! From a request's body to a prompt and options.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::state::Server;
use serde_json::Value;
use specdec::core::Granularity;
use specdec::text::Message;
use specdec::{Options, Prompt};

/// The two kinds of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: Kind,
    pub(crate) prompt: Prompt,
    pub(crate) options: Options,
    pub(crate) stream: bool,
    /// A last chunk of a stream tells the counts.
    pub(crate) stream_usage: bool,
}

impl Wanted {
    /// Reads a body; every field is checked, and unknown ones are refused.
    pub(crate) fn read(kind: Kind, body: &[u8], server: &Server) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let asked = fields.text("model")?;
        let asked = asked.ok_or_else(|| ApiError::field("model", "the model's name is needed"))?;
        if asked != server.name {
            return Err(ApiError::no_model(&asked, &server.name));
        }
        let prompt = match kind {
            Kind::Chat => chat(fields.take("messages"))?,
            Kind::Completion => completion(fields.take("prompt"))?,
        };
        let options = options(kind, &mut fields, server)?;
        let stream = fields.flag("stream")?;
        let stream_usage = match fields.take("stream_options") {
            None => false,
            Some(_) if !stream => {
                return Err(ApiError::field(
                    "stream_options",
                    "this goes with stream only",
                ));
            }
            Some(Value::Object(map)) if map.keys().all(|key| key == "include_usage") => map
                .get("include_usage")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            Some(_) => {
                return Err(ApiError::field(
                    "stream_options",
                    "an object with include_usage is needed",
                ));
            }
        };
        fields.only("n", 1)?;
        if kind == Kind::Completion {
            fields.only("best_of", 1)?;
            fields.only("echo", false)?;
        }
        // It names an end user and changes nothing.
        fields.text("user")?;
        fields.end()?;
        Ok(Self {
            kind,
            prompt,
            options,
            stream,
            stream_usage,
        })
    }
}

fn options(kind: Kind, fields: &mut Fields, server: &Server) -> Result<Options, ApiError> {
    let most = server.settings.max_tokens;
    let mut max_tokens = fields.count("max_tokens", 0, most)?;
    if kind == Kind::Chat
        && let Some(newer) = fields.count("max_completion_tokens", 0, most)?
    {
        if max_tokens.is_some() {
            return Err(ApiError::field(
                "max_tokens",
                "give this or max_completion_tokens",
            ));
        }
        max_tokens = Some(newer);
    }
    let mut options = Options::max_new_tokens(max_tokens.unwrap_or(256.min(most)));
    options.granularity = Granularity::Block;
    options.stop = stops(fields.take("stop"))?;
    let sampling = &mut options.sampling;
    sampling.temperature = fields.number("temperature", 0.0, 2.0)?.unwrap_or(1.0);
    sampling.top_p = fields.number("top_p", 0.0, 1.0)?.filter(|&p| p < 1.0);
    sampling.presence_penalty = fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0);
    sampling.frequency_penalty = fields
        .number("frequency_penalty", -2.0, 2.0)?
        .unwrap_or(0.0);
    sampling.seed = fields.seed()?;
    sampling.logit_bias = bias(fields.take("logit_bias"))?;
    sampling.logprobs = match kind {
        Kind::Completion => fields.count("logprobs", 0, 5)?,
        Kind::Chat => {
            let (asked, top) = (
                fields.flag("logprobs")?,
                fields.count("top_logprobs", 0, 20)?,
            );
            if !asked && top.is_some() {
                return Err(ApiError::field(
                    "top_logprobs",
                    "this goes with logprobs only",
                ));
            }
            asked.then_some(top.unwrap_or(0))
        }
    };
    Ok(options)
}

/// One stop string, or up to four.
fn stops(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let wrong = || {
        ApiError::field(
            "stop",
            "a string, or a list of up to 4, none of them empty, is needed",
        )
    };
    let list = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= 4 => list,
        Some(one @ Value::String(_)) => vec![one],
        Some(_) => return Err(wrong()),
    };
    let text = |value: Value| value.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    list.into_iter()
        .map(|value| text(value).ok_or_else(wrong))
        .collect()
}

/// Token ids as keys, what is added to their logits as values.
fn bias(value: Option<Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = || {
        ApiError::field(
            "logit_bias",
            "an object of token ids and numbers from -100 to 100 is needed",
        )
    };
    let map = match value {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(wrong()),
    };
    map.iter()
        .map(|(id, bias)| {
            let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            Some((id.parse().ok()?, bias? as f32))
        })
        .map(|pair| pair.ok_or_else(wrong))
        .collect()
}

/// A text, or token ids; a list of one of them counts as it.
fn completion(value: Option<Value>) -> Result<Prompt, ApiError> {
    let wrong = || {
        ApiError::field(
            "prompt",
            "a string, a list of token ids, or a list of one of these is needed",
        )
    };
    match value.ok_or_else(wrong)? {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(mut list) if matches!(&list[..], [Value::String(_) | Value::Array(_)]) => {
            completion(list.pop())
        }
        Value::Array(list) => {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
            let ids: Option<Vec<u32>> = list.iter().map(id).collect();
            ids.map(Prompt::Tokens).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

fn chat(value: Option<Value>) -> Result<Prompt, ApiError> {
    let Some(Value::Array(list)) =
        value.filter(|value| value.as_array().is_some_and(|l| !l.is_empty()))
    else {
        return Err(ApiError::field(
            "messages",
            "a list of at least one message is needed",
        ));
    };
    let messages: Result<Vec<Message>, ApiError> = list
        .iter()
        .enumerate()
        .map(|(i, value)| {
            message(value)
                .map_err(|(key, what)| ApiError::field(format!("messages[{i}]{key}"), what))
        })
        .collect();
    Ok(Prompt::from(messages?))
}

fn message(value: &Value) -> Result<Message, (String, &'static str)> {
    let map = value
        .as_object()
        .ok_or((String::new(), "an object is needed"))?;
    let unknown = map
        .keys()
        .find(|key| !matches!(key.as_str(), "role" | "content" | "name"));
    if let Some(key) = unknown {
        return Err((format!(".{key}"), "this field is not supported"));
    }
    let role = map.get("role").and_then(Value::as_str);
    let role = role.filter(|role| matches!(*role, "system" | "user" | "assistant"));
    let role = role.ok_or((
        ".role".to_owned(),
        "one of system, user, assistant is needed",
    ))?;
    let content = match map.get("content") {
        Some(Value::String(text)) => Some(text.clone()),
        // Parts, all of them text.
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| {
                (part["type"] == "text")
                    .then(|| part["text"].as_str())
                    .flatten()
            })
            .collect(),
        _ => None,
    };
    let content = content.ok_or((
        ".content".to_owned(),
        "a string, or a list of parts of type text, is needed",
    ))?;
    let message = Message::new(role, content);
    match map.get("name") {
        None | Some(Value::Null) => Ok(message),
        Some(Value::String(name)) => Ok(message.with("name", name.as_str())),
        Some(_) => Err((".name".to_owned(), "a string is needed")),
    }
}
