//! Blocks in files: one safetensors file a block, named after the tokens it stands for, and an index.

use super::atomic::{UNFINISHED, write_whole};
use super::block::{Block, storable};
use super::identity::{FORMAT, Identity};
use crate::error::{RakvError, Result};
use burn::tensor::DType;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use specdec_core::Token;
use std::collections::HashMap;
use std::fs::{self, DirEntry, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Longest header that is read.
const MAX_HEADER: u64 = 1 << 22;
const ENDING: &str = "safetensors";
const INDEX: &str = "index.json";
/// A file that has been left unfinished for so long is nobody's any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// What a block's file says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) scope: u64,
    pub(super) start: usize,
    /// Name of the block before it; 0 for the first.
    pub(super) parent: u128,
    pub(super) tokens: Vec<Token>,
}

/// The digest of all tokens up to a block's end, in a scope of a model: equal names are checked
/// against the tokens themselves.
pub(super) fn name_of(identity: u128, scope: u64, parent: u128, tokens: &[Token]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&identity.to_le_bytes());
    hash.update(&scope.to_le_bytes());
    hash.update(&parent.to_le_bytes());
    for token in tokens {
        hash.update(&token.to_le_bytes());
    }
    hash.digest128()
}

/// Blocks of one model in a folder.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    identity: Identity,
    digest: u128,
}

/// The index: which blocks there are and how they were used. It is a convenience: blocks are found
/// without it.
#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    format: u32,
    identity: Identity,
    blocks: Vec<(String, u64, u32)>,
    checksum: String,
}

impl Contents {
    fn sum(&self) -> String {
        let body = format!(
            "{}|{}|{:?}",
            self.format,
            self.identity.canonical(),
            self.blocks
        );
        format!("{:032x}", xxh3_128(body.as_bytes()))
    }
}

/// What was found in a folder.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Name, label and bytes of each file.
    pub(super) blocks: Vec<(u128, Label, usize)>,
    /// When blocks were last used, and how often.
    pub(super) used: HashMap<u128, (u64, u32)>,
    pub(super) refused: Vec<RakvError>,
}

impl Disk {
    /// Opens (or makes) the folder of a model below `folder`.
    pub(super) fn open(folder: &Path, identity: &Identity) -> Result<(Self, Found)> {
        let digest = identity.digest();
        let folder = folder.join(format!("{digest:032x}"));
        fs::create_dir_all(&folder).map_err(|e| RakvError::io(&folder, e))?;
        let disk = Self {
            folder,
            identity: identity.clone(),
            digest,
        };
        let mut found = Found::default();
        match disk.read_index() {
            Ok(used) => found.used = used,
            Err(error) => found.refused.push(error),
        }
        let entries = fs::read_dir(&disk.folder).map_err(|e| RakvError::io(&disk.folder, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| RakvError::io(&disk.folder, e))?;
            if is_abandoned(&entry) {
                // What cannot be removed is in nobody's way.
                let _ = fs::remove_file(entry.path());
                continue;
            }
            let path = entry.path();
            if path.extension().is_some_and(|e| e == ENDING) {
                match disk.read_label(&path) {
                    Ok(block) => found.blocks.push(block),
                    Err(error) => found.refused.push(error),
                }
            }
        }
        // Parents first; the order of a folder's entries is nobody's.
        found
            .blocks
            .sort_by_key(|(name, label, _)| (label.start, *name));
        Ok((disk, found))
    }

    pub(super) fn path(&self, name: u128) -> PathBuf {
        self.folder.join(format!("{name:032x}.{ENDING}"))
    }

    fn read_index(&self) -> Result<HashMap<u128, (u64, u32)>> {
        let path = self.folder.join(INDEX);
        let text = match read_whole(&path) {
            Err(RakvError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(HashMap::new());
            }
            text => text?,
        };
        let contents: Contents =
            serde_json::from_slice(&text).map_err(|e| RakvError::damaged(&path, e.to_string()))?;
        if contents.sum() != contents.checksum {
            return Err(RakvError::damaged(
                &path,
                "its checksum does not fit its contents",
            ));
        }
        self.identity.refuse(&path, &contents.identity)?;
        let name = |hex: &str| u128::from_str_radix(hex, 16).ok();
        let blocks = contents.blocks.into_iter();
        Ok(blocks
            .filter_map(|(hex, last, hits)| Some((name(&hex)?, (last, hits))))
            .collect())
    }

    pub(super) fn write_index(&self, blocks: Vec<(u128, u64, u32)>) -> Result<()> {
        let mut contents = Contents {
            format: FORMAT,
            identity: self.identity.clone(),
            blocks: blocks
                .into_iter()
                .map(|(name, last, hits)| (format!("{name:032x}"), last, hits))
                .collect(),
            checksum: String::new(),
        };
        contents.checksum = contents.sum();
        let path = self.folder.join(INDEX);
        let text = serde_json::to_vec(&contents)
            .map_err(|e| RakvError::damaged(&path, format!("it cannot be written: {e}")))?;
        write_whole(&path, &text)
    }

    /// Reads a file's header, and checks that its name is the one of its tokens.
    fn read_label(&self, path: &Path) -> Result<(u128, Label, usize)> {
        let (mut file, bytes) = open_regular(path)?;
        let mut size = [0; 8];
        let torn = |_| RakvError::damaged(path, "it is torn: no header");
        file.read_exact(&mut size).map_err(torn)?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER || size + 8 > bytes {
            let what = format!("its header of {size} bytes does not fit in {bytes}");
            return Err(RakvError::damaged(path, what));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(torn)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| RakvError::damaged(path, format!("its header: {e}")))?;
        let want = header.data_len() as u64 + size + 8;
        if want != bytes {
            let what = format!("it is torn: {bytes} bytes of {want}");
            return Err(RakvError::damaged(path, what));
        }
        let (name, label) = self.label(path, header.metadata().as_ref())?;
        Ok((name, label, bytes as usize))
    }

    /// What a header's metadata say, checked against the file's name and this model.
    fn label(
        &self,
        path: &Path,
        metadata: Option<&HashMap<String, String>>,
    ) -> Result<(u128, Label)> {
        let damaged = |what: String| RakvError::damaged(path, what);
        let get = |key: &str| {
            let value = metadata.and_then(|m| m.get(key));
            value.ok_or_else(|| damaged(format!("its header has no {key}")))
        };
        let other: Identity = serde_json::from_str(get("identity")?)
            .map_err(|e| damaged(format!("its identity: {e}")))?;
        self.identity.refuse(path, &other)?;
        let number = |key: &str, radix| {
            let text = get(key)?;
            u128::from_str_radix(text, radix).map_err(|_| damaged(format!("its {key} is {text:?}")))
        };
        let label = Label {
            scope: number("scope", 16)? as u64,
            start: number("start", 10)? as usize,
            parent: number("parent", 16)?,
            tokens: serde_json::from_str(get("tokens")?)
                .map_err(|e| damaged(format!("its tokens: {e}")))?,
        };
        let name = name_of(self.digest, label.scope, label.parent, &label.tokens);
        let stem = path
            .file_stem()
            .and_then(|s| s.to_str())
            .unwrap_or_default();
        if stem != format!("{name:032x}") || label.tokens.is_empty() {
            return Err(damaged("its name is not that of its tokens".into()));
        }
        Ok((name, label))
    }

    /// Writes a block's file, whole or not at all; its bytes.
    pub(super) fn write(&self, label: &Label, block: &Block) -> Result<usize> {
        let name = name_of(self.digest, label.scope, label.parent, &label.tokens);
        let path = self.path(name);
        let broken =
            |what: String| RakvError::damaged(&path, format!("it cannot be written: {what}"));
        let [heads, dim] = self.identity.heads();
        let shape = vec![self.identity.layers(), 2, block.len, heads, dim];
        let dtype = file_type(block.dtype).ok_or_else(|| broken(format!("{:?}", block.dtype)))?;
        let view =
            TensorView::new(dtype, shape, &block.bytes).map_err(|e| broken(e.to_string()))?;
        let json = |e: serde_json::Error| broken(e.to_string());
        let mut metadata: HashMap<String, String> = [
            (
                "identity",
                serde_json::to_string(&self.identity).map_err(json)?,
            ),
            ("scope", format!("{:x}", label.scope)),
            ("start", label.start.to_string()),
            ("parent", format!("{:032x}", label.parent)),
            (
                "tokens",
                serde_json::to_string(&label.tokens).map_err(json)?,
            ),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into();
        metadata.insert(
            "checksum".into(),
            checksum(name, label, block.dtype, &block.bytes),
        );
        let bytes = safetensors::serialize([("kv", view)], Some(metadata))
            .map_err(|e| broken(e.to_string()))?;
        write_whole(&path, &bytes)?;
        Ok(bytes.len())
    }

    /// Reads a block's file whole; it must be that of these tokens, to the last bit.
    pub(super) fn read(&self, name: u128, wanted: &Label) -> Result<Block> {
        let path = self.path(name);
        let damaged = |what: String| RakvError::damaged(&path, what);
        let bytes = read_whole(&path)?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let metadata = header.metadata().as_ref();
        let (_, label) = self.label(&path, metadata)?;
        if label != *wanted {
            return Err(damaged("it holds other tokens".into()));
        }
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        let kv = tensors.tensor("kv").map_err(|e| damaged(e.to_string()))?;
        let dtype = burn_type(kv.dtype()).ok_or_else(|| damaged(format!("{:?}", kv.dtype())))?;
        let [heads, dim] = self.identity.heads();
        let shape = [self.identity.layers(), 2, label.tokens.len(), heads, dim];
        if kv.shape() != shape {
            return Err(damaged(format!(
                "shape {:?} instead of {shape:?}",
                kv.shape()
            )));
        }
        let sum = checksum(name, &label, dtype, kv.data());
        if metadata.and_then(|m| m.get("checksum")) != Some(&sum) {
            return Err(damaged("its checksum does not fit its contents".into()));
        }
        Ok(Block {
            dtype,
            len: label.tokens.len(),
            row: heads * dim * dtype.size(),
            bytes: kv.data().to_vec(),
        })
    }

    pub(super) fn delete(&self, name: u128) {
        // A file that cannot be deleted is found, and checked, the next time.
        let _ = fs::remove_file(self.path(name));
    }
}

/// Opens a file and says how long it is. Pipes and the like, which would be waited for, are refused.
fn open_regular(path: &Path) -> Result<(File, u64)> {
    let io = |e| RakvError::io(path, e);
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(RakvError::damaged(path, "it is no regular file"));
    }
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    Ok((file, bytes))
}

fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let (mut file, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|e| RakvError::io(path, e))?;
    Ok(bytes)
}

/// Whether it is what a process that was killed while it wrote has left behind. A younger one may be
/// another process's that is writing it now.
fn is_abandoned(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let unfinished = name.to_str().is_some_and(|n| n.starts_with(UNFINISHED));
    let of_age = || {
        let about = entry.metadata().ok().filter(|about| about.is_file())?;
        about.modified().ok()?.elapsed().ok()
    };
    unfinished && of_age().is_some_and(|age| age > ABANDONED)
}

fn checksum(name: u128, label: &Label, dtype: DType, bytes: &[u8]) -> String {
    let mut hash = Xxh3::new();
    hash.update(&name.to_le_bytes());
    hash.update(&(label.start as u64).to_le_bytes());
    hash.update(format!("{dtype:?}").as_bytes());
    hash.update(bytes);
    format!("{:032x}", hash.digest128())
}

fn file_type(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F64 => Some(Dtype::F64),
        DType::F32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

fn burn_type(dtype: Dtype) -> Option<DType> {
    let types = [DType::F64, DType::F32, DType::F16, DType::BF16];
    let dtype = types.into_iter().find(|t| file_type(*t) == Some(dtype))?;
    storable(dtype).then_some(dtype)
}
