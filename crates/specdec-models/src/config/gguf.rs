//! The settings in the metadata of a GGUF file.

use super::{Architecture, ModelConfig, RopeScaling};
use crate::{
    LoadError,
    error::Result,
    gguf::{Array, GgufFile, Metadata, Value},
};
use specdec_kernels::dequantize;

/// Look-ups of `ARCH.key`.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A size; an array of equal sizes, one for each layer, counts as one.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        let name = self.name(key);
        let wanted = "a non-negative integer is needed";
        let number = match self.metadata.get(&name) {
            None => return Ok(None),
            Some(Value::Array(array)) => {
                let all = array.integers().unwrap_or_default();
                match all.split_first() {
                    Some((first, rest)) if rest.iter().all(|x| x == first) => {
                        u64::try_from(*first).ok()
                    }
                    _ => {
                        return Err(LoadError::unsupported(
                            name,
                            "different for each layer",
                            "one size for all layers",
                        ));
                    }
                }
            }
            Some(value) => value.as_u64(),
        };
        match number.and_then(|n| usize::try_from(n).ok()) {
            Some(size) => Ok(Some(size)),
            None => {
                let value = self.metadata.get(&name).map(Value::brief);
                Err(LoadError::invalid(name, value.unwrap_or_default(), wanted))
            }
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.f64(&self.name(key))
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| LoadError::MissingKey {
            key: self.name(key),
        })
    }
}

impl ModelConfig {
    /// Reads the metadata of a GGUF file (and its `rope_freqs.weight`, if it has one).
    ///
    /// | key (`ARCH.` is the value of `general.architecture`) | when absent |
    /// |---|---|
    /// | `general.architecture` | an error |
    /// | `ARCH.block_count`, `.embedding_length`, `.feed_forward_length`, `.context_length`, `.attention.head_count`, `.attention.layer_norm_rms_epsilon` | an error |
    /// | `ARCH.attention.head_count_kv` | the number of heads |
    /// | `ARCH.attention.key_length`, `.value_length` | `embedding_length / head_count` |
    /// | `ARCH.rope.dimension_count` | the head dimension |
    /// | `ARCH.rope.freq_base` | 10000 |
    /// | `ARCH.rope.scaling.type` | linear where a factor is given, else none |
    /// | `ARCH.rope.scaling.factor` (or the older `ARCH.rope.scale_linear`) | no scaling |
    /// | `ARCH.rope.scaling.original_context_length` | the context length |
    /// | `ARCH.rope.scaling.attn_factor`, `.yarn_beta_fast`, `.yarn_beta_slow` | 1, 32, 1 |
    /// | `ARCH.attention.sliding_window` | none (0 too) |
    /// | `ARCH.vocab_size` | the number of `tokenizer.ggml.tokens`; else the rows of the embedding table |
    ///
    /// `vocab` leaves out the padding at the end of a vocabulary (`tokenizer.ggml.token_type` 5,
    /// unused). The output map is tied when the file has no `output.weight`; biases are used where
    /// the file has them (Qwen2 always needs those of queries, keys and values).
    ///
    /// # Errors
    /// [`LoadError::UnsupportedArchitecture`] first of all; [`LoadError::MissingKey`],
    /// [`LoadError::InvalidKey`], [`LoadError::UnsupportedValue`],
    /// [`LoadError::UnknownRopeScaling`], [`LoadError::TensorMissing`] for an absent embedding.
    pub fn from_gguf(file: &GgufFile) -> Result<Self> {
        let metadata = file.metadata();
        let arch = metadata.string("general.architecture")?;
        let arch = arch.ok_or_else(|| LoadError::MissingKey {
            key: "general.architecture".to_owned(),
        })?;
        let architecture = match arch {
            // No GGUF file has this name; a file that did would not say how its heads rotate.
            "mistral" => {
                return Err(LoadError::UnsupportedArchitecture {
                    name: arch.to_owned(),
                });
            }
            name => Architecture::from_name(name)?,
        };
        read(&Keys { metadata, arch }, architecture, file)
    }
}

fn read(keys: &Keys<'_>, architecture: Architecture, file: &GgufFile) -> Result<ModelConfig> {
    let size = |key: &str| keys.size(key).and_then(|found| keys.need(key, found));
    if let Some(experts) = keys.size("expert_count")?.filter(|&n| n > 0) {
        return Err(LoadError::unsupported(
            keys.name("expert_count"),
            experts,
            "dense models",
        ));
    }
    let hidden = size("embedding_length")?;
    let mut config = ModelConfig::new(architecture, 0, hidden, size("block_count")?);
    config.vocab = vocab(keys, file)?;
    config.heads = size("attention.head_count")?;
    config.kv_heads = keys
        .size("attention.head_count_kv")?
        .unwrap_or(config.heads);
    let dim = hidden / config.heads.max(1);
    config.head_dim = keys.size("attention.key_length")?.unwrap_or(dim);
    let value_dim = keys.size("attention.value_length")?.unwrap_or(dim);
    if value_dim != config.head_dim {
        return Err(LoadError::unsupported(
            keys.name("attention.value_length"),
            value_dim,
            "keys and values of the same length",
        ));
    }
    config.intermediate = size("feed_forward_length")?;
    config.context = size("context_length")?;
    let eps = keys.float("attention.layer_norm_rms_epsilon")?;
    // Files store it as f32; the setting it came from is the shortest decimal that gives that f32.
    config.rms_eps = shortest(keys.need("attention.layer_norm_rms_epsilon", eps)?);
    config.rope_theta = keys.float("rope.freq_base")?.unwrap_or(10_000.0);
    config.rope_dim = keys
        .size("rope.dimension_count")?
        .unwrap_or(config.head_dim);
    config.rope_scaling = scaling(keys, config.context, file)?;
    config.tied = file.tensor("output.weight").is_none();
    let has = |name: &str| file.tensor(name).is_some();
    config.qkv_bias |= has("blk.0.attn_q.bias");
    config.output_bias = has("blk.0.attn_output.bias");
    config.mlp_bias = has("blk.0.ffn_gate.bias");
    config.check_sizes()?;
    if let Some(window) = keys.size("attention.sliding_window")?.filter(|&w| w > 0) {
        config.windows = vec![Some(window); config.layers];
    }
    config.check()?;
    Ok(config)
}

/// An f64 that came from an f32, as the decimal number that f32 was meant to be.
fn shortest(value: f64) -> f64 {
    let narrow = value as f32;
    if f64::from(narrow) == value {
        narrow.to_string().parse().unwrap_or(value)
    } else {
        value
    }
}

fn vocab(keys: &Keys<'_>, file: &GgufFile) -> Result<usize> {
    let tokens = match keys.metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array(Array::String(tokens))) => Some(tokens.len()),
        _ => None,
    };
    let Some(tokens) = tokens else {
        if let Some(size) = keys.size("vocab_size")? {
            return Ok(size);
        }
        let table = file.tensor("token_embd.weight");
        let table = table.ok_or_else(|| LoadError::TensorMissing {
            name: "token_embd.weight".to_owned(),
        })?;
        return Ok(table.shape().first().copied().unwrap_or(0));
    };
    const UNUSED: i64 = 5;
    let kinds = keys.metadata.integers("tokenizer.ggml.token_type")?;
    let kinds = kinds.unwrap_or_default();
    let padding = if kinds.len() == tokens {
        kinds.iter().rev().take_while(|&&k| k == UNUSED).count()
    } else {
        0
    };
    Ok(tokens - padding)
}

fn scaling(keys: &Keys<'_>, context: usize, file: &GgufFile) -> Result<RopeScaling> {
    let factor = match keys.float("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.float("rope.scale_linear")?,
    };
    // Zero stands for "not stretched" in the files.
    let factor = factor.filter(|&f| f != 0.0).unwrap_or(1.0);
    let name = keys.metadata.string(&keys.name("rope.scaling.type"))?;
    let given = match name {
        Some("none") => RopeScaling::None,
        None | Some("linear") if factor == 1.0 => RopeScaling::None,
        None | Some("linear") => RopeScaling::Linear { factor },
        Some("yarn") => yarn(keys, factor, context)?,
        Some(other) => {
            return Err(LoadError::UnknownRopeScaling {
                name: other.to_owned(),
            });
        }
    };
    let Some(tensor) = file.tensor("rope_freqs.weight") else {
        return Ok(given);
    };
    let format = tensor
        .kind()
        .format()
        .ok_or_else(|| LoadError::UnsupportedTensorType {
            tensor: tensor.name().to_owned(),
            type_name: tensor.kind().to_string(),
        })?;
    let mut divisors = vec![0.0; tensor.shape().iter().product()];
    dequantize(format, tensor.bytes()?, &mut divisors).map_err(|source| LoadError::Kernel {
        tensor: tensor.name().to_owned(),
        source,
    })?;
    match given {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => {
            for divisor in &mut divisors {
                *divisor = (f64::from(*divisor) * factor) as f32;
            }
        }
        _ => {
            return Err(LoadError::unsupported(
                keys.name("rope.scaling.type"),
                "yarn together with rope_freqs.weight",
                "one of the two",
            ));
        }
    }
    Ok(RopeScaling::PerFrequency { divisors })
}

/// YaRN as ggml applies it: the attention factor of the file is multiplied by the formula's.
fn yarn(keys: &Keys<'_>, factor: f64, context: usize) -> Result<RopeScaling> {
    let original = keys.size("rope.scaling.original_context_length")?;
    let attention = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
    Ok(RopeScaling::Yarn {
        factor,
        original_context: original.unwrap_or(context),
        beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: attention * RopeScaling::yarn_attention(factor, 1.0),
        truncate: true,
    })
}
