//! Files that are there whole or not at all.

use crate::error::{RakvError, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What the name of a file begins with until it is whole.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// Writes a file by another name beside it, flushes it to the disk and renames it: a reader, and a
/// process after a crash, sees the old file or the new one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let io = |e| RakvError::io(path, e);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .tempfile_in(folder)
        .map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    file.as_file().sync_all().map_err(io)?;
    file.persist(path).map_err(|e| io(e.error))?;
    // The rename itself, where folders can be flushed.
    #[cfg(unix)]
    File::open(folder).and_then(|f| f.sync_all()).map_err(io)?;
    Ok(())
}
