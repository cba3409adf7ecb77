//! Writing a model's folder, and reading it back to see that it computes the same.

use crate::model::{Positions, TinyLm, values};
use crate::vocabulary::Vocabulary;
use anyhow::{Context, Result, ensure};
use burn::prelude::*;
use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use specdec::core::{Block, KvCache, Phase, SeqId, TargetModel};
use specdec::models::LoadOptions;
use specdec::ragged::SlotCache;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// How far a logit of the folder's model may be from that of the model that was trained.
const TOLERANCE: f32 = 1e-2;

/// Writes a model whose weights are already rounded to 16 bits.
pub fn write(model: &TinyLm, vocabulary: &Vocabulary, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = model
        .tensors()?
        .into_iter()
        .map(|(name, shape, values)| {
            let bytes = values
                .iter()
                .flat_map(|&v| f16::from_f32(v).to_le_bytes())
                .collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F16, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>>>()?;
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    fs::write(
        folder.join("model.safetensors"),
        safetensors::serialize(views, Some(format))?,
    )?;
    let (begin, end) = vocabulary.ends()?;
    let config = serde_json::to_string_pretty(&model.sizes().config(begin, end))?;
    fs::write(folder.join("config.json"), config + "\n")?;
    for (name, text) in vocabulary.files()? {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// The largest difference between a logit of the folder's model, with a cache, and one of `model`,
/// without; an error if it is too large.
pub fn compare(model: &TinyLm, folder: &Path, row: &[u32]) -> Result<f32> {
    let device = Device::flex();
    let ids: Vec<i64> = row.iter().map(|&t| i64::from(t)).collect();
    let tokens = Tensor::from_data(TensorData::new(ids, [1, row.len()]), &device);
    let positions = Positions::new(row.len(), model.sizes(), &device);
    let wanted = values(model.forward(tokens, &positions))?;

    let loaded = specdec::models::open(folder, &LoadOptions::new(), &device)?.model;
    let mut cache = SlotCache::new(loaded.spec())?;
    let mut got = Vec::new();
    let (prompt, rest) = row.split_at(row.len() / 2);
    let mut at = 0;
    for part in std::iter::once(prompt).chain(rest.chunks(3)) {
        let block = Block::single(SeqId(0), at, part, &device);
        let mut attend = cache.begin(block.rows(), Phase::Prefill)?;
        let hidden = loaded.forward(&block, &mut *attend, &[])?.hidden;
        drop(attend);
        cache.commit(&[part.len()])?;
        got.extend(values(loaded.logits(hidden))?);
        at += part.len();
    }
    ensure!(
        got.len() == wanted.len(),
        "{} logits instead of {}",
        got.len(),
        wanted.len()
    );
    let difference = got
        .iter()
        .zip(&wanted)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    // Not the other way round: NaN is too far as well.
    ensure!(
        difference <= TOLERANCE,
        "{}: a logit differs by {difference} from the trained model's",
        folder.display()
    );
    Ok(difference)
}

/// Puts a finished folder in the place of an earlier pair.
pub fn replace(finished: &Path, out: &Path) -> Result<()> {
    let old = out.with_extension("old");
    if out.exists() {
        fs::rename(out, &old).with_context(|| format!("cannot move {} away", out.display()))?;
    }
    fs::rename(finished, out).with_context(|| format!("cannot write {}", out.display()))?;
    if old.exists() {
        fs::remove_dir_all(&old)?;
    }
    Ok(())
}
