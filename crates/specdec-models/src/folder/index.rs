//! Which files of a folder hold its weights.

use super::{read_json, read_text};
use crate::{LoadError, error::Result};
use std::{
    collections::BTreeSet,
    path::{Component, Path},
};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Ends of file names that stand for weights in other formats.
const OTHER_FORMATS: &[&str] = &[
    ".bin", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz",
];

/// The names of the weight files, relative to the folder.
pub(super) fn weight_files(folder: &Path) -> Result<Vec<String>> {
    if folder.join(SINGLE).exists() {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let index = folder.join(INDEX);
    match read_text(&index) {
        Ok(text) => named_by(&text, &index, folder),
        Err(LoadError::NotFound { .. }) => Err(without_weights(folder)),
        Err(error) => Err(error),
    }
}

fn named_by(text: &str, index: &Path, folder: &Path) -> Result<Vec<String>> {
    let corrupt = |what: &str| LoadError::Corrupt {
        path: index.to_path_buf(),
        what: what.to_owned(),
    };
    let value = read_json(text, index)?;
    let map = value.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| corrupt("it has no weight_map"))?;
    let mut files = BTreeSet::new();
    for file in map.values() {
        let file = file
            .as_str()
            .ok_or_else(|| corrupt("its weight_map names something that is no string"))?;
        if files.insert(file.to_owned()) && !stays_inside(file) {
            return Err(LoadError::UnsafePath {
                file: file.to_owned(),
                folder: folder.to_path_buf(),
            });
        }
    }
    if files.is_empty() {
        return Err(corrupt("its weight_map is empty"));
    }
    Ok(files.into_iter().collect())
}

/// Whether a relative path can only name something below the folder. Links are followed (the
/// download cache of the hub is made of them); what counts is what the index itself can reach.
fn stays_inside(file: &str) -> bool {
    let normal = |part: Component<'_>| matches!(part, Component::Normal(_));
    !file.is_empty()
        && !file.contains(['\\', ':', '\0'])
        && Path::new(file).components().all(normal)
}

fn without_weights(folder: &Path) -> LoadError {
    let names = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let other = names
        .filter(|name| OTHER_FORMATS.iter().any(|end| name.ends_with(end)))
        .min();
    match other {
        Some(found) => LoadError::WrongFormatOnly {
            folder: folder.to_path_buf(),
            found,
        },
        None => LoadError::NotFound {
            path: folder.join(SINGLE),
        },
    }
}
