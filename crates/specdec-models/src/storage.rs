//! The bytes of a file: mapped from disk, or owned.

use crate::{LoadError, error::Result};
use std::{fmt, fs::File, ops::Deref, path::Path};

/// Read-only bytes that live as long as this value.
pub(crate) enum Storage {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Storage {
    /// Maps a file.
    #[allow(unsafe_code)]
    pub(crate) fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| LoadError::io(path, e))?;
        let meta = file.metadata().map_err(|e| LoadError::io(path, e))?;
        if !meta.is_file() {
            return Err(LoadError::NotAModel {
                path: path.to_path_buf(),
            });
        }
        if meta.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the map is read-only and private to this value. What Rust cannot rule out is
        // another process that shortens or rewrites the file meanwhile; the crate's documentation
        // asks users not to, as every mapping loader does. All bytes are treated as untrusted
        // input, so a rewrite can change values but not break an invariant that is relied on.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| LoadError::io(path, e))?;
        Ok(Self::Mapped(map))
    }
}

impl Deref for Storage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(map) => write!(f, "Mapped({} bytes)", map.len()),
            Self::Owned(bytes) => write!(f, "Owned({} bytes)", bytes.len()),
        }
    }
}
