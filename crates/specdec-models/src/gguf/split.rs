//! Split files: `NAME-00001-of-00003.gguf` and its fellows.

use super::{GgufFile, Metadata, reader::read_header};
use crate::{LoadError, error::Result, storage::Storage};

/// Parts in all, 0 or 1 for a file that is not split.
pub(super) fn count(metadata: &Metadata) -> Result<usize> {
    let count = metadata.u64("split.count")?.unwrap_or(0);
    // The number has five digits in the file names.
    if count > 99_999 {
        return Err(LoadError::invalid("split.count", count, "at most 99999"));
    }
    Ok(count as usize)
}

/// Opens parts 2 and up of a file whose first part is open.
pub(super) fn open_others(file: &mut GgufFile) -> Result<()> {
    let count = count(&file.metadata)?;
    if count < 2 {
        return Ok(());
    }
    let path = file.path.clone();
    let number = file.metadata.u64("split.no")?.unwrap_or(0);
    if number != 0 {
        return Err(LoadError::SplitNotFirst {
            path,
            part: (number as usize).saturating_add(1),
            count,
        });
    }
    let corrupt = |what: String| LoadError::Corrupt {
        path: path.clone(),
        what,
    };
    let suffix = format!("-00001-of-{count:05}.gguf");
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let Some(stem) = name.strip_suffix(&suffix) else {
        return Err(corrupt(format!(
            "it is the first of {count} parts, but its name does not end in {suffix}, so the others cannot be found"
        )));
    };
    for part in 1..count {
        let other = path.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", part + 1));
        let storage = Storage::map(&other).map_err(|error| match error {
            LoadError::NotFound { path } => LoadError::SplitMissing {
                part: part + 1,
                count,
                path,
            },
            error => error,
        })?;
        let header = read_header(&storage, &other)?;
        let says = (
            header.metadata.u64("split.no")?,
            header.metadata.u64("split.count")?,
        );
        if says != (Some(part as u64), Some(count as u64)) {
            return Err(LoadError::Corrupt {
                path: other,
                what: format!(
                    "it stands for part {} of {count}, its header says split.no {:?}, split.count {:?}",
                    part + 1,
                    says.0,
                    says.1
                ),
            });
        }
        let index = file.parts.len();
        file.parts.push(storage);
        file.tensors
            .extend(header.tensors.into_iter().map(|entry| (index, entry)));
    }
    match file.metadata.u64("split.tensors.count")? {
        Some(tensors) if tensors != file.tensors.len() as u64 => Err(corrupt(format!(
            "its {count} parts should hold {tensors} tensors, they hold {}",
            file.tensors.len()
        ))),
        _ => Ok(()),
    }
}
