//! Texts of the target with its hidden states, one file each.

use crate::checkpoint::{Stored, floats, replace, write_tensors};
use crate::error::DraftModelError;
use crate::train::error::{Result, TrainError};
use half::f16;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde_json::{Value, json};
use specdec_core::{ModelSpec, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A text and what the target computed at each of its T positions.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredText {
    /// Prompt and answer, `[T]`.
    pub tokens: Vec<Token>,
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// The taps, one after the other in each row, `[T * taps * D]`.
    pub taps: Vec<f32>,
    /// Final hidden states, `[T * D]`.
    pub hidden: Vec<f32>,
}

/// The tokens that answers are made of.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FrequentTokens {
    /// Ascending.
    pub tokens: Vec<Token>,
    /// The share of all tokens of the answers that they are, in 0..=1.
    pub coverage: f64,
}

/// Length of a text and of its prompt, without its states.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextLength {
    pub(super) tokens: usize,
    pub(super) prompt: usize,
}

/// A folder of texts. States are stored as 16-bit floats.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureStore {
    folder: PathBuf,
    taps: Vec<usize>,
    hidden: usize,
    len: usize,
}

impl FeatureStore {
    /// Opens a folder for the states of this target at these taps, or makes it.
    ///
    /// # Errors
    /// [`TrainError::Mismatch`] when it holds those of another target or of other layers;
    /// [`DraftModelError::Io`] and [`DraftModelError::Corrupt`].
    pub fn open(folder: impl AsRef<Path>, target: &ModelSpec, taps: &[usize]) -> Result<Self> {
        let folder = folder.as_ref().to_path_buf();
        let manifest = json!({
            "format": 1,
            "taps": taps,
            "hidden": target.hidden,
            "vocab": target.vocab,
            "layers": target.layers,
            "fingerprint": format!("{:016x}", target.fingerprint),
        });
        let path = folder.join("manifest.json");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let stored: Value =
                    serde_json::from_str(&text).map_err(|e| DraftModelError::corrupt(&path, e))?;
                if stored != manifest {
                    return Err(TrainError::Mismatch {
                        what: "the feature store's manifest",
                        stored: stored.to_string(),
                        wanted: manifest.to_string(),
                    });
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                fs::create_dir_all(&folder).map_err(|e| DraftModelError::io(&folder, e))?;
                replace(&path, manifest.to_string().as_bytes())?;
            }
            Err(error) => return Err(DraftModelError::io(&path, error).into()),
        }
        let mut store = Self {
            folder,
            taps: taps.to_vec(),
            hidden: target.hidden,
            len: 0,
        };
        while store.path(store.len).is_file() {
            store.len += 1;
        }
        Ok(store)
    }

    /// Texts in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tapped layers.
    pub fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index:08}.safetensors"))
    }

    /// Adds a text, in one move.
    ///
    /// # Errors
    /// [`DraftModelError::Io`]; [`DraftModelError::Corrupt`] when its lengths do not fit.
    pub fn push(&mut self, text: &StoredText) -> Result<()> {
        let path = self.path(self.len);
        let (t, d) = (text.tokens.len(), self.hidden);
        let halves = |values: &[f32]| -> Vec<u8> {
            let most = f16::MAX.to_f32();
            let halves = values.iter().map(|&v| f16::from_f32(v.clamp(-most, most)));
            halves.flat_map(f16::to_le_bytes).collect()
        };
        let tokens = text.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let taps = vec![t, self.taps.len() * d];
        let stored: [Stored; 3] = [
            ("tokens".into(), Dtype::U32, vec![t], tokens),
            ("taps".into(), Dtype::F16, taps, halves(&text.taps)),
            (
                "hidden".into(),
                Dtype::F16,
                vec![t, d],
                halves(&text.hidden),
            ),
        ];
        let prompt = text.prompt_len.to_string();
        write_tensors(&path, &stored, &[("prompt_len", &prompt)])?;
        self.len += 1;
        Ok(())
    }

    /// Reads a text.
    ///
    /// # Errors
    /// [`DraftModelError::Io`] and [`DraftModelError::Corrupt`].
    pub fn read(&self, index: usize) -> Result<StoredText> {
        let path = self.path(index);
        let corrupt = |what: String| TrainError::from(DraftModelError::corrupt(&path, what));
        let bytes = fs::read(&path).map_err(|e| DraftModelError::io(&path, e))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| corrupt(e.to_string()))?;
        let view = |name: &str| file.tensor(name).map_err(|e| corrupt(e.to_string()));
        let tokens: Vec<Token> = view("tokens")?
            .data()
            .chunks_exact(4)
            .map(|b| Token::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let text = StoredText {
            prompt_len: self.length(index)?.prompt,
            taps: floats("taps", &view("taps")?)?,
            hidden: floats("hidden", &view("hidden")?)?,
            tokens,
        };
        let (t, d) = (text.tokens.len(), self.hidden);
        if text.taps.len() != t * d * self.taps.len() || text.hidden.len() != t * d {
            return Err(corrupt(format!("its states are not those of {t} tokens")));
        }
        Ok(text)
    }

    /// The `count` most frequent tokens of the answers, `always` among them: a draft vocabulary
    /// ([`crate::DraftConfig::draft_vocab`]). Of equally frequent ones the lower comes first. There are
    /// fewer when the answers are made of fewer.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn frequent_tokens(
        &self,
        count: usize,
        always: impl IntoIterator<Item = Token>,
    ) -> Result<FrequentTokens> {
        let mut seen: BTreeMap<Token, u64> = BTreeMap::new();
        for index in 0..self.len {
            let text = self.read(index)?;
            for &token in &text.tokens[text.prompt_len..] {
                *seen.entry(token).or_default() += 1;
            }
        }
        let mut kept: BTreeSet<Token> = always.into_iter().take(count).collect();
        let mut order: Vec<(Token, u64)> = seen.iter().map(|(&token, &n)| (token, n)).collect();
        order.sort_by_key(|&(token, n)| (std::cmp::Reverse(n), token));
        for (token, _) in order {
            if kept.len() >= count {
                break;
            }
            kept.insert(token);
        }
        let all: u64 = seen.values().sum();
        let covered: u64 = kept.iter().filter_map(|token| seen.get(token)).sum();
        Ok(FrequentTokens {
            tokens: kept.into_iter().collect(),
            coverage: covered as f64 / all.max(1) as f64,
        })
    }

    /// The lengths of a text, from the head of its file.
    pub(super) fn length(&self, index: usize) -> Result<TextLength> {
        let path = self.path(index);
        let io = |e| DraftModelError::io(&path, e);
        let mut file = fs::File::open(&path).map_err(io)?;
        let mut head = vec![0u8; 8];
        file.read_exact(&mut head).map_err(io)?;
        let size = u64::from_le_bytes(head[..8].try_into().unwrap_or_default());
        (&mut file)
            .take(size.min(1 << 20))
            .read_to_end(&mut head)
            .map_err(io)?;
        let metadata: Metadata =
            serde_json::from_slice(&head[8..]).map_err(|e| DraftModelError::corrupt(&path, e))?;
        let notes = metadata.metadata().as_ref();
        let prompt = notes.and_then(|n| n.get("prompt_len")?.parse().ok());
        let tokens = metadata
            .info("tokens")
            .and_then(|info| info.shape.first().copied());
        match (tokens, prompt) {
            (Some(tokens), Some(prompt)) if (1..=tokens).contains(&prompt) => {
                Ok(TextLength { tokens, prompt })
            }
            _ => Err(DraftModelError::corrupt(&path, "it does not tell its lengths").into()),
        }
    }
}
