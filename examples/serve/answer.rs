//! Answers, whole or in chunks, in OpenAI's format.

use crate::logprobs::logprobs;
use crate::state::{Server, now};
use crate::wanted::Kind;
use serde_json::{Value, json};
use specdec::core::{Emitted, FinishReason};
use specdec::{Generated, Piece};
use std::sync::Arc;

/// Writes the answer of one request.
pub(crate) struct Answer {
    server: Arc<Server>,
    kind: Kind,
    id: String,
    created: u64,
    /// Characters told so far.
    told: usize,
}

impl Answer {
    pub(crate) fn new(server: Arc<Server>, kind: Kind) -> Self {
        let id = server.id(match kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        });
        Self {
            server,
            kind,
            id,
            created: now(),
            told: 0,
        }
    }

    /// The whole of it.
    pub(crate) fn whole(&self, generated: &Generated) -> Value {
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
        };
        let mut choice = json!({
            "index": 0,
            "finish_reason": finish(generated.finish),
            "logprobs": self.logprobs(&generated.logprobs),
        });
        match self.kind {
            Kind::Chat => {
                choice["message"] =
                    json!({"role": "assistant", "content": generated.text, "refusal": null})
            }
            Kind::Completion => choice["text"] = generated.text.as_str().into(),
        }
        let mut body = self.around(object, vec![choice]);
        body["usage"] = usage(generated);
        body
    }

    /// The first chunk of a chat, which says who speaks.
    pub(crate) fn opening(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        (self.kind == Kind::Chat).then(|| self.chunk(json!({"delta": delta})))
    }

    /// A piece; `None` when there is nothing to tell of it.
    pub(crate) fn piece(&mut self, piece: &Piece) -> Option<Value> {
        let logprobs = self.logprobs(&piece.tokens);
        self.told += piece.text.chars().count();
        if piece.text.is_empty() && logprobs.is_null() {
            return None;
        }
        Some(self.chunk(match self.kind {
            Kind::Chat => json!({"delta": {"content": piece.text}, "logprobs": logprobs}),
            Kind::Completion => json!({"text": piece.text, "logprobs": logprobs}),
        }))
    }

    /// The chunk that says why it ended.
    pub(crate) fn closing(&self, generated: &Generated) -> Value {
        let reason = finish(generated.finish);
        self.chunk(match self.kind {
            Kind::Chat => json!({"delta": {}, "finish_reason": reason}),
            Kind::Completion => json!({"text": "", "finish_reason": reason}),
        })
    }

    /// The chunk with the counts.
    pub(crate) fn counts(&self, generated: &Generated) -> Value {
        let mut body = self.around(self.chunk_object(), Vec::new());
        body["usage"] = usage(generated);
        body
    }

    fn chunk(&self, mut choice: Value) -> Value {
        choice["index"] = 0.into();
        if choice.get("finish_reason").is_none() {
            choice["finish_reason"] = Value::Null;
        }
        self.around(self.chunk_object(), vec![choice])
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        }
    }

    fn around(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.server.name,
            "choices": choices,
        })
    }

    fn logprobs(&self, tokens: &[Emitted]) -> Value {
        logprobs(self.kind, tokens, self.server.model.tokenizer(), self.told)
    }
}

fn finish(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        _ => "stop",
    }
}

/// Tokens in and out; an end token counts. Drafts stand where the format has predictions.
fn usage(generated: &Generated) -> Value {
    let (prompt, completion) = (generated.prompt_tokens.len(), generated.tokens.len());
    let stats = &generated.stats;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.drafted - stats.accepted,
        },
    })
}
