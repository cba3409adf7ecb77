//! Damaged files: typed errors, no panics, no huge allocations.

use crate::tiny::{self, device};
use proptest::prelude::*;
use safetensors::Dtype;
use specdec_models::{
    GgufFile, HubFolder, LoadError, LoadOptions, ModelConfig, Transformer,
    gguf::{Array, GgmlType, GgufWriter, Value},
    load_folder, load_gguf, open,
};

/// 50 places of a file, header and data, the last byte among them.
fn places(len: usize, header: usize) -> Vec<usize> {
    let mut at: Vec<usize> = (0..25).map(|i| i * header / 25).collect();
    at.extend((0..24).map(|i| header + i * (len - header) / 24));
    at.push(len - 1);
    at
}

#[test]
fn h5_a_gguf_file_cut_anywhere_is_truncated() {
    let bytes = tiny::llama().gguf_f32().to_bytes().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let header = bytes.len() / 8;
    for at in places(bytes.len(), header).into_iter().chain(1..200) {
        std::fs::write(&path, &bytes[..at]).unwrap();
        match load_gguf(&path, &LoadOptions::new(), &device()).unwrap_err() {
            LoadError::Truncated { need, have, .. } => {
                assert_eq!(have, at as u64);
                assert!(need > have && need <= bytes.len() as u64);
            }
            other => panic!("cut at {at}: {other}"),
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    open(&path, &LoadOptions::new(), &device()).unwrap();
}

#[test]
fn h5_a_safetensors_file_cut_anywhere_is_truncated() {
    let dir = tempfile::tempdir().unwrap();
    tiny::qwen2().write_folder(dir.path(), Dtype::F32);
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in places(bytes.len(), header).into_iter().chain(1..20) {
        std::fs::write(&path, &bytes[..at]).unwrap();
        match load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap_err() {
            LoadError::Truncated {
                need,
                have,
                path: named,
            } => {
                assert_eq!(have, at as u64);
                assert!(need > have && need <= bytes.len() as u64);
                assert_eq!(named, path);
            }
            other => panic!("cut at {at}: {other}"),
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    open(dir.path(), &LoadOptions::new(), &device()).unwrap();
    // Longer than its header says is not cut.
    std::fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
    let error = load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap_err();
    assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
}

/// A header of the given counts and then `rest`.
fn raw(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes.extend(rest);
    bytes
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

#[test]
fn h5_absurd_counts_are_errors_without_allocation() {
    let key = |kind: u32, rest: &[u8]| [&text("k"), &kind.to_le_bytes()[..], rest].concat();
    let array =
        |kind: u32, count: u64| key(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes()].concat());
    let tensor = |dims: u32, dim: u64, offset: u64| {
        let mut bytes = [text("t"), dims.to_le_bytes().to_vec()].concat();
        for _ in 0..dims.min(9) {
            bytes.extend(dim.to_le_bytes());
        }
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend([0; 256]);
        bytes
    };
    // Any of these, believed, would ask for terabytes.
    let huge = [1u64 << 40, 1 << 60, u64::MAX];
    let mut files = Vec::new();
    for n in huge {
        files.push(raw(n, 0, &[]));
        files.push(raw(0, n, &[]));
        files.push(raw(0, 1, &n.to_le_bytes()));
        files.push(raw(0, 1, &key(8, &n.to_le_bytes())));
        for kind in 0..=12 {
            files.push(raw(0, 1, &array(kind, n)));
        }
        files.push(raw(1, 0, &tensor(1, n, 0)));
        files.push(raw(1, 0, &tensor(2, n, 0)));
        files.push(raw(1, 0, &tensor(1, 8, n & !31)));
    }
    files.push(raw(1, 0, &tensor(u32::MAX, 1, 0)));
    files.push(raw(0, 1, &key(13, &[0; 64])));
    files.push(raw(0, 1, &array(13, 1)));
    for bytes in files {
        let error = GgufFile::from_bytes(bytes).unwrap_err();
        assert!(
            matches!(
                error,
                LoadError::Corrupt { .. } | LoadError::Truncated { .. }
            ),
            "{error}"
        );
    }
    // Arrays in arrays, a hundred thousand deep, must not use up the stack.
    let nested: Vec<u8> = std::iter::repeat_n(
        [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat(),
        100_000,
    )
    .flatten()
    .collect();
    let error = GgufFile::from_bytes(raw(0, 1, &key(9, &nested))).unwrap_err();
    assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
    // The same for safetensors.
    let dir = tempfile::tempdir().unwrap();
    tiny::llama().write_folder(dir.path(), Dtype::F32);
    for header in [
        r#"{"a":{"dtype":"F64","shape":[2305843009213693951],"data_offsets":[0,18446744073709551608]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
    ] {
        let bytes = [
            &(header.len() as u64).to_le_bytes(),
            header.as_bytes(),
            &[0; 64],
        ]
        .concat();
        std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        let error = HubFolder::open(dir.path()).unwrap_err();
        assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
    }
    std::fs::write(dir.path().join("model.safetensors"), [0xff; 64]).unwrap();
    let error = HubFolder::open(dir.path()).unwrap_err();
    assert!(matches!(error, LoadError::Corrupt { .. }), "{error}");
}

#[test]
fn h5_truncated_missing_and_unsupported_are_different() {
    let tiny = tiny::llama();
    let mut missing = tiny.memory();
    assert!(missing.remove("model.layers.1.mlp.up_proj.weight"));
    let error = Transformer::from_tensors(&tiny.config, &missing, &device()).unwrap_err();
    assert!(
        matches!(&error, LoadError::TensorMissing { name } if name == "model.layers.1.mlp.up_proj.weight")
    );
    // In a GGUF file the tensor is named as the file would name it.
    let mut tiny = tiny::llama();
    tiny.tensors.remove("model.layers.1.mlp.up_proj.weight");
    let file = GgufFile::from_bytes(tiny.gguf_f32().to_bytes().unwrap()).unwrap();
    let config = ModelConfig::from_gguf(&file).unwrap();
    let error = Transformer::from_tensors(&config, &file, &device()).unwrap_err();
    assert!(matches!(&error, LoadError::TensorMissing { name } if name == "blk.1.ffn_up.weight"));
    // Not a number type of weights.
    let dir = tempfile::tempdir().unwrap();
    let tiny = tiny::llama();
    tiny.write_folder(dir.path(), Dtype::F32);
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let renamed = String::from_utf8(bytes[..header][8..].to_vec())
        .unwrap()
        .replacen("\"F32\"", "\"I32\"", 1);
    std::fs::write(
        &path,
        [&bytes[..8], renamed.as_bytes(), &bytes[header..]].concat(),
    )
    .unwrap();
    let error = load_folder(dir.path(), &LoadOptions::new(), &device()).unwrap_err();
    assert!(
        matches!(&error, LoadError::UnsupportedTensorType { type_name, .. } if type_name == "I32"),
        "{error}"
    );
}

#[test]
fn h5_complete_files_of_every_alignment_open() {
    let tiny = tiny::llama();
    for alignment in [1, 8, 32, 64, 4096] {
        let mut writer = tiny.gguf_f32();
        writer.set("general.alignment", Value::U32(alignment));
        // A tensor of nothing at the very end needs no bytes.
        writer.tensor("nothing", &[0, 4], GgmlType::from_id(0), Vec::new());
        let bytes = writer.to_bytes().unwrap();
        let file = GgufFile::from_bytes(bytes.clone()).unwrap();
        assert!(file.tensor("nothing").unwrap().bytes().unwrap().is_empty());
        let expected = &tiny.tensors["model.norm.weight"].1;
        let expected: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(
            file.tensor("output_norm.weight").unwrap().bytes().unwrap(),
            expected
        );
        // Padding after the last tensor is allowed, as some writers add it.
        GgufFile::from_bytes([bytes, vec![0; 100]].concat()).unwrap();
    }
    for alignment in [0, 3, 48] {
        let mut bytes = GgufWriter::new();
        bytes.set("general.alignment", Value::U32(64));
        let mut bytes = bytes.to_bytes().unwrap();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&u32::to_le_bytes(alignment));
        let error = GgufFile::from_bytes(bytes).unwrap_err();
        assert!(matches!(error, LoadError::InvalidKey { key, .. } if key == "general.alignment"));
    }
    // The empty tensor would begin after padding that nobody has to write.
    let mut unpadded = GgufWriter::new();
    unpadded.tensor("some", &[1], GgmlType::from_id(0), vec![0; 4]);
    unpadded.tensor("nothing", &[0], GgmlType::from_id(0), Vec::new());
    let mut bytes = unpadded.to_bytes().unwrap();
    bytes.truncate(bytes.len() - 28);
    GgufFile::from_bytes(bytes.clone()).unwrap();
    bytes.pop();
    let error = GgufFile::from_bytes(bytes).unwrap_err();
    assert!(matches!(error, LoadError::Truncated { .. }), "{error}");
    // Metadata only, as vocabulary files are, and nothing at all.
    let mut vocabulary = GgufWriter::new();
    vocabulary.set("a", Value::Array(Array::Bool(vec![true])));
    GgufFile::from_bytes(vocabulary.to_bytes().unwrap()).unwrap();
    GgufFile::from_bytes(GgufWriter::new().to_bytes().unwrap()).unwrap();
}

#[test]
fn h5_versions_and_other_files() {
    for version in [0u32, 1, 4, 3u32.swap_bytes()] {
        let mut bytes = raw(0, 0, &[]);
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let error = GgufFile::from_bytes(bytes).unwrap_err();
        assert!(matches!(error, LoadError::UnsupportedVersion { version: v, .. } if v == version));
    }
    let mut bytes = tiny::llama().gguf_f32().to_bytes().unwrap();
    bytes[4] = 2;
    GgufFile::from_bytes(bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("readme.txt");
    std::fs::write(&path, "just text").unwrap();
    let load = |path: &std::path::Path| open(path, &LoadOptions::new(), &device()).unwrap_err();
    assert!(matches!(load(&path), LoadError::NotAModel { .. }));
    assert!(matches!(
        load(&dir.path().join("absent")),
        LoadError::NotFound { .. }
    ));
    assert!(
        matches!(load(dir.path()), LoadError::NotFound { path } if path.ends_with("config.json"))
    );
}

#[test]
fn h5_contradictions_are_named() {
    let mut twice = GgufWriter::new();
    for _ in 0..2 {
        twice.tensor("same", &[1], GgmlType::from_id(0), vec![0; 4]);
    }
    let error = GgufFile::from_bytes(twice.to_bytes().unwrap()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the tensor same stands in it twice")
    );
    let keys = [
        text("k"),
        vec![0, 0, 0, 0, 7],
        text("k"),
        vec![0, 0, 0, 0, 8],
    ]
    .concat();
    let error = GgufFile::from_bytes(raw(0, 2, &keys)).unwrap_err();
    assert!(error.to_string().contains("the key k stands in it twice"));
    let key = [
        text("k"),
        8u32.to_le_bytes().to_vec(),
        2u64.to_le_bytes().to_vec(),
        vec![0xff; 2],
    ];
    let error = GgufFile::from_bytes(raw(0, 1, &key.concat())).unwrap_err();
    assert!(error.to_string().contains("not UTF-8"), "{error}");
    // One byte off its alignment, and inside the file.
    let mut shifted = GgufWriter::new();
    shifted.tensor("shifted", &[1], GgmlType::from_id(0), vec![0; 64]);
    let mut bytes = shifted.to_bytes().unwrap();
    let offset = 24 + 8 + "shifted".len() + 4 + 8 + 4;
    bytes[offset] = 1;
    let error = GgufFile::from_bytes(bytes).unwrap_err();
    assert!(error.to_string().contains("alignment 32"), "{error}");
    let mut odd = GgufWriter::new();
    odd.tensor("odd", &[2, 31], GgmlType::from_id(8), vec![0; 68]);
    let error = GgufFile::from_bytes(odd.to_bytes().unwrap()).unwrap_err();
    assert!(error.to_string().contains("odd"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn h5_flipped_bytes_of_a_gguf_file_never_panic(
        flips in prop::collection::vec((0usize..3000, any::<u8>()), 1..8),
        tail in 0usize..4,
    ) {
        let mut writer = tiny::llama().gguf_f32();
        writer.set("a.nested", Value::Array(Array::Array(vec![Array::U8(vec![1, 2])])));
        let mut bytes = writer.to_bytes().unwrap();
        for (at, value) in flips {
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - tail);
        if let Ok(file) = GgufFile::from_bytes(bytes)
            && let Ok(config) = ModelConfig::from_gguf(&file)
        {
            let _ = Transformer::from_tensors(&config, &file, &device());
        }
    }

    #[test]
    fn h5_flipped_bytes_of_a_folder_never_panic(
        flips in prop::collection::vec((0usize..1500, any::<u8>()), 1..8),
        in_config in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        tiny::qwen3().write_folder(dir.path(), Dtype::F32);
        let name = if in_config { "config.json" } else { "model.safetensors" };
        let mut bytes = std::fs::read(dir.path().join(name)).unwrap();
        let len = bytes.len();
        for (at, value) in flips {
            bytes[at % len] = value;
        }
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let _ = load_folder(dir.path(), &LoadOptions::new(), &device());
    }
}
