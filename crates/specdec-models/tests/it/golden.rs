//! A real model against an independent implementation's logits.
//!
//! Runs when `SPECDEC_MODEL` names SmolLM2-135M-Instruct as GGUF (Q4_1) and `SPECDEC_DATA` the
//! folder with `golden-smollm2.json`: prompts, greedy continuations and the five best logits of
//! every step, computed by llama.cpp with all tensors dequantised to f32.
//!
//! Two checks: the same best token everywhere and logits near the file's; and logits equal to the
//! formulas evaluated in f64. The file itself lies up to 0.012 from the f64 values where that was
//! measured (60 steps of three cases, where ours lie within 4e-5), as much as rounding cached keys and
//! values to f16 moves them. Its tolerance is chosen accordingly.

use crate::{
    dense_attend::{DenseAttend, logits_of, values},
    reference::{distance, logits, plain_frequencies},
    tiny::{Tiny, device, halves},
};
use burn::tensor::s;
use specdec_core::{Block, SeqId, TargetModel};
use specdec_kernels::dequantize;
use specdec_models::{GgufFile, LoadOptions, ModelConfig, Transformer, open};
use std::path::{Path, PathBuf};

/// How far a logit may lie from the golden file's.
const FILE_TOLERANCE: f32 = 2.5e-2;

#[derive(Debug)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// For each step the best ids and their logits.
    top: Vec<Vec<(u32, f32)>>,
}

fn cases(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |value: &serde_json::Value| {
        let list = value.as_array().unwrap();
        list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let pair = |value: &serde_json::Value| {
        let (id, logit) = (value[0].as_u64().unwrap(), value[1].as_f64().unwrap());
        (id as u32, logit as f32)
    };
    let list = json["cases"].as_array().unwrap();
    list.iter()
        .map(|case| Case {
            prompt: ids(&case["prompt_ids"]),
            greedy: ids(&case["greedy_ids"]),
            top: case["top5"]
                .as_array()
                .unwrap()
                .iter()
                .map(|step| step.as_array().unwrap().iter().map(pair).collect())
                .collect(),
        })
        .collect()
}

/// The logits that choose each greedy token: the prompt in one pass, its continuation in another.
fn deciding_logits(model: &Transformer, case: &Case) -> Vec<Vec<f32>> {
    let mut memory = DenseAttend::new(model);
    let (prompt, rest) = (&case.prompt, &case.greedy[..case.greedy.len() - 1]);
    let mut rows = Vec::new();
    for (start, tokens) in [(0, &prompt[..]), (prompt.len(), rest)] {
        if tokens.is_empty() {
            continue;
        }
        let block = Block::single(SeqId(1), start, tokens, &device());
        let hidden = memory.hidden(model, &block);
        let wanted = if start == 0 { tokens.len() - 1 } else { 0 };
        let logits = model.logits(hidden.slice(s![wanted.., ..]));
        let [_, width] = logits.dims();
        rows.extend(values(logits).chunks(width).map(<[f32]>::to_vec));
    }
    rows
}

/// The model file and the golden cases, or a message why not.
fn asked_for(test: &str) -> Option<(PathBuf, Vec<Case>)> {
    let (model, data) = (
        std::env::var_os("SPECDEC_MODEL"),
        std::env::var_os("SPECDEC_DATA"),
    );
    let (Some(model), Some(data)) = (model, data) else {
        report(&format!(
            "skipped: {test} needs SPECDEC_MODEL (a GGUF file) and SPECDEC_DATA (a folder)"
        ));
        return None;
    };
    let cases = cases(&Path::new(&data).join("golden-smollm2.json"));
    assert!(!cases.is_empty());
    Some((model.into(), cases))
}

#[test]
fn golden_smollm2_logits() {
    let Some((model, cases)) = asked_for("golden_smollm2_logits") else {
        return;
    };
    let loaded = open(&model, &LoadOptions::new(), &device()).unwrap();
    report(&format!("{:?}", loaded.report));
    let mut farthest = 0f32;
    for (number, case) in cases.iter().enumerate() {
        let rows = deciding_logits(&loaded.model, case);
        assert_eq!(rows.len(), case.top.len());
        for (step, (row, top)) in rows.iter().zip(&case.top).enumerate() {
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)));
            assert_eq!(best, Some(top[0].0 as usize), "case {number}, step {step}");
            assert_eq!(case.greedy[step], top[0].0);
            for &(id, expected) in top {
                let far = (row[id as usize] - expected).abs();
                assert!(
                    far < FILE_TOLERANCE,
                    "case {number}, step {step}, token {id}: {far}"
                );
                farthest = farthest.max(far);
            }
        }
    }
    report(&format!(
        "{} cases, greatest logit difference {farthest:e}",
        cases.len()
    ));
}

/// The file's weights in f32, named and laid out as Hugging Face does.
fn plain_weights(file: &GgufFile) -> Tiny {
    let config = ModelConfig::from_gguf(file).unwrap();
    let plain = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.shape().iter().product()];
        let format = tensor.kind().format().unwrap();
        dequantize(format, tensor.bytes().unwrap(), &mut values).unwrap();
        (tensor.shape().to_vec(), values)
    };
    let mut tensors = std::collections::BTreeMap::new();
    for (ours, theirs) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
    ] {
        tensors.insert(format!("{ours}.weight"), plain(&format!("{theirs}.weight")));
    }
    for layer in 0..config.layers {
        for (ours, theirs) in [
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ] {
            let (shape, mut values) = plain(&format!("blk.{layer}.{theirs}.weight"));
            if matches!(theirs, "attn_q" | "attn_k") {
                values = halves(&values, shape[0], config.head_dim);
            }
            tensors.insert(
                format!("model.layers.{layer}.{ours}.weight"),
                (shape, values),
            );
        }
    }
    Tiny { config, tensors }
}

#[test]
fn golden_smollm2_equals_the_formulas_in_f64() {
    let Some((model, cases)) = asked_for("golden_smollm2_equals_the_formulas_in_f64") else {
        return;
    };
    let weights = plain_weights(&GgufFile::open(&model).unwrap());
    let model = open(&model, &LoadOptions::new(), &device()).unwrap().model;
    let case = &cases[0];
    let tokens = [&case.prompt[..], &case.greedy[..7]].concat();
    let expected = logits(&weights, &plain_frequencies(&weights), &tokens);
    let far = distance(&logits_of(&model, &tokens), &expected);
    report(&format!(
        "{} tokens, every logit within {far:e} of the formulas in f64",
        tokens.len()
    ));
    assert!(far < 5e-4, "{far}");
}

/// Says why a test did nothing, or what it measured (seen with `--nocapture`).
#[allow(clippy::print_stderr)]
fn report(text: &str) {
    eprintln!("golden: {text}");
}
