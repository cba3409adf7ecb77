//! One weight set in each format gives the same logits, near and far.

use crate::{
    dense_attend::logits_of,
    reference::{distance, logits, plain_frequencies},
    tiny::{self, Tiny, device},
};
use safetensors::Dtype;
use specdec_core::TargetModel;
use specdec_models::{LoadOptions, Transformer, load_folder, load_gguf};

#[track_caller]
fn check(tiny: &Tiny) {
    let dir = tempfile::tempdir().unwrap();
    tiny.write_folder(dir.path(), Dtype::F32);
    let path = dir.path().join("model.gguf");
    tiny.gguf_f32().write(&path).unwrap();
    let options = LoadOptions::new();
    let folder = load_folder(dir.path(), &options, &device()).unwrap();
    let gguf = load_gguf(&path, &options, &device()).unwrap();
    assert_eq!(folder.config, gguf.config);
    assert_eq!(folder.config, tiny.config);
    assert!(folder.report.unused.is_empty() && gguf.report.unused.is_empty());
    let memory = Transformer::from_tensors(&tiny.config, &tiny.memory(), &device()).unwrap();
    assert_eq!(memory.spec().fingerprint, folder.model.spec().fingerprint);

    let tokens: Vec<u32> = (0..501u32).map(|i| (i * i * 7 + i * 13 + 5) % 96).collect();
    let expected = logits(tiny, &plain_frequencies(tiny), &tokens);
    let pick = |rows: Vec<Vec<f32>>| [0, 1, 50, 500].map(|p: usize| rows[p].clone()).to_vec();
    let expected = [0, 1, 50, 500].map(|p: usize| expected[p].clone());
    for (name, model) in [
        ("folder", &folder.model),
        ("gguf", &gguf.model),
        ("memory", &memory),
    ] {
        let far = distance(&pick(logits_of(model, &tokens)), &expected);
        assert!(far < 1e-4, "{name}: {far}");
    }
}

#[test]
fn h2_llama_like() {
    check(&tiny::llama());
}

#[test]
fn h2_qwen2_like() {
    check(&tiny::qwen2());
}

#[test]
fn h2_qwen3_like() {
    check(&tiny::qwen3());
}

#[test]
fn h2_llama_with_every_bias() {
    let mut config = tiny::llama().config;
    (config.qkv_bias, config.output_bias, config.mlp_bias) = (true, true, true);
    let tiny = Tiny::of(config, 21);
    let dir = tempfile::tempdir().unwrap();
    tiny.write_folder(dir.path(), Dtype::F32);
    let mut json = tiny.config_json();
    json["attention_bias"] = true.into();
    json["mlp_bias"] = true.into();
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    let path = dir.path().join("model.gguf");
    tiny.gguf_f32().write(&path).unwrap();
    let tokens = [3, 80, 9, 9, 41, 70];
    let expected = logits(&tiny, &plain_frequencies(&tiny), &tokens);
    for loaded in [
        load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap(),
        load_gguf(&path, &LoadOptions::new(), &device()).unwrap(),
    ] {
        assert_eq!(loaded.config, tiny.config);
        let far = distance(&logits_of(&loaded.model, &tokens), &expected);
        assert!(far < 1e-4, "{far}");
    }
}

#[test]
fn h2_the_pairing_matters_at_these_positions() {
    // The Llama file with its rows left as Hugging Face has them: position 0 cannot tell, the
    // others must.
    let tiny = tiny::llama();
    let mut wrong = tiny::llama();
    wrong.config.architecture = specdec_models::Architecture::Qwen2;
    wrong.config.qkv_bias = true;
    for layer in 0..2 {
        for (map, width) in [("q", 32), ("k", 16), ("v", 16)] {
            let name = format!("model.layers.{layer}.self_attn.{map}_proj.bias");
            wrong.tensors.insert(name, (vec![width], vec![0.0; width]));
        }
    }
    // Halves stored, pairs rotated.
    let mut writer = wrong.gguf_f32();
    let keys: Vec<_> = writer
        .metadata()
        .iter()
        .map(|(k, v)| (k.to_owned(), v.clone()))
        .collect();
    for (key, value) in keys {
        writer.set(key.replace("qwen2.", "llama."), value);
    }
    let llama = specdec_models::gguf::Value::String("llama".to_owned());
    writer.set("general.architecture", llama);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.gguf");
    writer.write(&path).unwrap();
    let model = load_gguf(&path, &LoadOptions::new(), &device())
        .unwrap()
        .model;
    let tokens = [3, 80, 9];
    let expected = logits(&tiny, &plain_frequencies(&tiny), &tokens);
    let got = logits_of(&model, &tokens);
    assert!(distance(&got[..1], &expected[..1]) < 1e-4);
    assert!(distance(&got[1..], &expected[1..]) > 1e-2);
}
