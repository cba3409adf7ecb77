//! Lines in.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use specdec::core::Speculation;
use specdec::text::Message;
use specdec::{Options, Prompt};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A line of input: its id, and what is asked for or what is wrong with it.
pub struct Line {
    pub id: Value,
    pub request: Result<(Prompt, Options), String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    id: Value,
    prompt: Option<String>,
    messages: Option<Vec<RawMessage>>,
    prompt_ids: Option<Vec<u32>>,
    max_new: Option<usize>,
    min_new: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<Vec<(u32, f32)>>,
    allowed: Option<Vec<u32>>,
    banned: Option<Vec<u32>>,
    seed: Option<u64>,
    stop: Option<Vec<String>>,
    end_tokens: Option<Vec<u32>>,
    ignore_end_tokens: Option<bool>,
    speculation: Option<bool>,
    draft_length: Option<usize>,
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    content: String,
}

/// Reads all lines; a bad one keeps its place. Lines without an id are numbered from 0.
pub fn read(path: &Path, defaults: &Options) -> Result<Vec<Line>> {
    let reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file =
            std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Box::new(BufReader::new(file))
    };
    let mut lines = Vec::new();
    for line in reader.split(b'\n') {
        let line = line?;
        if !line.iter().all(u8::is_ascii_whitespace) {
            let number = lines.len();
            lines.push(parse(&line, number, defaults));
        }
    }
    Ok(lines)
}

fn parse(line: &[u8], number: usize, defaults: &Options) -> Line {
    let mut object: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(object) => object,
        Err(error) => {
            return Line {
                id: number.into(),
                request: Err(format!("not a JSON object: {error}")),
            };
        }
    };
    let id = match object.get("id") {
        None | Some(Value::Null) => number.into(),
        Some(id) => id.clone(),
    };
    let request = with_options(&mut object)
        .and_then(|()| {
            serde_json::from_value::<Raw>(Value::Object(object)).map_err(|error| error.to_string())
        })
        .and_then(|raw| raw.request(defaults.clone()));
    Line { id, request }
}

/// Options may stand beside the prompt or in an object of their own; each once.
fn with_options(object: &mut Map<String, Value>) -> Result<(), String> {
    match object.remove("options") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(options)) => {
            for (name, value) in options {
                if object.contains_key(&name) {
                    return Err(format!("{name} is given twice"));
                }
                object.insert(name, value);
            }
            Ok(())
        }
        Some(_) => Err("options is no object".into()),
    }
}

impl Raw {
    fn request(self, mut options: Options) -> Result<(Prompt, Options), String> {
        let prompt = match (self.prompt, self.messages, self.prompt_ids) {
            (Some(text), None, None) => Prompt::Text(text),
            (None, Some(messages), None) if messages.is_empty() => {
                return Err("messages is empty".into());
            }
            (None, Some(messages), None) => Prompt::Chat(
                messages
                    .into_iter()
                    .map(|m| Message::new(m.role, m.content))
                    .collect(),
                Box::default(),
            ),
            (None, None, Some(ids)) => Prompt::Tokens(ids),
            _ => return Err("exactly one of prompt, messages, prompt_ids is needed".into()),
        };
        fn set<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        set(&mut options.max_new_tokens, self.max_new);
        set(&mut options.min_new_tokens, self.min_new);
        set(&mut options.stop, self.stop);
        set(&mut options.end_tokens, self.end_tokens);
        set(&mut options.ignore_end_tokens, self.ignore_end_tokens);
        options.speculation = match (self.speculation, self.draft_length) {
            (Some(false), _) => Speculation::Off,
            (_, Some(k)) => Speculation::AtMost(k),
            _ => options.speculation,
        };
        let sampling = &mut options.sampling;
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.logit_bias, self.logit_bias);
        set(&mut sampling.banned, self.banned);
        sampling.top_k = self.top_k.or(sampling.top_k);
        sampling.top_p = self.top_p.or(sampling.top_p);
        sampling.min_p = self.min_p.or(sampling.min_p);
        sampling.allowed = self.allowed.or(sampling.allowed.take());
        sampling.seed = self.seed.or(sampling.seed);
        let _ = self.id;
        Ok((prompt, options))
    }
}
