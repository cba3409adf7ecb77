//! Lines out, and the summary.

use serde_json::{Value, json};
use specdec::models::LoadReport;
use specdec::{Generated, Generator};
use specdec_examples::peak_memory_bytes;
use std::time::Duration;

/// A line of output.
pub fn line(id: &Value, result: &Result<Generated, String>) -> Value {
    match result {
        Ok(done) => json!({
            "id": id,
            "prompt_ids": done.prompt_tokens,
            "ids": done.tokens,
            "text": done.text,
            "finish": done.finish.to_string(),
            "rounds": done.stats.rounds,
            "drafted": done.stats.drafted,
            "accepted": done.stats.accepted,
        }),
        Err(error) => json!({ "id": id, "error": error }),
    }
}

/// What all lines cost together.
pub struct Summary {
    load_seconds: f64,
    generate_seconds: f64,
    prompts: usize,
    errors: usize,
}

impl Summary {
    /// `generate`: from the first prompt to the last result.
    pub fn new(load: &LoadReport, generate: Duration) -> Self {
        Self {
            load_seconds: load.elapsed.as_secs_f64(),
            generate_seconds: generate.as_secs_f64(),
            prompts: 0,
            errors: 0,
        }
    }

    pub fn add(&mut self, result: &Result<Generated, String>) {
        self.prompts += 1;
        self.errors += usize::from(result.is_err());
    }

    pub fn finish(self, generator: &Generator, settings: &str) -> Value {
        let stats = generator.stats();
        let (batch, align) = (generator.meters().batch(), generator.meters().align());
        let sparse = generator.vegas().map(|stats| {
            json!({
                "attended_share": stats.attended_share(),
                "collect_seconds": stats.collect_time.as_secs_f64(),
                "select_seconds": stats.select_time.as_secs_f64(),
            })
        });
        json!({
            "tokens_per_second": stats.tokens_per_second(),
            "prefill_tokens_per_second": stats.prefill_tokens_per_second(),
            "decode_seconds": stats.decode_time().as_secs_f64(),
            "prefill_seconds": stats.prefill_time.as_secs_f64(),
            "draft_seconds": stats.draft_time.as_secs_f64(),
            "verify_seconds": stats.verify_time.as_secs_f64(),
            "settle_seconds": stats.settle_time.as_secs_f64(),
            "load_seconds": self.load_seconds,
            "generate_seconds": self.generate_seconds,
            "new_tokens": stats.emitted,
            "prompt_tokens": stats.prefilled,
            "reused_tokens": stats.reused,
            "acceptance_length": stats.acceptance_length(),
            "acceptance_rate": stats.acceptance_rate(),
            "rounds": batch.rounds,
            "rows_per_round": batch.rows_per_round(),
            "grouping_rate": batch.grouping_rate(),
            "realigned_bytes": align.moved_bytes,
            "realign_seconds": align.move_time.as_secs_f64(),
            "padded_cells": align.padded_cells,
            "preempted": stats.preempted,
            "self_drafting": sparse,
            "peak_memory_bytes": peak_memory_bytes(),
            "prompts": self.prompts,
            "errors": self.errors,
            "settings": settings,
        })
    }
}
