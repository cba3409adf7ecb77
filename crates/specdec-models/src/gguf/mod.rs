//! GGUF files, versions 2 and 3: read in place, split files included, and written.

mod ggml_type;
mod reader;
mod split;
mod tensors;
mod value;
mod writer;

pub use ggml_type::GgmlType;
pub use tensors::GgufTensor;
pub use value::{Array, Metadata, Value};
pub use writer::GgufWriter;

use crate::{LoadError, error::Result, storage::Storage};
use reader::{Entry, read_header};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

/// An open GGUF file, or all parts of a split one.
///
/// The file is mapped, not read: opening costs the header only. The map stays valid as long as
/// nobody shortens the file meanwhile.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    metadata: Metadata,
    parts: Vec<Storage>,
    /// Part and entry of each tensor, in file order.
    tensors: Vec<(usize, Entry)>,
    by_name: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens a file, and the others when it is the first part of a split one.
    ///
    /// # Errors
    /// [`LoadError::NotFound`], [`LoadError::Io`]; [`LoadError::Truncated`] when a part ends before
    /// its header or a tensor does; [`LoadError::Corrupt`]; [`LoadError::UnsupportedVersion`];
    /// [`LoadError::SplitMissing`] and [`LoadError::SplitNotFirst`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut file = Self::read(Storage::map(path)?, path)?;
        split::open_others(&mut file)?;
        file.index()
    }

    /// A file that is already in memory (embedded in the program, or fetched). Split files need
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open), less those of the file system.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let path = Path::new("(memory)");
        let file = Self::read(Storage::Owned(bytes), path)?;
        match split::count(&file.metadata)? {
            0 | 1 => file.index(),
            count => Err(LoadError::SplitMissing {
                part: 2,
                count,
                path: path.to_path_buf(),
            }),
        }
    }

    fn read(storage: Storage, path: &Path) -> Result<Self> {
        let header = read_header(&storage, path)?;
        Ok(Self {
            path: path.to_path_buf(),
            metadata: header.metadata,
            parts: vec![storage],
            tensors: header.tensors.into_iter().map(|e| (0, e)).collect(),
            by_name: HashMap::new(),
        })
    }

    fn index(mut self) -> Result<Self> {
        for (index, (_, entry)) in self.tensors.iter().enumerate() {
            if self.by_name.insert(entry.name.clone(), index).is_some() {
                return Err(LoadError::Corrupt {
                    path: self.path,
                    what: format!("the tensor {} stands in it twice", entry.name),
                });
            }
        }
        Ok(self)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata (of the first part, which has all of it).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The metadata a tokenizer is made of: the keys that begin with `tokenizer.`, the chat
    /// template among them (`tokenizer.chat_template`).
    pub fn tokenizer(&self) -> Metadata {
        self.metadata.subset("tokenizer.")
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = GgufTensor<'_>> {
        self.tensors.iter().map(|entry| self.view(entry))
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<GgufTensor<'_>> {
        let &index = self.by_name.get(name)?;
        self.tensors.get(index).map(|entry| self.view(entry))
    }

    fn view<'a>(&'a self, (part, entry): &'a (usize, Entry)) -> GgufTensor<'a> {
        let bytes = entry.len.map(|len| {
            // The reader has compared every range with its part's length.
            &self.parts[*part][entry.start..entry.start + len]
        });
        GgufTensor { entry, bytes }
    }
}
