//! From a path to a model.

use crate::{
    GgufFile, HubFolder, LoadError, ModelConfig, TensorSource, Transformer, WeightDtype,
    error::Result,
    gguf::Metadata,
    transformer::{Assembled, Assembly},
};
use burn::prelude::*;
use specdec_kernels::Activations;
use std::{
    collections::BTreeMap,
    fmt,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Told after each tensor how many of how many bytes are loaded; `Break` stops loading.
pub type Progress = Arc<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>;

/// How to load a model.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// How the weight matrices are held; as stored by default.
    pub dtype: WeightDtype,
    /// What activations are multiplied as; in f32 by default.
    pub activations: Activations,
    /// Longest content in tokens instead of the one the model was trained for. It may be longer;
    /// only [`crate::RopeScaling::DynamicNtk`] then changes the frequencies.
    pub context: Option<usize>,
    /// Called after each tensor.
    pub progress: Option<Progress>,
}

impl LoadOptions {
    /// The defaults: weights as stored, the model's own context, no progress calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how the weight matrices are held.
    #[must_use]
    pub fn with_dtype(mut self, dtype: WeightDtype) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets what activations are multiplied as. [`Activations::Int8`] changes results by what rounding activations
    /// changes, and makes models in quantised blocks faster on the CPU backend.
    #[must_use]
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.activations = activations;
        self
    }

    /// Sets the longest content in tokens; 0 is refused when loading.
    #[must_use]
    pub fn with_context(mut self, context: usize) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets what is called after each tensor with the bytes loaded and the bytes to load.
    #[must_use]
    pub fn with_progress(
        mut self,
        progress: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    pub(crate) fn report(&self, done: u64, total: u64) -> ControlFlow<()> {
        match &self.progress {
            Some(progress) => progress(done, total),
            None => ControlFlow::Continue(()),
        }
    }
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions")
            .field("dtype", &self.dtype)
            .field("activations", &self.activations)
            .field("context", &self.context)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// Where the tokenizer of a loaded model is described.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TokenizerFiles {
    /// The `tokenizer.` keys of a GGUF file, the chat template among them.
    Gguf(Metadata),
    /// A folder that may hold `tokenizer.json` and `tokenizer_config.json`.
    Folder(PathBuf),
}

/// What a load did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Bytes of tensors read.
    pub bytes: u64,
    /// Bytes the weight matrices occupy on the device.
    pub memory_bytes: usize,
    /// Time taken, opening included.
    pub elapsed: Duration,
    /// Number of tensors in each storage format, by the format's name.
    pub formats: BTreeMap<&'static str, usize>,
    /// Tensors in the file that the model has no use for, by their name there. Something in here
    /// that looks like a weight is worth a question.
    pub unused: Vec<String>,
}

/// A model, and what was found beside it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadedModel {
    /// The model.
    pub model: Transformer,
    /// Its settings.
    pub config: ModelConfig,
    /// What its tokenizer can be made of.
    pub tokenizer: TokenizerFiles,
    /// Tokens that end an output, as far as the model's own files name them; sorted.
    pub end_tokens: Vec<u32>,
    /// What the load did.
    pub report: LoadReport,
}

/// Loads a GGUF file (the first part of a split one).
///
/// # Errors
/// As [`GgufFile::open`], [`ModelConfig::from_gguf`] and [`Transformer::from_tensors_with`].
pub fn load_gguf(
    path: impl AsRef<Path>,
    options: &LoadOptions,
    device: &Device,
) -> Result<LoadedModel> {
    let started = Instant::now();
    let file = GgufFile::open(path)?;
    let config = ModelConfig::from_gguf(&file)?;
    let assembled = assemble(&config, &file, options, device)?;
    Ok(LoadedModel {
        tokenizer: TokenizerFiles::Gguf(file.tokenizer()),
        end_tokens: gguf_end_tokens(file.metadata())?,
        report: report(&assembled, started),
        model: assembled.model,
        config,
    })
}

/// Loads a Hugging Face folder.
///
/// # Errors
/// As [`HubFolder::open`], [`ModelConfig::from_json`] and [`Transformer::from_tensors_with`].
pub fn load_folder(
    path: impl AsRef<Path>,
    options: &LoadOptions,
    device: &Device,
) -> Result<LoadedModel> {
    let started = Instant::now();
    let folder = HubFolder::open(path)?;
    let config = folder.config()?;
    let assembled = assemble(&config, &folder, options, device)?;
    Ok(LoadedModel {
        tokenizer: TokenizerFiles::Folder(folder.path().to_path_buf()),
        end_tokens: folder.end_tokens()?,
        report: report(&assembled, started),
        model: assembled.model,
        config,
    })
}

/// Loads whatever is at `path`: a GGUF file, or a Hugging Face folder.
///
/// # Errors
/// [`LoadError::NotFound`]; [`LoadError::NotAModel`] for a file that is no GGUF file; else as
/// [`load_gguf`] or [`load_folder`].
pub fn open(path: impl AsRef<Path>, options: &LoadOptions, device: &Device) -> Result<LoadedModel> {
    let path = path.as_ref();
    if path.is_dir() {
        return load_folder(path, options, device);
    }
    match load_gguf(path, options, device) {
        Err(LoadError::Corrupt { .. }) if !begins_as_gguf(path) => Err(LoadError::NotAModel {
            path: path.to_path_buf(),
        }),
        other => other,
    }
}

fn begins_as_gguf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

fn assemble(
    config: &ModelConfig,
    source: &dyn TensorSource,
    options: &LoadOptions,
    device: &Device,
) -> Result<Assembled> {
    Assembly::new(config, source, options, device)?.run()
}

fn report(assembled: &Assembled, started: Instant) -> LoadReport {
    LoadReport {
        bytes: assembled.bytes,
        memory_bytes: assembled.model.memory_bytes(),
        elapsed: started.elapsed(),
        formats: assembled.formats.clone(),
        unused: assembled.unused.clone(),
    }
}

/// End of sequence, of turn and of message.
fn gguf_end_tokens(metadata: &Metadata) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for kind in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{kind}_token_id");
        // Some writers put -1 for "none".
        let id = match metadata.get(&key) {
            Some(value) if value.as_u64().is_none() && value.as_f64() == Some(-1.0) => None,
            _ => metadata.u64(&key)?,
        };
        found.extend(id.and_then(|id| u32::try_from(id).ok()));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
