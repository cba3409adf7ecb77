//! Load options, reports, and what is found beside a model.

use crate::{
    dense_attend::logits_of,
    reference::{distance, logits, plain_frequencies},
    tiny::{self, device, kept},
};
use safetensors::Dtype;
use serde_json::json;
use specdec_core::TargetModel;
use specdec_kernels::{Activations, BlockFormat};
use specdec_models::{
    LoadError, LoadOptions, LoadedModel, TokenizerFiles, Transformer, WeightDtype,
    gguf::{Array, GgmlType, GgufWriter, Value},
    load_folder, open,
};
use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex},
};

fn load(writer: &GgufWriter, options: &LoadOptions) -> Result<LoadedModel, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    writer.write(&path).unwrap();
    open(&path, options, &device())
}

#[test]
fn progress_counts_to_the_total_and_can_stop() {
    let writer = tiny::llama().gguf_f32();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let log = calls.clone();
    let options = LoadOptions::new().with_progress(move |done, total| {
        log.lock().unwrap().push((done, total));
        ControlFlow::Continue(())
    });
    let loaded = load(&writer, &options).unwrap();
    let calls = calls.lock().unwrap();
    let bytes: usize = tiny::llama()
        .tensors
        .values()
        .map(|(_, v)| v.len() * 4)
        .sum();
    assert_eq!(loaded.report.bytes, bytes as u64);
    assert_eq!(calls.len(), tiny::llama().tensors.len());
    assert!(calls.is_sorted() && calls.iter().all(|&(_, total)| total == bytes as u64));
    assert_eq!(calls.last(), Some(&(bytes as u64, bytes as u64)));
    let stop = LoadOptions::new().with_progress(|done, _| {
        if done > 20_000 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    match load(&writer, &stop).unwrap_err() {
        LoadError::Aborted { done, total } => assert!(done > 20_000 && done < total),
        other => panic!("{other}"),
    }
}

#[test]
fn weights_are_held_as_asked() {
    let mut tiny = tiny::llama();
    let quantised = |name: &str| match name {
        n if n.contains("norm") => BlockFormat::F32,
        n if n.contains("attn_v") => BlockFormat::F16,
        _ => BlockFormat::Q8_0,
    };
    let writer = tiny.gguf(quantised);
    for (name, (_, values)) in &mut tiny.tensors {
        let stem = if name.contains("v_proj") {
            "attn_v"
        } else {
            name.as_str()
        };
        *values = kept(quantised(stem), values);
    }
    let tokens = [3, 80, 9, 9, 41];
    let mut fingerprints = Vec::new();
    for dtype in [WeightDtype::Stored, WeightDtype::F32, WeightDtype::Bf16] {
        let loaded = load(&writer, &LoadOptions::new().with_dtype(dtype)).unwrap();
        if dtype == WeightDtype::Bf16 {
            for (name, (_, values)) in &mut tiny.tensors {
                if !name.contains("norm") {
                    *values = kept(BlockFormat::BF16, values);
                }
            }
        }
        let expected = logits(&tiny, &plain_frequencies(&tiny), &tokens);
        let far = distance(&logits_of(&loaded.model, &tokens), &expected);
        assert!(far < 1e-4, "{dtype:?}: {far}");
        assert_eq!(loaded.report.memory_bytes, loaded.model.memory_bytes());
        assert_eq!(loaded.report.formats["Q8_0"], 13);
        assert_eq!(loaded.report.formats["F16"], 2);
        fingerprints.push(loaded.model.spec().fingerprint);
    }
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 3);
}

#[test]
fn the_context_can_be_another() {
    let writer = tiny::llama().gguf_f32();
    let usual = load(&writer, &LoadOptions::new()).unwrap();
    let short = load(&writer, &LoadOptions::new().with_context(64)).unwrap();
    assert_eq!(usual.model.spec().context, 2048);
    assert_eq!(
        (short.model.spec().context, short.config.context),
        (64, 2048)
    );
    assert_eq!(
        usual.model.spec().fingerprint,
        short.model.spec().fingerprint
    );
    let error = load(&writer, &LoadOptions::new().with_context(0)).unwrap_err();
    assert!(matches!(error, LoadError::InvalidKey { key, .. } if key == "context"));
}

#[test]
fn what_a_tokenizer_needs_is_handed_over() {
    let mut writer = tiny::llama().gguf_f32();
    let tokens: Vec<String> = (0..96).map(|i| format!("t{i}")).collect();
    let list = Value::Array(Array::String(tokens.clone()));
    writer
        .set("tokenizer.ggml.tokens", list)
        .set(
            "tokenizer.chat_template",
            Value::String("{{ x }}".to_owned()),
        )
        .set("tokenizer.ggml.eos_token_id", Value::U32(7))
        .set("tokenizer.ggml.eot_token_id", Value::U32(5))
        .set("tokenizer.ggml.eom_token_id", Value::I32(-1));
    writer.tensor("stray.weight", &[1], GgmlType::from_id(0), vec![0; 4]);
    let loaded = load(&writer, &LoadOptions::new()).unwrap();
    let TokenizerFiles::Gguf(found) = &loaded.tokenizer else {
        panic!("{:?}", loaded.tokenizer);
    };
    assert_eq!(found.len(), 5);
    assert_eq!(
        found.strings("tokenizer.ggml.tokens").unwrap(),
        Some(&tokens[..])
    );
    assert_eq!(
        found.string("tokenizer.chat_template").unwrap(),
        Some("{{ x }}")
    );
    assert_eq!(loaded.end_tokens, [5, 7]);
    assert_eq!(loaded.report.unused, ["stray.weight"]);

    let dir = tempfile::tempdir().unwrap();
    let tiny = tiny::qwen2();
    tiny.write_folder(dir.path(), Dtype::F32);
    let mut json = tiny.config_json();
    json["eos_token_id"] = json!(9);
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    let generation = dir.path().join("generation_config.json");
    std::fs::write(&generation, r#"{"eos_token_id": [11, 9, 2]}"#).unwrap();
    let loaded = open(dir.path(), &LoadOptions::new(), &device()).unwrap();
    assert_eq!(
        loaded.tokenizer,
        TokenizerFiles::Folder(dir.path().to_path_buf())
    );
    assert_eq!(loaded.end_tokens, [2, 9, 11]);
    std::fs::write(&generation, r#"{"eos_token_id": "</s>"}"#).unwrap();
    let error = load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap_err();
    assert!(matches!(error, LoadError::Corrupt { path, .. } if path == generation));
}

#[test]
fn a_configuration_made_by_hand_is_checked() {
    let tiny = tiny::llama();
    let refused = |change: fn(&mut specdec_models::ModelConfig), field: &str| {
        let mut config = tiny.config.clone();
        change(&mut config);
        let error = Transformer::from_tensors(&config, &tiny.memory(), &device()).unwrap_err();
        assert!(
            matches!(&error, LoadError::InvalidKey { key, .. } if key == field),
            "{error}"
        );
    };
    refused(|c| c.vocab = 0, "vocab");
    refused(|c| c.layers = usize::MAX, "layers");
    refused(|c| c.kv_heads = 3, "kv_heads");
    refused(|c| c.rope_dim = 7, "rope_dim");
    refused(|c| c.rope_dim = 10, "rope_dim");
    refused(|c| c.rms_eps = f64::NAN, "rms_eps");
    refused(|c| c.rope_theta = -1.0, "rope_theta");
    refused(|c| c.windows = vec![None], "windows");
    refused(|c| c.windows = vec![None, Some(0)], "windows");
}

/// Activations in bytes: close to the same model in f32, another fingerprint, and nothing to change where weights
/// are floats.
#[test]
fn activations_are_multiplied_as_asked() {
    let tiny = tiny::llama();
    let tokens = [3, 80, 9, 9, 41];
    for (format, changes) in [(BlockFormat::Q8_0, true), (BlockFormat::F32, false)] {
        let writer = tiny.gguf(|name| match name {
            n if n.contains("norm") => BlockFormat::F32,
            _ => format,
        });
        let float = load(&writer, &LoadOptions::new()).unwrap().model;
        let options = LoadOptions::new().with_activations(Activations::Int8);
        let int8 = load(&writer, &options).unwrap().model;
        assert_ne!(float.spec().fingerprint, int8.spec().fingerprint);
        let (float, int8) = (logits_of(&float, &tokens), logits_of(&int8, &tokens));
        let float: Vec<Vec<f64>> = float
            .iter()
            .map(|row| row.iter().map(|&x| f64::from(x)).collect())
            .collect();
        let far = distance(&int8, &float);
        assert_eq!(far > 0.0, changes, "{format}: {far}");
        let largest = float
            .iter()
            .flatten()
            .fold(0.0, |most: f64, x| most.max(x.abs()));
        assert!(far < 0.05 * largest, "{format}: {far} of {largest}");
    }
}
