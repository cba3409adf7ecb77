//! Cost tables in files, with what they were measured on.

use super::table::CostTable;
use crate::error::{RakvError, Result};
use crate::store::atomic::write_whole;
use serde::{Deserialize, Serialize};
use specdec_core::ModelSpec;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const FORMAT: u32 = 1;

/// What costs depend on: a table measured on something else is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    format: u32,
    machine: String,
    threads: usize,
    backend: String,
    target: String,
    drafters: Vec<String>,
    note: String,
}

impl Conditions {
    /// This machine, this target and these drafters (by a name that tells them apart).
    pub fn here(target: &ModelSpec, drafters: &[&str]) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            format: FORMAT,
            machine: machine(),
            threads,
            backend: format!("{:?}, burn 0.22", target.device),
            target: format!(
                "{:016x}, {} layers of {}",
                target.fingerprint, target.layers, target.hidden
            ),
            drafters: drafters.iter().map(|d| (*d).to_owned()).collect(),
            note: String::new(),
        }
    }

    /// Says what else costs depend on: a cache, a build, a number of threads.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn refuse(&self, path: &Path, other: &Self) -> Result<()> {
        let drafters = |c: &Self| format!("{:?}", c.drafters);
        let pairs = [
            ("format", other.format.to_string(), self.format.to_string()),
            ("machine", other.machine.clone(), self.machine.clone()),
            (
                "number of threads",
                other.threads.to_string(),
                self.threads.to_string(),
            ),
            ("backend", other.backend.clone(), self.backend.clone()),
            ("target", other.target.clone(), self.target.clone()),
            ("drafters", drafters(other), drafters(self)),
            ("note", other.note.clone(), self.note.clone()),
        ];
        match pairs.into_iter().find(|(_, a, b)| a != b) {
            None => Ok(()),
            Some((what, found, wanted)) => Err(RakvError::Mismatch {
                path: path.to_path_buf(),
                what,
                found,
                wanted,
            }),
        }
    }
}

/// The processor's name where the system tells it, else its kind.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{model}, {}", std::env::consts::OS)
}

/// The numbers are kept as text, so that their digest is that of what was written.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    conditions: Conditions,
    measurements: String,
    checksum: String,
}

impl Saved {
    fn sum(&self) -> Result<String, serde_json::Error> {
        let body = serde_json::to_vec(&(&self.conditions, &self.measurements))?;
        Ok(format!("{:016x}", xxh3_64(&body)))
    }
}

impl CostTable {
    /// Writes it to a file, whole or not at all.
    ///
    /// # Errors
    /// [`RakvError::Io`] when the file cannot be written.
    pub fn save(&self, path: &Path, conditions: &Conditions) -> Result<()> {
        let broken = |e: serde_json::Error| RakvError::damaged(path, e.to_string());
        let mut saved = Saved {
            conditions: conditions.clone(),
            measurements: serde_json::to_string(self.measurements()).map_err(broken)?,
            checksum: String::new(),
        };
        saved.checksum = saved.sum().map_err(broken)?;
        write_whole(path, &serde_json::to_vec_pretty(&saved).map_err(broken)?)
    }

    /// Reads one that was measured under these conditions.
    ///
    /// # Errors
    /// [`RakvError::Io`] when there is no such file; [`RakvError::Damaged`] when it is torn or was
    /// changed; [`RakvError::Mismatch`] when it was measured on something else;
    /// [`RakvError::Table`] when its numbers make no sense.
    pub fn load(path: &Path, conditions: &Conditions) -> Result<Self> {
        let text = std::fs::read(path).map_err(|e| RakvError::io(path, e))?;
        let broken = |e: serde_json::Error| RakvError::damaged(path, e.to_string());
        let saved: Saved = serde_json::from_slice(&text).map_err(broken)?;
        if saved.sum().map_err(broken)? != saved.checksum {
            return Err(RakvError::damaged(
                path,
                "its checksum does not fit its contents",
            ));
        }
        conditions.refuse(path, &saved.conditions)?;
        let measurements = serde_json::from_str(&saved.measurements).map_err(broken)?;
        Self::new(measurements)
    }
}
