//! Reading and writing a drafter's folder: `config.json` and `model.safetensors`.

use crate::config::DraftConfig;
use crate::draft_model::DraftModel;
use crate::error::{DraftModelError, Result};
use crate::named;
use burn::prelude::*;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use specdec_core::Token;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

const WEIGHTS: &str = "model.safetensors";
/// Offsets from draft to target ids: the target's id of draft token i is `i + d2t[i]`.
const OFFSETS: &str = "d2t";
/// Which of the target's tokens are drafted.
const KEPT: &str = "t2d";

/// Tensors by name, with their shapes; values are row-major.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weights(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Weights {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a tensor.
    pub fn insert(&mut self, name: impl Into<String>, shape: Vec<usize>, values: Vec<f32>) {
        self.0.insert(name.into(), (shape, values));
    }

    /// Takes a tensor out; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// A tensor's shape and values.
    pub fn get(&self, name: &str) -> Option<(&[usize], &[f32])> {
        self.0
            .get(name)
            .map(|(shape, values)| (&shape[..], &values[..]))
    }
}

impl DraftModel {
    /// A network of these tensors: all that the configuration asks for and no other.
    ///
    /// # Errors
    /// [`DraftModelError::MissingTensors`], [`DraftModelError::UnknownTensors`],
    /// [`DraftModelError::Shape`], [`DraftModelError::TooFew`]; as [`DraftConfig::check`].
    pub fn from_weights(
        config: &DraftConfig,
        mut weights: Weights,
        device: &Device,
    ) -> Result<Self> {
        config.check()?;
        // Before anything of the configuration's sizes is made.
        let got = weights.0.values().map(|(_, v)| v.len() as u128).sum();
        let needed = config.least_parameters();
        if got < needed {
            return Err(DraftModelError::TooFew { needed, got });
        }
        let empty = Self::empty(config, device)?;
        let (mut missing, mut wrong) = (Vec::new(), None);
        let model = named::filled(empty, &mut |name, expected| {
            let Some((shape, values)) = weights.0.remove(name) else {
                missing.push(name.to_owned());
                return None;
            };
            if shape != expected || values.len() != shape.iter().product::<usize>() {
                wrong.get_or_insert(DraftModelError::Shape {
                    tensor: name.to_owned(),
                    expected: expected.to_vec(),
                    got: shape,
                });
                return None;
            }
            Some(values)
        });
        if !missing.is_empty() {
            return Err(DraftModelError::MissingTensors { names: missing });
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let names: Vec<String> = weights.0.into_keys().collect();
        if !names.is_empty() {
            return Err(DraftModelError::UnknownTensors { names });
        }
        Ok(model)
    }

    /// All tensors by name.
    ///
    /// # Errors
    /// [`DraftModelError::Unreadable`].
    pub fn weights(&self) -> Result<Weights> {
        let mut weights = Weights::new();
        for ((name, shape), data) in named::names(self).into_iter().zip(named::values(self)) {
            let values = data
                .try_into_vec_as::<f32>()
                .map_err(|e| DraftModelError::Unreadable(format!("{name}: {e:?}")))?;
            weights.insert(name, shape, values);
        }
        Ok(weights)
    }

    /// Reads a folder as [`save`](Self::save) and public DFlash and LiLiCorr checkpoints have it:
    /// tensors in F32, F16 or BF16, computed in F32.
    ///
    /// # Errors
    /// [`DraftModelError::Io`] and [`DraftModelError::Corrupt`] for a file; as
    /// [`DraftConfig::from_json`] and [`from_weights`](Self::from_weights);
    /// [`DraftModelError::TensorType`]; [`DraftModelError::DraftVocabulary`].
    pub fn load(folder: impl AsRef<Path>, device: &Device) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join("config.json");
        let text =
            String::from_utf8(read_file(&path)?).map_err(|e| DraftModelError::corrupt(&path, e))?;
        let mut config = DraftConfig::from_json(&text)?;
        let path = folder.join(WEIGHTS);
        let bytes = read_file(&path)?;
        let file =
            SafeTensors::deserialize(&bytes).map_err(|e| DraftModelError::corrupt(&path, e))?;
        let mut weights = Weights::new();
        for (name, view) in file.tensors() {
            if name != OFFSETS && name != KEPT {
                let values = floats(&name, &view)?;
                weights.insert(name, view.shape().to_vec(), values);
            }
        }
        config.draft_vocab = kept_tokens(&file, &text, config.vocab)?;
        Self::from_weights(&config, weights, device)
    }

    /// Writes `config.json` and `model.safetensors` (F32) into a folder, which is made if need be.
    /// Files of those names are replaced, the tensors first, each in one move.
    ///
    /// # Errors
    /// [`DraftModelError::Io`], [`DraftModelError::Unreadable`].
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.write(folder.as_ref(), Dtype::F32, |value, bytes| {
            bytes.extend(value.to_le_bytes());
            true
        })
    }

    /// The same with weights rounded to F16: half of the size, on disk and where it decodes.
    ///
    /// # Errors
    /// As [`save`](Self::save); [`DraftModelError::Unreadable`] also for a weight beyond F16's range.
    pub fn save_f16(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.write(folder.as_ref(), Dtype::F16, |value, bytes| {
            let half = f16::from_f32(value);
            bytes.extend(half.to_le_bytes());
            half.is_finite()
        })
    }

    /// `put` appends a number's bytes, and says whether the type can hold it.
    fn write(
        &self,
        folder: &Path,
        dtype: Dtype,
        put: impl Fn(f32, &mut Vec<u8>) -> bool,
    ) -> Result<()> {
        fs::create_dir_all(folder).map_err(|e| DraftModelError::io(folder, e))?;
        let config = self.config();
        let mut stored: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, (shape, values)) in self.weights()?.0 {
            let mut bytes = Vec::with_capacity(4 * values.len());
            for value in values {
                if !put(value, &mut bytes) {
                    let what = format!("{name} holds {value}, beyond {dtype:?}");
                    return Err(DraftModelError::Unreadable(what));
                }
            }
            stored.push((name, dtype, shape, bytes));
        }
        if let Some(kept) = &config.draft_vocab {
            let offsets = kept.iter().enumerate();
            let bytes = offsets.flat_map(|(i, &t)| (i64::from(t) - i as i64).to_le_bytes());
            stored.push((
                OFFSETS.into(),
                Dtype::I64,
                vec![kept.len()],
                bytes.collect(),
            ));
            let mut table = vec![0u8; config.vocab];
            kept.iter().for_each(|&t| table[t as usize] = 1);
            stored.push((KEPT.into(), Dtype::BOOL, vec![config.vocab], table));
        }
        let path = folder.join(WEIGHTS);
        write_tensors(&path, &stored, &[("format", "pt")])?;
        replace(&folder.join("config.json"), config.to_json().as_bytes())
    }
}

/// Reads a file. Devices and pipes, which may never end, are refused.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let about = fs::metadata(path).map_err(|e| DraftModelError::io(path, e))?;
    if !about.is_file() {
        return Err(DraftModelError::corrupt(path, "it is no regular file"));
    }
    fs::read(path).map_err(|e| DraftModelError::io(path, e))
}

/// Name, type, shape and bytes of a tensor.
pub(crate) type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// Writes a safetensors file in one move.
pub(crate) fn write_tensors(path: &Path, stored: &[Stored], notes: &[(&str, &str)]) -> Result<()> {
    let views: std::result::Result<Vec<_>, _> = stored
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name, view))
        })
        .collect();
    let views = views.map_err(|e| DraftModelError::corrupt(path, e))?;
    let notes: HashMap<String, String> = notes
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let bytes = safetensors::serialize(views, Some(notes))
        .map_err(|e| DraftModelError::corrupt(path, e))?;
    replace(path, &bytes)
}

/// Writes a file beside its place and moves it there, so that it is never seen half written.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    written.map_err(|e| DraftModelError::io(path, e))
}

/// The values of a stored tensor.
pub(crate) fn floats(name: &str, view: &TensorView<'_>) -> Result<Vec<f32>> {
    let halves = || view.data().chunks_exact(2).map(|b| [b[0], b[1]]);
    match view.dtype() {
        Dtype::F32 => {
            let words = view.data().chunks_exact(4);
            Ok(words
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect())
        }
        Dtype::F16 => Ok(halves().map(|b| f16::from_le_bytes(b).to_f32()).collect()),
        Dtype::BF16 => Ok(halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect()),
        other => Err(DraftModelError::TensorType {
            tensor: name.to_owned(),
            type_name: format!("{other:?}"),
        }),
    }
}

/// The target's ids of the draft tokens, from their offsets.
fn kept_tokens(file: &SafeTensors<'_>, config: &str, vocab: usize) -> Result<Option<Vec<Token>>> {
    let wrong = |what: String| Err(DraftModelError::DraftVocabulary(what));
    let announced = serde_json::from_str::<serde_json::Value>(config).ok();
    let announced = announced.and_then(|c| c.get("draft_vocab_size")?.as_u64());
    let Ok(view) = file.tensor(OFFSETS) else {
        return match announced {
            Some(n) if n != vocab as u64 => wrong(format!("{n} tokens, but no tensor {OFFSETS}")),
            _ => Ok(None),
        };
    };
    if view.dtype() != Dtype::I64 {
        return Err(DraftModelError::TensorType {
            tensor: OFFSETS.to_owned(),
            type_name: format!("{:?}", view.dtype()),
        });
    }
    let offsets = view.data().chunks_exact(8).map(|b| {
        let bytes: [u8; 8] = b.try_into().unwrap_or_default();
        i64::from_le_bytes(bytes)
    });
    let mut kept = Vec::new();
    for (i, offset) in offsets.enumerate() {
        let id = offset
            .checked_add(i as i64)
            .and_then(|id| Token::try_from(id).ok());
        let before = kept.last().copied();
        match id.filter(|&id| (id as usize) < vocab && before.is_none_or(|b| b < id)) {
            Some(id) => kept.push(id),
            None => {
                return wrong(format!(
                    "entry {i} of {OFFSETS} is {offset}, no ascending offset"
                ));
            }
        }
    }
    if announced.is_some_and(|n| n != kept.len() as u64) {
        return wrong(format!("{} offsets for {announced:?} tokens", kept.len()));
    }
    if let Ok(table) = file.tensor(KEPT) {
        let marked = table.data().iter().enumerate().filter(|(_, b)| **b != 0);
        let marked: Vec<Token> = marked.map(|(t, _)| t as Token).collect();
        if marked != kept {
            return wrong(format!("{KEPT} and {OFFSETS} name different tokens"));
        }
    }
    Ok(Some(kept))
}
