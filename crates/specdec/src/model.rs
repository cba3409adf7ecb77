use crate::{ChosenDevice, DeviceChoice, Prompt, Result};
use burn::prelude::Device;
use specdec_core::{TargetModel, Token};
use specdec_kernels::Activations;
use specdec_models::gguf::Metadata;
use specdec_models::{
    LoadOptions, LoadReport, ModelConfig, TokenizerFiles, Transformer, WeightDtype,
};
use specdec_rakv::CostTable;
use specdec_text::{ChatTemplate, GgufVocabulary, Tokenizer};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How far two logits of one token may lie apart on a GPU backend because of the shape it was
/// computed in; closer best logits are counted as ties.
const GPU_TIE_MARGIN: f32 = 1e-2;

/// A language model with its tokenizer: weights, vocabulary, chat template, end tokens. Clones
/// share everything, also between threads.
#[derive(Debug, Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    target: Arc<dyn TargetModel>,
    tokenizer: Tokenizer,
    end_tokens: BTreeSet<Token>,
    config: ModelConfig,
    report: LoadReport,
    notice: Option<String>,
    tie_margin: Option<f32>,
    costs: Mutex<HashMap<String, CostTable>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Opens a model with other than the default options.
#[derive(Debug)]
pub struct ModelBuilder {
    path: PathBuf,
    device: DeviceChoice,
    options: LoadOptions,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face folder with the defaults: the best device, weights as
    /// stored.
    ///
    /// # Errors
    /// As [`ModelBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Starts opening a GGUF file or a Hugging Face folder.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder {
            path: path.as_ref().to_owned(),
            device: DeviceChoice::default(),
            options: LoadOptions::new(),
        }
    }

    /// The model as a target of speculation.
    pub fn target(&self) -> &Arc<dyn TargetModel> {
        &self.inner.target
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// Tokens that end an output, from all the places a model can name them in.
    pub fn end_tokens(&self) -> &BTreeSet<Token> {
        &self.inner.end_tokens
    }

    /// The model's settings.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// What loading did: bytes, memory, time, formats.
    pub fn report(&self) -> &LoadReport {
        &self.inner.report
    }

    /// Where it computes.
    pub fn device(&self) -> &Device {
        &self.inner.target.spec().device
    }

    /// What there is to say about the choice of device; see [`ChosenDevice::notice`].
    pub fn notice(&self) -> Option<&str> {
        self.inner.notice.as_deref()
    }

    /// On GPU backends, the margin below which two best logits count as a tie.
    pub(crate) fn tie_margin(&self) -> Option<f32> {
        self.inner.tie_margin
    }

    /// The costs that were measured for a combination of parts, or those that `measure` finds: the second
    /// generator of a kind need not measure again. `measure` says too whether they may be remembered.
    pub(crate) fn costs_or_measure(
        &self,
        parts: Option<String>,
        measure: impl FnOnce() -> Result<(CostTable, bool)>,
    ) -> Result<CostTable> {
        let known = || {
            self.inner
                .costs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let Some(parts) = parts else {
            return Ok(measure()?.0);
        };
        let found = known().get(&parts).cloned();
        if let Some(found) = found {
            return Ok(found);
        }
        let (table, lasting) = measure()?;
        if lasting {
            known().insert(parts, table.clone());
        }
        Ok(table)
    }

    /// The token ids of a prompt.
    ///
    /// # Errors
    /// [`crate::Error::Text`]: no chat template, a template that fails, text that cannot be encoded.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<Token>> {
        let tokenizer = self.tokenizer();
        Ok(match prompt {
            Prompt::Text(text) => tokenizer.encode_prompt(text)?,
            Prompt::Chat(messages, options) => {
                ChatTemplate::of(tokenizer, options)?.encode(tokenizer, messages, options)?
            }
            Prompt::Tokens(ids) => ids.clone(),
        })
    }
}

impl ModelBuilder {
    /// Where to compute.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// How to hold the weights.
    pub fn dtype(mut self, dtype: WeightDtype) -> Self {
        self.options = self.options.with_dtype(dtype);
        self
    }

    /// What activations are multiplied as. The default is exact; [`Activations::Int8`] trades a rounding
    /// error for speed with quantised weights on the CPU (and, like the default, gives a token the same
    /// bits whatever is computed beside it).
    pub fn activations(mut self, activations: Activations) -> Self {
        self.options = self.options.with_activations(activations);
        self
    }

    /// Longest content in tokens, instead of the model's own.
    pub fn context(mut self, tokens: usize) -> Self {
        self.options = self.options.with_context(tokens);
        self
    }

    /// Is told the bytes loaded and the bytes to load; `Break` stops loading with an error.
    pub fn progress(
        mut self,
        progress: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.options = self.options.with_progress(progress);
        self
    }

    /// Opens the model.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Load`] or [`crate::Error::Text`], naming what was
    /// wrong.
    pub fn open(self) -> Result<Model> {
        let ChosenDevice {
            device,
            backend,
            notice,
        } = self.device.find()?;
        let loaded = specdec_models::open(&self.path, &self.options, &device)?;
        let tokenizer = match &loaded.tokenizer {
            TokenizerFiles::Gguf(metadata) => Tokenizer::from_gguf(&vocabulary(metadata)?)?,
            TokenizerFiles::Folder(path) => Tokenizer::from_folder(path)?,
            other => {
                let what = format!("a tokenizer in {other:?}");
                return Err(specdec_core::Error::Contract {
                    part: "model loader",
                    what,
                }
                .into());
            }
        };
        let model: Transformer = loaded.model.with_vocab(tokenizer.vocab_size());
        let vocab = model.spec().vocab;
        let mut end_tokens = tokenizer.eos_ids().clone();
        end_tokens.extend(&loaded.end_tokens);
        end_tokens.retain(|&id| (id as usize) < vocab);
        let inner = Inner {
            target: Arc::new(model),
            tokenizer,
            end_tokens,
            config: loaded.config,
            report: loaded.report,
            notice,
            tie_margin: (backend != crate::Backend::Flex).then_some(GPU_TIE_MARGIN),
            costs: Mutex::default(),
        };
        Ok(Model {
            inner: Arc::new(inner),
        })
    }
}

/// The tokenizer's keys of a GGUF file.
fn vocabulary(metadata: &Metadata) -> Result<GgufVocabulary> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let string = |name: &str| metadata.string(name).map(|s| s.map(str::to_owned));
    let id = |name: &str| {
        // Some writers put -1, or the largest number, for "none".
        metadata
            .get(&key(name))
            .and_then(|v| v.as_u64())
            .and_then(|id| u32::try_from(id).ok())
    };
    let tokens = metadata
        .strings(&key("tokens"))?
        .unwrap_or_default()
        .to_vec();
    let types = metadata.integers(&key("token_type"))?;
    Ok(GgufVocabulary {
        model: string(&key("model"))?.unwrap_or_default(),
        pre: string(&key("pre"))?,
        tokens,
        token_types: types.map(|all| all.into_iter().map(|t| t as i32).collect()),
        scores: metadata.floats(&key("scores"))?.map(<[f32]>::to_vec),
        merges: metadata.strings(&key("merges"))?.map(<[String]>::to_vec),
        bos_id: id("bos_token_id"),
        eos_id: id("eos_token_id"),
        eot_id: id("eot_token_id"),
        eom_id: id("eom_token_id"),
        unk_id: id("unknown_token_id"),
        pad_id: id("padding_token_id"),
        add_bos: metadata.bool(&key("add_bos_token"))?,
        add_eos: metadata.bool(&key("add_eos_token"))?,
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
        chat_template: string("tokenizer.chat_template")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DraftLength, Generator};

    #[test]
    fn costs_are_measured_once_unless_they_may_not_be_remembered() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-pair/target");
        let model = Model::open(folder).expect("it is in the repository");
        let generator = Generator::builder(&model)
            .draft_length(DraftLength::adaptive())
            .build()
            .expect("it fits");
        let table = generator.adaptive().expect("it is adaptive").costs();
        let mut measured = 0;
        let mut ask = |parts: Option<&str>, lasting| {
            let found = model.costs_or_measure(parts.map(str::to_owned), || {
                measured += 1;
                Ok((table.clone(), lasting))
            });
            assert_eq!(found.expect("a table"), table);
            measured
        };
        assert_eq!([ask(Some("a"), true), ask(Some("a"), true)], [1, 1]);
        assert_eq!([ask(Some("b"), false), ask(Some("b"), true)], [2, 3]);
        assert_eq!([ask(Some("b"), true), ask(Some("a"), true)], [3, 3]);
        assert_eq!([ask(None, true), ask(None, true)], [4, 5]);
    }
}
