//! Models in several files.

use crate::{
    dense_attend::logits_of,
    reference::{distance, logits, plain_frequencies},
    tiny::{self, Tiny, device, kept},
};
use safetensors::Dtype;
use serde_json::json;
use specdec_kernels::BlockFormat;
use specdec_models::{
    GgufFile, LoadError, LoadOptions,
    gguf::{GgufWriter, Value},
    load_folder, load_gguf,
};
use std::path::{Path, PathBuf};

fn part_path(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("tiny-{part:05}-of-00003.gguf"))
}

/// Three parts: metadata and a few tensors in the first, the rest in the others.
fn write_parts(folder: &Path) {
    let whole = tiny::llama().gguf_f32();
    let file = GgufFile::from_bytes(whole.to_bytes().unwrap()).unwrap();
    let count = file.tensors().count();
    for part in 0..3usize {
        let mut writer = GgufWriter::new();
        if part == 0 {
            for (key, value) in file.metadata().iter() {
                writer.set(key, value.clone());
            }
        }
        writer.set("split.no", Value::U16(part as u16));
        writer.set("split.count", Value::U16(3));
        writer.set("split.tensors.count", Value::I32(count as i32));
        for (index, tensor) in file.tensors().enumerate() {
            if index * 3 / count == part {
                let bytes = tensor.bytes().unwrap().to_vec();
                writer.tensor(tensor.name(), tensor.shape(), tensor.kind(), bytes);
            }
        }
        writer.write(part_path(folder, part + 1)).unwrap();
    }
}

fn assert_computes(tiny: &Tiny, model: &specdec_models::Transformer, tolerance: f64) {
    let tokens = [3, 80, 9, 9, 41];
    let expected = logits(tiny, &plain_frequencies(tiny), &tokens);
    let far = distance(&logits_of(model, &tokens), &expected);
    assert!(far < tolerance, "{far}");
}

#[test]
fn h6_three_parts_opened_by_the_first() {
    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path());
    let load = |part| load_gguf(part_path(dir.path(), part), &LoadOptions::new(), &device());
    assert_computes(&tiny::llama(), &load(1).unwrap().model, 1e-4);
    let error = load(2).unwrap_err();
    assert!(
        matches!(
            error,
            LoadError::SplitNotFirst {
                part: 2,
                count: 3,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn h6_a_missing_or_damaged_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for absent in [2, 3] {
        write_parts(dir.path());
        std::fs::remove_file(part_path(dir.path(), absent)).unwrap();
        match GgufFile::open(part_path(dir.path(), 1)).unwrap_err() {
            LoadError::SplitMissing { part, count, path } => {
                assert_eq!((part, count), (absent, 3));
                assert_eq!(path, part_path(dir.path(), absent));
            }
            other => panic!("{other}"),
        }
    }
    write_parts(dir.path());
    std::fs::copy(part_path(dir.path(), 3), part_path(dir.path(), 2)).unwrap();
    let error = GgufFile::open(part_path(dir.path(), 1)).unwrap_err();
    assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
    write_parts(dir.path());
    let bytes = std::fs::read(part_path(dir.path(), 3)).unwrap();
    std::fs::write(part_path(dir.path(), 3), &bytes[..bytes.len() - 1]).unwrap();
    let error = GgufFile::open(part_path(dir.path(), 1)).unwrap_err();
    assert!(matches!(error, LoadError::Truncated { path, .. } if path == part_path(dir.path(), 3)));
    // A last part that lost its tensors is a whole file, but not a whole model.
    write_parts(dir.path());
    let mut hollow = GgufWriter::new();
    hollow.set("split.no", Value::U16(2));
    hollow.set("split.count", Value::U16(3));
    hollow.write(part_path(dir.path(), 3)).unwrap();
    let error = GgufFile::open(part_path(dir.path(), 1)).unwrap_err();
    assert!(
        error.to_string().contains("should hold 20 tensors"),
        "{error}"
    );
    write_parts(dir.path());
    std::fs::rename(part_path(dir.path(), 1), dir.path().join("renamed.gguf")).unwrap();
    let error = GgufFile::open(dir.path().join("renamed.gguf")).unwrap_err();
    assert!(
        error.to_string().contains("-00001-of-00003.gguf"),
        "{error}"
    );
}

/// Two shards and their index.
fn write_shards(tiny: &Tiny, folder: &Path) {
    std::fs::write(folder.join("config.json"), tiny.config_json().to_string()).unwrap();
    let names: Vec<&str> = tiny.tensors.keys().map(String::as_str).collect();
    let (first, second) = names.split_at(names.len() / 2);
    let files = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let mut map = serde_json::Map::new();
    for (part, file) in [first, second].into_iter().zip(files) {
        tiny.write_shard(&folder.join(file), part, Dtype::F32);
        for name in part {
            map.insert(name.to_string(), file.into());
        }
    }
    write_index(
        folder,
        json!({"metadata": {"total_size": 1}, "weight_map": map}),
    );
}

fn write_index(folder: &Path, index: serde_json::Value) {
    std::fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

#[test]
fn h6_shards_and_an_absent_one() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = tiny::qwen2();
    write_shards(&tiny, dir.path());
    let load = || load_folder(dir.path(), &LoadOptions::new(), &device());
    assert_computes(&tiny, &load().unwrap().model, 1e-4);
    std::fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = load().unwrap_err();
    assert!(
        matches!(&error, LoadError::ShardMissing { file, .. } if file == "model-00002-of-00002.safetensors"),
        "{error}"
    );
}

#[test]
fn h6_an_index_cannot_leave_its_folder() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    let tiny = tiny::llama();
    tiny.write_folder(outer.path(), Dtype::F32);
    std::fs::write(dir.join("config.json"), tiny.config_json().to_string()).unwrap();
    let absolute = outer.path().join("model.safetensors");
    for file in [
        "../model.safetensors",
        absolute.to_str().unwrap(),
        "a/../../model.safetensors",
        "",
    ] {
        write_index(&dir, json!({"weight_map": {"model.norm.weight": file}}));
        let error = load_folder(&dir, &LoadOptions::new(), &device()).unwrap_err();
        assert!(
            matches!(error, LoadError::UnsafePath { .. }),
            "{file}: {error}"
        );
    }
    for index in [
        json!({}),
        json!([]),
        json!({"weight_map": {"a": 1}}),
        json!({"weight_map": {}}),
    ] {
        write_index(&dir, index);
        let error = load_folder(&dir, &LoadOptions::new(), &device()).unwrap_err();
        assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn h6_another_weight_format_only() {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny::llama().config_json().to_string();
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let load = || load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap_err();
    assert!(matches!(load(), LoadError::NotFound { path } if path.ends_with("model.safetensors")));
    std::fs::write(dir.path().join("pytorch_model.bin"), [0; 16]).unwrap();
    let error = load();
    assert!(
        matches!(&error, LoadError::WrongFormatOnly { found, .. } if found == "pytorch_model.bin"),
        "{error}"
    );
}

#[test]
fn h6_half_precision_weights() {
    for (dtype, format) in [
        (Dtype::BF16, BlockFormat::BF16),
        (Dtype::F16, BlockFormat::F16),
    ] {
        let mut tiny = tiny::qwen3();
        let dir = tempfile::tempdir().unwrap();
        tiny.write_folder(dir.path(), dtype);
        for (_, values) in tiny.tensors.values_mut() {
            *values = kept(format, values);
        }
        let loaded = load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap();
        assert_computes(&tiny, &loaded.model, 1e-4);
        assert_eq!(loaded.report.formats[format.name()], tiny.tensors.len());
    }
}
