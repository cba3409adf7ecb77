//! Sliding windows: which layers have one, and that the model says so to its cache.

use crate::{
    dense_attend::logits_of,
    reference::{distance, logits, plain_frequencies},
    tiny::{self, device},
};
use serde_json::{Value as Json, json};
use specdec_core::TargetModel;
use specdec_models::{GgufFile, LoadError, ModelConfig, Result, Transformer, gguf::Value};

fn windows(kind: &str, keys: Json) -> Result<Vec<Option<usize>>> {
    let mut json = tiny::llama().config_json();
    json["model_type"] = kind.into();
    json["num_hidden_layers"] = 4.into();
    for (key, value) in keys.as_object().unwrap() {
        json[key] = value.clone();
    }
    ModelConfig::from_json(&json.to_string()).map(|config| config.windows)
}

#[test]
fn each_family_has_its_own_rule() {
    let (some, none) = (Some(16), None);
    for (kind, keys, expected) in [
        ("llama", json!({"sliding_window": 16}), vec![]),
        ("mistral", json!({"sliding_window": 16}), vec![some; 4]),
        ("mistral", json!({"sliding_window": null}), vec![]),
        ("mistral", json!({}), vec![Some(4096); 4]),
        ("qwen2", json!({"sliding_window": 16}), vec![]),
        (
            "qwen2",
            json!({"sliding_window": 16, "use_sliding_window": false}),
            vec![],
        ),
        (
            "qwen2",
            json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 3}),
            vec![none, none, none, some],
        ),
        (
            "qwen3",
            json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 0,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
            vec![none, some, none, some],
        ),
    ] {
        assert_eq!(
            windows(kind, keys.clone()).unwrap(),
            expected,
            "{kind} {keys}"
        );
    }
    for layer_types in [
        json!(["full_attention"]),
        json!(vec!["chunked_attention"; 4]),
        json!(3),
    ] {
        let keys =
            json!({"sliding_window": 16, "use_sliding_window": true, "layer_types": layer_types});
        let error = windows("qwen2", keys).unwrap_err();
        assert!(matches!(error, LoadError::InvalidKey { key, .. } if key == "layer_types"));
    }
}

#[test]
fn a_window_reaches_the_cache_and_changes_the_logits() {
    let mut tiny = tiny::llama();
    let mut writer = tiny.gguf_f32();
    writer.set("llama.attention.sliding_window", Value::U32(4));
    let file = GgufFile::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let config = ModelConfig::from_gguf(&file).unwrap();
    let model = Transformer::from_tensors(&config, &file, &device()).unwrap();
    assert_eq!(model.spec().windows, [Some(4), Some(4)]);
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 96).collect();
    let full = logits(&tiny, &plain_frequencies(&tiny), &tokens);
    tiny.config.windows = vec![Some(4); 2];
    let expected = logits(&tiny, &plain_frequencies(&tiny), &tokens);
    let got = logits_of(&model, &tokens);
    assert!(distance(&got, &expected) < 1e-4);
    assert!(distance(&got[..4], &full[..4]) < 1e-4);
    assert!(distance(&got[4..], &full[4..]) > 1e-2);
    let mut off = tiny.gguf_f32();
    off.set("llama.attention.sliding_window", Value::U32(0));
    let off = GgufFile::from_bytes(off.to_bytes().unwrap()).unwrap();
    assert!(ModelConfig::from_gguf(&off).unwrap().windows.is_empty());
}
