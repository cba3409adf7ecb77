//! Hugging Face folders: `config.json` and safetensors.

mod index;
mod shard;

use crate::{LoadError, ModelConfig, StoredTensor, TensorSource, error::Result};
use shard::Shard;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

/// An open model folder. Weight files are mapped, not read.
#[derive(Debug)]
pub struct HubFolder {
    path: PathBuf,
    config: String,
    shards: Vec<Shard>,
    by_name: HashMap<String, usize>,
}

impl HubFolder {
    /// Opens `config.json` and `model.safetensors`, or the files that
    /// `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] for the folder or `config.json`; [`LoadError::WrongFormatOnly`] when
    /// there are weights in other formats only; [`LoadError::ShardMissing`] and
    /// [`LoadError::UnsafePath`] for what the index names; [`LoadError::Truncated`] and
    /// [`LoadError::Corrupt`] for a weight file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        if !path.is_dir() {
            return Err(if path.exists() {
                LoadError::NotAModel { path }
            } else {
                LoadError::NotFound { path }
            });
        }
        let config = read_text(&path.join("config.json"))?;
        let files = index::weight_files(&path)?;
        let mut shards = Vec::new();
        let mut by_name = HashMap::new();
        for file in files {
            let shard = Shard::open(&path.join(&file)).map_err(|error| match error {
                LoadError::NotFound { .. } => LoadError::ShardMissing {
                    file,
                    folder: path.clone(),
                },
                error => error,
            })?;
            for name in shard.names() {
                by_name.insert(name.to_owned(), shards.len());
            }
            shards.push(shard);
        }
        Ok(Self {
            path,
            config,
            shards,
            by_name,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The settings in `config.json`.
    ///
    /// # Errors
    /// As [`ModelConfig::from_json`].
    pub fn config(&self) -> Result<ModelConfig> {
        ModelConfig::from_json(&self.config).map_err(|error| match error {
            LoadError::Corrupt { what, .. } => LoadError::Corrupt {
                path: self.path.join("config.json"),
                what,
            },
            error => error,
        })
    }

    /// The tokens that end an output: `eos_token_id` of `generation_config.json` and of
    /// `config.json`, each a number or a list; sorted.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Corrupt`] for one of the two files.
    pub fn end_tokens(&self) -> Result<Vec<u32>> {
        let mut found = end_tokens(&self.config, &self.path.join("config.json"))?;
        let other = self.path.join("generation_config.json");
        match read_text(&other) {
            Ok(text) => found.extend(end_tokens(&text, &other)?),
            Err(LoadError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

impl TensorSource for HubFolder {
    fn tensor(&self, name: &str) -> Result<Option<StoredTensor<'_>>> {
        let Some(&shard) = self.by_name.get(name) else {
            return Ok(None);
        };
        self.shards[shard].tensor(name)
    }

    fn native_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.by_name.keys().cloned().collect();
        names.sort_unstable();
        names
    }
}

/// Longest text file that is read; an index of a hundred thousand tensors has a tenth of it.
const MAX_TEXT: u64 = 1 << 27;

/// Reads a text file. Devices and pipes, which may never end, are refused.
fn read_text(path: &Path) -> Result<String> {
    let about = std::fs::metadata(path).map_err(|e| LoadError::io(path, e))?;
    let corrupt = |what: String| LoadError::Corrupt {
        path: path.to_path_buf(),
        what,
    };
    if !about.is_file() {
        return Err(corrupt("it is no regular file".to_owned()));
    }
    if about.len() > MAX_TEXT {
        return Err(corrupt(format!("it has {} bytes", about.len())));
    }
    std::fs::read_to_string(path).map_err(|e| LoadError::io(path, e))
}

fn read_json(text: &str, path: &Path) -> Result<serde_json::Value> {
    serde_json::from_str(text).map_err(|error| LoadError::Corrupt {
        path: path.to_path_buf(),
        what: error.to_string(),
    })
}

fn end_tokens(text: &str, path: &Path) -> Result<Vec<u32>> {
    let value = read_json(text, path)?;
    let ids = match value.get("eos_token_id") {
        None | Some(serde_json::Value::Null) => return Ok(Vec::new()),
        Some(serde_json::Value::Array(ids)) => ids.as_slice(),
        Some(id) => std::slice::from_ref(id),
    };
    ids.iter()
        .map(|id| {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| LoadError::Corrupt {
                path: path.to_path_buf(),
                what: "eos_token_id is neither a token id nor a list of them".to_owned(),
            })
        })
        .collect()
}
