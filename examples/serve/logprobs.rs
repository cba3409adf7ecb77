//! Log-probabilities in OpenAI's two formats.

use crate::wanted::Kind;
use serde_json::{Map, Value, json};
use specdec::core::Emitted;
use specdec::text::Tokenizer;

/// The entry of these tokens; null when none were asked for. `offset` is where the first begins in the text.
pub(crate) fn logprobs(
    kind: Kind,
    tokens: &[Emitted],
    tokenizer: &Tokenizer,
    offset: usize,
) -> Value {
    let told: Vec<&Emitted> = tokens
        .iter()
        .filter(|emitted| emitted.logprob.is_some())
        .collect();
    if told.is_empty() {
        return Value::Null;
    }
    match kind {
        Kind::Chat => json!({
            "content": told.iter().map(|emitted| {
                let mut entry = entry(tokenizer, emitted.token, emitted.logprob.unwrap_or(f32::MIN));
                let top = emitted.top.iter().map(|t| entry_of(tokenizer, t.token, t.logprob));
                entry.insert("top_logprobs".into(), top.collect());
                entry
            }).collect::<Vec<_>>(),
            "refusal": null,
        }),
        Kind::Completion => {
            let mut at = offset;
            let offsets: Vec<usize> = told
                .iter()
                .map(|emitted| {
                    let here = at;
                    at += text(tokenizer, emitted.token).chars().count();
                    here
                })
                .collect();
            let top = told.iter().map(|emitted| {
                let pairs = emitted
                    .top
                    .iter()
                    .map(|t| (text(tokenizer, t.token), finite(t.logprob)));
                pairs.collect::<Map<String, Value>>()
            });
            json!({
                "tokens": told.iter().map(|e| text(tokenizer, e.token)).collect::<Vec<_>>(),
                "token_logprobs": told.iter().map(|e| e.logprob.map(finite)).collect::<Vec<_>>(),
                "top_logprobs": top.collect::<Vec<_>>(),
                "text_offset": offsets,
            })
        }
    }
}

fn entry_of(tokenizer: &Tokenizer, token: u32, logprob: f32) -> Value {
    Value::Object(entry(tokenizer, token, logprob))
}

fn entry(tokenizer: &Tokenizer, token: u32, logprob: f32) -> Map<String, Value> {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    Map::from_iter([
        ("token".to_owned(), text(tokenizer, token).into()),
        ("logprob".to_owned(), finite(logprob)),
        ("bytes".to_owned(), bytes.into()),
    ])
}

/// JSON has no minus infinity; OpenAI's answers have -9999 in its place.
fn finite(logprob: f32) -> Value {
    Value::from(f64::from(logprob).max(-9999.0))
}

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
