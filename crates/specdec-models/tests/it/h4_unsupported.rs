//! What is not supported is said by name; what is absent has a default or is named.

use crate::{
    dense_attend::logits_of,
    reference::{distance, logits, plain_frequencies},
    tiny::{self, device, kept},
};
use serde_json::{Value as Json, json};
use specdec_kernels::BlockFormat;
use specdec_models::{
    Architecture, GgufFile, LoadError, ModelConfig, Result, TensorSource, Transformer,
    gguf::{Array, GgmlType, GgufWriter, Value},
};

fn config_of(writer: &GgufWriter) -> Result<ModelConfig> {
    ModelConfig::from_gguf(&GgufFile::from_bytes(writer.to_bytes().unwrap())?)
}

fn model_of(writer: &GgufWriter) -> Result<Transformer> {
    let file = GgufFile::from_bytes(writer.to_bytes().unwrap())?;
    Transformer::from_tensors(&ModelConfig::from_gguf(&file)?, &file, &device())
}

#[test]
fn h4_unsupported_type_names_tensor_and_type() {
    let mut writer = GgufWriter::new();
    let whole = tiny::llama().gguf_f32();
    for (key, value) in whole.clone().metadata().iter() {
        writer.set(key, value.clone());
    }
    let file = GgufFile::from_bytes(whole.to_bytes().unwrap()).unwrap();
    for tensor in file.tensors() {
        let kind = if tensor.name() == "blk.1.ffn_down.weight" {
            GgmlType::from_id(20)
        } else {
            tensor.kind()
        };
        writer.tensor(
            tensor.name(),
            tensor.shape(),
            kind,
            tensor.bytes().unwrap().to_vec(),
        );
    }
    let error = model_of(&writer).unwrap_err();
    assert!(
        matches!(&error, LoadError::UnsupportedTensorType { tensor, type_name }
            if tensor == "blk.1.ffn_down.weight" && type_name == "IQ4_NL"),
        "{error}"
    );
    assert_eq!(GgmlType::from_id(4711).to_string(), "type 4711");
    // The type's size is not known here: it can be listed, not read.
    let file = GgufFile::from_bytes(writer.to_bytes().unwrap()).unwrap();
    assert!(
        file.tensor("blk.1.ffn_down.weight")
            .unwrap()
            .bytes()
            .is_err()
    );
    assert!(TensorSource::tensor(&file, "model.layers.1.mlp.down_proj.weight").is_err());
}

#[test]
fn h4_unsupported_architecture_comes_before_anything_else() {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", Value::String("mamba".to_owned()));
    let error = config_of(&writer).unwrap_err();
    assert!(matches!(error, LoadError::UnsupportedArchitecture { name } if name == "mamba"));
    for json in [
        r#"{"model_type": "gpt_oss", "hidden_act": "gelu", "rope_scaling": 3}"#,
        r#"{"architectures": ["GptOssForCausalLM"]}"#,
    ] {
        let error = ModelConfig::from_json(json).unwrap_err();
        assert!(
            matches!(error, LoadError::UnsupportedArchitecture { .. }),
            "{error}"
        );
    }
}

#[test]
fn h4_each_gguf_key_removed_has_a_default_or_is_named() {
    let tiny = tiny::llama();
    let whole = tiny.gguf_f32();
    let keys: Vec<String> = whole
        .clone()
        .metadata()
        .iter()
        .map(|(key, _)| key.to_owned())
        .collect();
    assert_eq!(keys.len(), 13);
    for key in keys {
        let mut cut = whole.clone();
        cut.metadata().remove(&key);
        let got = config_of(&cut);
        let mut defaulted = tiny.config.clone();
        match key.as_str() {
            "llama.attention.head_count_kv" => defaulted.kv_heads = 4,
            // The defaults are the tiny model's own values.
            "llama.vocab_size"
            | "llama.attention.key_length"
            | "llama.attention.value_length"
            | "llama.rope.dimension_count"
            | "llama.rope.freq_base" => {}
            _ => {
                let error = got.unwrap_err();
                assert!(
                    matches!(&error, LoadError::MissingKey { key: named } if *named == key),
                    "{key}: {error}"
                );
                continue;
            }
        }
        assert_eq!(got.unwrap(), defaulted, "{key}");
    }
}

#[test]
fn h4_gguf_defaults_are_the_documented_ones() {
    // Values other than the defaults, so that a default that ignores the file would be seen.
    let mut tiny = tiny::qwen3();
    tiny.config.rope_theta = 5e5;
    let mut writer = tiny.gguf_f32();
    assert_eq!(config_of(&writer).unwrap(), tiny.config);
    writer.metadata().remove("qwen3.rope.freq_base");
    tiny.config.rope_theta = 10_000.0;
    assert_eq!(config_of(&writer).unwrap(), tiny.config);
    // key_length is not hidden / heads here: without it the shapes do not fit, and say so.
    writer.metadata().remove("qwen3.attention.key_length");
    writer.metadata().remove("qwen3.attention.value_length");
    writer.metadata().remove("qwen3.rope.dimension_count");
    let config = config_of(&writer).unwrap();
    assert_eq!((config.head_dim, config.rope_dim), (8, 8));
    let error = model_of(&writer).unwrap_err();
    assert!(
        matches!(&error, LoadError::ShapeMismatch { tensor, expected, got }
            if tensor == "blk.0.attn_q.weight" && *expected == [32, 32] && *got == [64, 32]),
        "{error}"
    );
}

#[test]
fn h4_each_json_key_removed_has_a_default_or_is_named() {
    let tiny = tiny::qwen3();
    let whole = tiny.config_json();
    for (key, _) in whole.as_object().unwrap() {
        let mut cut = whole.clone();
        cut.as_object_mut().unwrap().remove(key);
        let got = ModelConfig::from_json(&cut.to_string());
        let mut defaulted = tiny.config.clone();
        match key.as_str() {
            "num_key_value_heads" => defaulted.kv_heads = 4,
            "head_dim" => (defaulted.head_dim, defaulted.rope_dim) = (128, 128),
            "tie_word_embeddings" => defaulted.tied = false,
            "rms_norm_eps" | "rope_theta" | "hidden_act" => {}
            _ => {
                let error = got.unwrap_err();
                assert!(
                    matches!(&error, LoadError::MissingKey { key: named } if named == key),
                    "{key}: {error}"
                );
                continue;
            }
        }
        assert_eq!(got.unwrap(), defaulted, "{key}");
    }
    let class = json!({"architectures": ["Qwen3ForCausalLM"]});
    let mut named_by_class = whole.clone();
    named_by_class.as_object_mut().unwrap().remove("model_type");
    named_by_class["architectures"] = class["architectures"].clone();
    assert_eq!(
        ModelConfig::from_json(&named_by_class.to_string()).unwrap(),
        tiny.config
    );
}

fn with(key: &str, value: Json) -> Result<ModelConfig> {
    let mut json = tiny::llama().config_json();
    json[key] = value;
    ModelConfig::from_json(&json.to_string())
}

#[test]
fn h4_settings_that_cannot_be_honoured_are_errors() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("quantization_config", json!({"quant_method": "gptq"})),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_theta": 1e6}}),
        ),
    ] {
        let error = with(key, value).unwrap_err();
        assert!(
            matches!(&error, LoadError::UnsupportedValue { key: named, .. } if named.starts_with(key)),
            "{error}"
        );
    }
    for (key, value) in [
        ("hidden_size", json!("wide")),
        ("hidden_size", json!(-32)),
        ("hidden_size", json!(0)),
        ("num_hidden_layers", json!(1_000_000_000_000u64)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("rope_theta", json!(0.0)),
        ("partial_rotary_factor", json!(2.0)),
        ("tie_word_embeddings", json!("yes")),
    ] {
        let error = with(key, value.clone()).unwrap_err();
        assert!(
            matches!(error, LoadError::InvalidKey { .. }),
            "{key} {value}: {error}"
        );
    }
    let mut experts = tiny::llama().gguf_f32();
    experts.set("llama.expert_count", Value::U32(8));
    let error = config_of(&experts).unwrap_err();
    assert!(
        matches!(error, LoadError::UnsupportedValue { key, .. } if key == "llama.expert_count")
    );
    let mut uneven = tiny::llama().gguf_f32();
    let heads = Value::Array(Array::I32(vec![4, 2]));
    uneven.set("llama.attention.head_count_kv", heads);
    let error = config_of(&uneven).unwrap_err();
    assert!(
        matches!(error, LoadError::UnsupportedValue { .. }),
        "{error}"
    );
    let even = Value::Array(Array::I32(vec![2, 2]));
    uneven.set("llama.attention.head_count_kv", even);
    assert_eq!(config_of(&uneven).unwrap(), tiny::llama().config);
    uneven.set("llama.block_count", Value::String("two".to_owned()));
    let error = config_of(&uneven).unwrap_err();
    assert!(matches!(error, LoadError::InvalidKey { key, .. } if key == "llama.block_count"));
}

#[test]
fn h4_mixed_types_in_one_file_load() {
    let formats = |name: &str| match name {
        n if n.contains("norm") => BlockFormat::F32,
        n if n.contains("attn_v") || n.contains("token_embd") => BlockFormat::Q8_0,
        n if n.contains("attn_q") || n.contains("attn_k") => BlockFormat::F16,
        n if n.contains("ffn_up") => BlockFormat::BF16,
        _ => BlockFormat::Q8_0,
    };
    let mut tiny = tiny::llama();
    let model = model_of(&tiny.gguf(formats)).unwrap();
    // Blocks lie along rows, so reordering rows does not change what a block keeps.
    for (name, (_, values)) in &mut tiny.tensors {
        let stem = match name.as_str() {
            n if n.contains("norm") => "norm",
            n if n.contains("q_proj") || n.contains("k_proj") => "attn_q",
            n if n.contains("up_proj") => "ffn_up",
            _ => "attn_v",
        };
        *values = kept(formats(stem), values);
    }
    let tokens = [3, 80, 9, 9, 41];
    let expected = logits(&tiny, &plain_frequencies(&tiny), &tokens);
    let far = distance(&logits_of(&model, &tokens), &expected);
    assert!(far < 1e-4, "{far}");
}

#[test]
fn h4_vocabulary_leaves_out_padding_and_tolerates_padded_tables() {
    // 90 tokens with text, then two that stand for nothing, in a table of 96 rows.
    let mut writer = tiny::llama().gguf_f32();
    let tokens = (0..92).map(|i| format!("t{i}")).collect();
    let mut kinds = vec![1; 90];
    kinds.extend([5, 5]);
    writer.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    writer.set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    let config = config_of(&writer).unwrap();
    assert_eq!(config.vocab, 90);
    let model = model_of(&writer).unwrap();
    let last = logits_of(&model, &[3, 89]).pop().unwrap();
    assert_eq!(last.len(), 96);
    // A table with fewer rows than there are tokens is another matter.
    let mut short = tiny::llama();
    short.config.vocab = 200;
    let error = Transformer::from_tensors(&short.config, &short.memory(), &device()).unwrap_err();
    assert!(matches!(error, LoadError::ShapeMismatch { tensor, .. } if tensor.contains("embed")));
}

#[test]
fn h4_architecture_names() {
    assert_eq!(
        Architecture::from_name("mistral").unwrap(),
        Architecture::Llama
    );
    assert!(Architecture::from_name("Llama").is_err());
}
