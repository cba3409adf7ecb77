//! The whole state of a training run in one file.

use crate::checkpoint::{Stored, floats, replace, write_tensors};
use crate::error::DraftModelError;
use crate::train::adamw::AdamW;
use crate::train::error::{Result, TrainError};
use safetensors::tensor::{Dtype, SafeTensors};
use std::fs;
use std::path::{Path, PathBuf};

const PARTS: [&str; 3] = ["value", "first", "second"];

/// Where a run keeps its state.
#[derive(Debug, Clone)]
pub(super) struct StateFile {
    folder: PathBuf,
    /// Everything that decides what a step does, as text.
    settings: String,
}

impl StateFile {
    pub(super) fn new(folder: &Path, settings: String) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| DraftModelError::io(folder, e))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            settings,
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.join("state.safetensors")
    }

    /// Writes the state after `step` steps, in one move.
    pub(super) fn save(&self, adamw: &AdamW, step: usize) -> Result<()> {
        let settings = self.folder.join("settings.txt");
        replace(&settings, self.settings.as_bytes())?;
        let mut stored: Vec<Stored> = Vec::new();
        for p in &adamw.0 {
            for (part, values) in PARTS.iter().zip([&p.value, &p.first, &p.second]) {
                let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                stored.push((
                    format!("{part}.{}", p.name),
                    Dtype::F32,
                    p.shape.clone(),
                    bytes,
                ));
            }
        }
        write_tensors(&self.path(), &stored, &[("step", &step.to_string())])?;
        Ok(())
    }

    /// Reads the state back into `adamw`; the steps it has taken, `None` when there is no state.
    pub(super) fn load(&self, adamw: &mut AdamW) -> Result<Option<usize>> {
        let path = self.path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DraftModelError::io(&path, error).into()),
        };
        let settings = self.folder.join("settings.txt");
        let stored =
            fs::read_to_string(&settings).map_err(|e| DraftModelError::io(&settings, e))?;
        if stored != self.settings {
            return Err(TrainError::Mismatch {
                what: "the setting of a saved run",
                stored,
                wanted: self.settings.clone(),
            });
        }
        let corrupt = |what: String| TrainError::from(DraftModelError::corrupt(&path, what));
        let file = SafeTensors::deserialize(&bytes).map_err(|e| corrupt(e.to_string()))?;
        let (_, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|e| corrupt(e.to_string()))?;
        let step = metadata
            .metadata()
            .as_ref()
            .and_then(|n| n.get("step")?.parse().ok());
        let step = step.ok_or_else(|| corrupt("it does not tell its step".into()))?;
        for p in &mut adamw.0 {
            let parts = [&mut p.value, &mut p.first, &mut p.second];
            for (part, values) in PARTS.iter().zip(parts) {
                let name = format!("{part}.{}", p.name);
                let view = file.tensor(&name).map_err(|e| corrupt(e.to_string()))?;
                let read = floats(&name, &view)?;
                if read.len() != values.len() {
                    return Err(corrupt(format!("{name} has {} numbers", read.len())));
                }
                *values = read;
            }
        }
        Ok(Some(step))
    }
}
