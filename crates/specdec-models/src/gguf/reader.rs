//! Reading the header of one GGUF file: bounds-checked, without trusting any count.
//!
//! Layout (ggml's `docs/gguf.md`), little-endian: magic `GGUF`, version u32, tensor count u64, key
//! count u64; the keys (string, type u32, value); the tensors (string, dimension count u32,
//! dimensions u64 innermost first, type u32, offset u64); padding to the alignment; the data.

use super::{Array, GgmlType, Metadata, Value};
use crate::{LoadError, error::Result};
use std::path::Path;

/// The alignment of a file that does not name one.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// Arrays of arrays deeper than this are refused: nothing real comes near it.
const MAX_DEPTH: usize = 8;
/// No dimension list is longer (ggml's own limit is 4).
const MAX_DIMS: u32 = 8;

/// A tensor's entry in the header.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Outermost dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) kind: GgmlType,
    /// First byte in the file.
    pub(super) start: usize,
    /// Bytes, `None` for a type whose size is not known.
    pub(super) len: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Entry>,
}

/// Reads the header of `bytes`; `path` is for messages.
pub(super) fn read_header(bytes: &[u8], path: &Path) -> Result<Header> {
    let mut cursor = Cursor { bytes, at: 0, path };
    let magic = cursor.take(4)?;
    if magic != b"GGUF" {
        return Err(cursor.corrupt(format!("it begins with {magic:?}, not with GGUF")));
    }
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        return Err(LoadError::UnsupportedVersion {
            path: path.to_path_buf(),
            version,
        });
    }
    let tensor_count = cursor.u64()?;
    let key_count = cursor.u64()?;
    let mut metadata = Metadata::new();
    // A key takes at least 8 + 4 + 1 bytes, a tensor 8 + 4 + 4 + 8: counts that cannot fit are
    // refused before anything is read or allocated for them.
    cursor.room_for(key_count, 13)?;
    for _ in 0..key_count {
        let key = cursor.string()?;
        let kind = cursor.u32()?;
        let value = cursor.value(kind)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(cursor.corrupt(format!("the key {key} stands in it twice")));
        }
    }
    let alignment = match metadata.u64("general.alignment")? {
        None => DEFAULT_ALIGNMENT,
        Some(a) if a.is_power_of_two() && a <= 1 << 30 => a,
        Some(a) => {
            return Err(LoadError::invalid(
                "general.alignment",
                a,
                "a power of two is needed",
            ));
        }
    };
    cursor.room_for(tensor_count, 24)?;
    let mut raw = Vec::new();
    for _ in 0..tensor_count {
        raw.push(cursor.tensor()?);
    }
    let data = (cursor.at as u64).next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(raw.len());
    for (mut entry, offset) in raw {
        if !offset.is_multiple_of(alignment) {
            return Err(cursor.corrupt(format!(
                "tensor {} lies at offset {offset}, no multiple of the alignment {alignment}",
                entry.name
            )));
        }
        if entry.len == Some(0) {
            tensors.push(entry);
            continue;
        }
        let start = data.checked_add(offset);
        let end = start.and_then(|s| s.checked_add(entry.len.unwrap_or(0) as u64));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(cursor.corrupt(format!("tensor {} lies at offset {offset}", entry.name)));
        };
        if end > bytes.len() as u64 {
            return Err(cursor.truncated(end));
        }
        entry.start = start as usize;
        tensors.push(entry);
    }
    match shared(&tensors) {
        Some((a, b)) => Err(cursor.corrupt(format!("the tensors {a} and {b} share data"))),
        None => Ok(Header { metadata, tensors }),
    }
}

/// Two tensors whose bytes overlap. Without them the tensors together are no larger than the file, and
/// neither is what is made of them.
fn shared(tensors: &[Entry]) -> Option<(&str, &str)> {
    let mut placed: Vec<(usize, usize, &str)> = tensors
        .iter()
        .filter_map(|entry| Some((entry.start, entry.len.filter(|&len| len > 0)?, &*entry.name)))
        .collect();
    placed.sort_unstable();
    placed
        .windows(2)
        .find(|pair| pair[0].0 + pair[0].1 > pair[1].0)
        .map(|pair| (pair[0].2, pair[1].2))
}

/// A place in the bytes of a file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    fn corrupt(&self, what: String) -> LoadError {
        LoadError::Corrupt {
            path: self.path.to_path_buf(),
            what,
        }
    }

    fn truncated(&self, need: u64) -> LoadError {
        LoadError::Truncated {
            path: self.path.to_path_buf(),
            need,
            have: self.bytes.len() as u64,
        }
    }

    /// Refuses `count` items of at least `each` bytes that cannot lie in what is left.
    fn room_for(&self, count: u64, each: u64) -> Result<()> {
        let need = count
            .checked_mul(each)
            .and_then(|n| n.checked_add(self.at as u64));
        match need {
            // Beyond any disk: not a cut file, a wrong number.
            None => Err(self.corrupt(format!("it announces {count} items"))),
            Some(need) if need > 1 << 50 => {
                Err(self.corrupt(format!("it announces {count} items")))
            }
            Some(need) if need > self.bytes.len() as u64 => Err(self.truncated(need)),
            Some(_) => Ok(()),
        }
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        self.room_for(len, 1)?;
        // It fits, so it is below the length of a slice.
        let from = self.at;
        self.at += len as usize;
        Ok(&self.bytes[from..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bool(&mut self) -> Result<bool> {
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.corrupt(format!("a truth value is {other}"))),
        }
    }

    fn string(&mut self) -> Result<String> {
        let len = self.u64()?;
        let from = self.at;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.corrupt(format!("the string at byte {from} is not UTF-8"))),
        }
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.list(1)?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(self.corrupt(format!("a metadata value has type {other}"))),
        })
    }

    fn list(&mut self, depth: usize) -> Result<Array> {
        let kind = self.u32()?;
        let count = self.u64()?;
        Ok(match kind {
            0 => Array::U8(self.take(count)?.to_vec()),
            1 => Array::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => {
                self.room_for(count, 1)?;
                Array::Bool((0..count).map(|_| self.bool()).collect::<Result<_>>()?)
            }
            8 => {
                self.room_for(count, 8)?;
                Array::String((0..count).map(|_| self.string()).collect::<Result<_>>()?)
            }
            9 if depth < MAX_DEPTH => {
                self.room_for(count, 12)?;
                let inner = (0..count).map(|_| self.list(depth + 1));
                Array::Array(inner.collect::<Result<_>>()?)
            }
            9 => return Err(self.corrupt(format!("arrays are nested deeper than {MAX_DEPTH}"))),
            10 => Array::U64(self.numbers(count, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(count, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(count, f64::from_le_bytes)?),
            other => return Err(self.corrupt(format!("an array has elements of type {other}"))),
        })
    }

    fn numbers<const N: usize, T>(&mut self, count: u64, read: fn([u8; N]) -> T) -> Result<Vec<T>> {
        self.room_for(count, N as u64)?;
        let bytes = self.take(count * N as u64)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&b| read(b)).collect())
    }

    /// One entry, and its offset in the data.
    fn tensor(&mut self) -> Result<(Entry, u64)> {
        let name = self.string()?;
        let dims = self.u32()?;
        if dims > MAX_DIMS {
            return Err(self.corrupt(format!("tensor {name} has {dims} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let dim = self.u64()?;
            let dim = usize::try_from(dim)
                .map_err(|_| self.corrupt(format!("tensor {name} has a dimension of {dim}")))?;
            shape.insert(0, dim);
        }
        let kind = GgmlType::from_id(self.u32()?);
        let offset = self.u64()?;
        let values = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let len = match (kind.block(), values) {
            (None, Some(_)) => None,
            (_, None) => return Err(self.corrupt(format!("tensor {name} has shape {shape:?}"))),
            (Some((block, bytes)), Some(values)) => {
                if !shape.last().copied().unwrap_or(1).is_multiple_of(block) {
                    return Err(self.corrupt(format!(
                        "tensor {name} of {kind} has rows of {:?} values, no multiple of {block}",
                        shape.last()
                    )));
                }
                let len = (values / block).checked_mul(bytes);
                let Some(len) = len else {
                    return Err(self.corrupt(format!("tensor {name} has shape {shape:?}")));
                };
                Some(len)
            }
        };
        let entry = Entry {
            name,
            shape,
            kind,
            start: 0,
            len,
        };
        Ok((entry, offset))
    }
}
