//! Model files from strangers: whatever is in them, loading ends with a model or with an error, in little
//! time and memory, and nothing outside the folder is read.

use crate::{
    dense_attend::DenseAttend,
    tiny::{Tiny, device},
};
use half::f16;
use safetensors::Dtype;
use serde_json::{Value as Json, json};
use specdec_core::{Block, SeqId};
use specdec_kernels::BlockFormat;
use specdec_models::{
    Architecture, GgufFile, LoadError, LoadOptions, ModelConfig, Transformer,
    gguf::{Array, GgmlType, GgufWriter, Value},
    load_folder,
};
use specdec_testkit::hostile::{Campaign, CampaignReport, CountingAllocator};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

fn small() -> Tiny {
    let mut config = ModelConfig::new(Architecture::Llama, 12, 8, 1)
        .with_heads(2, 1, 4)
        .with_intermediate(8);
    config.context = 32;
    Tiny::of(config, 5)
}

/// Tells the counts where they can be read without stopping the test.
fn told(report: &CampaignReport) {
    writeln!(std::io::stderr(), "{report}").expect("standard error is open");
    assert!(report.reasons > 3, "{report}");
}

/// What a model file gives must also compute.
fn computes(model: &Transformer) {
    let block = Block::single(SeqId(0), 0, &[0, 1], &device());
    DenseAttend::new(model).hidden(model, &block);
}

fn gguf() -> Vec<u8> {
    let mut writer = small().gguf(|name| match name {
        "output_norm.weight" => BlockFormat::F16,
        _ => BlockFormat::F32,
    });
    let strings =
        |all: &[&str]| Value::Array(Array::String(all.iter().map(|s| (*s).to_owned()).collect()));
    writer.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    writer.set("tokenizer.ggml.merges", strings(&["a b"]));
    writer.set(
        "a.nested",
        Value::Array(Array::Array(vec![Array::U8(vec![1, 2])])),
    );
    writer.to_bytes().expect("it can be written")
}

#[test]
fn h5_hostile_gguf_files() {
    let report = Campaign::new("gguf")
        .input(gguf())
        .corpus(corpus("gguf"))
        .run(
            |mutator, bytes| mutator.bytes(bytes),
            |bytes| {
                let file = GgufFile::from_bytes(bytes.to_vec()).map_err(|e| e.to_string())?;
                let config = ModelConfig::from_gguf(&file).map_err(|e| e.to_string())?;
                let model = Transformer::from_tensors(&config, &file, &device())
                    .map_err(|e| e.to_string())?;
                computes(&model);
                Ok(())
            },
        );
    told(&report);
}

/// A folder in which one file is the input.
fn folder_campaign(
    name: &str,
    file: &str,
    mutate: fn(&mut specdec_testkit::hostile::Mutator, &[u8]) -> Vec<u8>,
) {
    let folder = tempfile::tempdir().expect("a folder");
    small().write_folder(folder.path(), Dtype::F32);
    if file.ends_with("index.json") {
        fs::rename(
            folder.path().join("model.safetensors"),
            folder.path().join("part.safetensors"),
        )
        .expect("renamed");
        let map: serde_json::Map<String, Json> = small()
            .tensors
            .keys()
            .map(|name| (name.clone(), "part.safetensors".into()))
            .collect();
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        fs::write(folder.path().join(file), index.to_string()).expect("written");
    }
    let path = folder.path().join(file);
    let report = Campaign::new(name)
        .input(fs::read(&path).expect("it was written"))
        .corpus(corpus(name))
        .run(mutate, |bytes| {
            fs::write(&path, bytes).expect("written");
            let loaded = load_folder(folder.path(), &LoadOptions::new(), &device());
            computes(&loaded.map_err(|e| e.to_string())?.model);
            Ok(())
        });
    told(&report);
}

#[test]
fn h5_hostile_configurations() {
    folder_campaign("config", "config.json", |mutator, bytes| {
        mutator.json(bytes)
    });
}

#[test]
fn h5_hostile_safetensors_files() {
    folder_campaign("safetensors", "model.safetensors", |mutator, bytes| {
        mutator.safetensors(bytes)
    });
}

#[test]
fn h5_hostile_indices() {
    folder_campaign("index", "model.safetensors.index.json", |mutator, bytes| {
        mutator.json(bytes)
    });
}

/// Names in an index that lead out of the folder are refused, though there is a good file where they lead.
#[test]
fn h6_an_index_cannot_leave_its_folder() {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = outer.path().join("model");
    fs::create_dir(&folder).expect("made");
    small().write_folder(&folder, Dtype::F32);
    let outside = outer.path().join("outside.safetensors");
    fs::rename(folder.join("model.safetensors"), &outside).expect("renamed");
    fs::create_dir(folder.join("sub")).expect("made");
    let absolute = outside.to_str().expect("a path in UTF-8");
    for name in [
        "../outside.safetensors",
        "sub/../../outside.safetensors",
        "./../outside.safetensors",
        "..\\outside.safetensors",
        absolute,
        "/etc/hostname",
        "C:\\outside.safetensors",
        "..",
        ".",
        "",
        "a\0b",
    ] {
        let index = json!({"weight_map": {"model.norm.weight": name}});
        fs::write(
            folder.join("model.safetensors.index.json"),
            index.to_string(),
        )
        .expect("written");
        let error = load_folder(&folder, &LoadOptions::new(), &device()).expect_err("refused");
        assert!(
            matches!(error, LoadError::UnsafePath { .. }),
            "{name:?}: {error}"
        );
    }
}

/// Data that many tensors share would be copied for each of them: a small file could ask for any memory.
#[test]
fn h5_tensors_that_share_data_are_refused() {
    let mut writer = GgufWriter::new();
    for name in ["a", "b", "c"] {
        writer.tensor(name, &[8], GgmlType::from_id(0), vec![0; 32]);
    }
    let good = writer.to_bytes().expect("it can be written");
    GgufFile::from_bytes(good.clone()).expect("a good file");
    // The offset of the last tensor, in the last bytes of its entry, becomes that of the one before.
    let place = 24 + 3 * (8 + 1 + 4 + 8 + 4 + 8) - 8;
    let mut shared = good;
    assert_eq!(shared[place..place + 8], 64u64.to_le_bytes());
    shared[place..place + 8].copy_from_slice(&32u64.to_le_bytes());
    let error = GgufFile::from_bytes(shared).expect_err("refused");
    assert!(
        matches!(&error, LoadError::Corrupt { what, .. } if what.contains('b') && what.contains('c')),
        "{error}"
    );
}

/// A file that does not end, such as a device or a pipe, is none of a model's.
#[cfg(unix)]
#[test]
fn h5_files_that_do_not_end_are_refused() {
    for name in ["config.json", "model.safetensors", "generation_config.json"] {
        let folder = tempfile::tempdir().expect("a folder");
        small().write_folder(folder.path(), Dtype::F32);
        let _ = fs::remove_file(folder.path().join(name));
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(name)).expect("a link");
        let error =
            load_folder(folder.path(), &LoadOptions::new(), &device()).expect_err("refused");
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Half-precision numbers of every kind, infinities among them, load and compute.
#[test]
fn h5_numbers_of_every_kind_compute() {
    let mut tiny = small();
    for (index, (_, values)) in tiny.tensors.values_mut().enumerate() {
        for (at, value) in values.iter_mut().enumerate() {
            *value = f16::from_bits((index * 7919 + at * 257) as u16).to_f32();
        }
    }
    let model =
        Transformer::from_tensors(&tiny.config, &tiny.memory(), &device()).expect("it loads");
    computes(&model);
}
