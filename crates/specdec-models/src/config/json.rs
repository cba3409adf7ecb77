//! The settings in a Hugging Face `config.json`.

use super::{Architecture, ModelConfig, RopeScaling};
use crate::{LoadError, error::Result};
use serde_json::{Map, Value};

/// Typed look-ups in an object; `prefix` is what errors put before a key.
#[derive(Clone, Copy)]
struct Keys<'a> {
    map: &'a Map<String, Value>,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    /// Null counts as absent, as it does in Python.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn invalid(&self, key: &str, value: &Value, wanted: &'static str) -> LoadError {
        let text: String = value.to_string().chars().take(80).collect();
        LoadError::invalid(self.name(key), text, wanted)
    }

    fn read<T>(
        &self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.invalid(key, value, wanted)),
        }
    }

    fn size(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a non-negative integer is needed", |v| {
            v.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        self.read(key, "a number is needed", Value::as_f64)
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let flag = self.read(key, "true or false is needed", Value::as_bool)?;
        Ok(flag.unwrap_or(default))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.read(key, "a string is needed", Value::as_str)
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| LoadError::MissingKey {
            key: self.name(key),
        })
    }
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    ///
    /// | key | when absent |
    /// |---|---|
    /// | `model_type` | the first of `architectures`; else an error |
    /// | `vocab_size`, `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `intermediate_size`, `max_position_embeddings` | an error |
    /// | `num_key_value_heads` | `num_attention_heads` |
    /// | `head_dim` | 128 for Qwen3, else `hidden_size / num_attention_heads` |
    /// | `rms_norm_eps` | 1e-6 |
    /// | `rope_theta` (also in `rope_parameters`) | 10000 |
    /// | `partial_rotary_factor` | 1 |
    /// | `rope_scaling` or `rope_parameters` | no scaling |
    /// | `tie_word_embeddings` | false |
    /// | `attention_bias`, `mlp_bias` | false |
    /// | `hidden_act` | `silu` |
    /// | `sliding_window` | 4096 for Mistral (null: none); none for the others |
    /// | `use_sliding_window` (Qwen) | false |
    /// | `max_window_layers` (Qwen) | 28 |
    /// | `layer_types` | as the two above say |
    ///
    /// # Errors
    /// [`LoadError::UnsupportedArchitecture`] first of all; [`LoadError::MissingKey`],
    /// [`LoadError::InvalidKey`], [`LoadError::UnsupportedValue`],
    /// [`LoadError::UnknownRopeScaling`].
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).map_err(|error| LoadError::Corrupt {
            path: "config.json".into(),
            what: error.to_string(),
        })?;
        let Value::Object(map) = &value else {
            return Err(LoadError::Corrupt {
                path: "config.json".into(),
                what: "it is no JSON object".to_owned(),
            });
        };
        read(Keys { map, prefix: "" })
    }
}

fn read(keys: Keys<'_>) -> Result<ModelConfig> {
    let kind = model_type(keys)?;
    let architecture = Architecture::from_name(kind)?;
    refuse_unsupported(keys)?;
    let size = |key: &str| keys.size(key).and_then(|found| keys.need(key, found));
    let mut config = ModelConfig::new(
        architecture,
        size("vocab_size")?,
        size("hidden_size")?,
        size("num_hidden_layers")?,
    );
    config.heads = size("num_attention_heads")?;
    config.kv_heads = keys.size("num_key_value_heads")?.unwrap_or(config.heads);
    config.head_dim = match (keys.size("head_dim")?, architecture) {
        (Some(dim), _) => dim,
        (None, Architecture::Qwen3) => 128,
        (None, _) => config.hidden / config.heads.max(1),
    };
    config.intermediate = size("intermediate_size")?;
    config.context = size("max_position_embeddings")?;
    config.rms_eps = keys.float("rms_norm_eps")?.unwrap_or(1e-6);
    config.tied = keys.flag("tie_word_embeddings", false)?;
    let bias = keys.flag("attention_bias", false)?;
    let rope = rope_keys(keys)?;
    config.rope_theta = match keys.float("rope_theta")? {
        Some(theta) => theta,
        None => rope
            .map_or(Ok(None), |r| r.float("rope_theta"))?
            .unwrap_or(10_000.0),
    };
    let partial = match keys.float("partial_rotary_factor")? {
        Some(part) => part,
        None => rope
            .map_or(Ok(None), |r| r.float("partial_rotary_factor"))?
            .unwrap_or(1.0),
    };
    config.rope_dim = (config.head_dim as f64 * partial) as usize;
    config.rope_scaling = match rope {
        Some(rope) => scaling(rope, config.context)?,
        None => RopeScaling::None,
    };
    match architecture {
        Architecture::Llama => {
            config.qkv_bias = bias;
            config.output_bias = bias;
            config.mlp_bias = keys.flag("mlp_bias", false)?;
        }
        // The family's biases are not a setting.
        Architecture::Qwen2 => {}
        Architecture::Qwen3 => {
            config.qkv_bias = bias;
            config.output_bias = bias;
        }
    }
    config.check_sizes()?;
    config.windows = windows(keys, kind, config.layers)?;
    config.check()?;
    Ok(config)
}

fn model_type(keys: Keys<'_>) -> Result<&str> {
    if let Some(kind) = keys.text("model_type")? {
        return Ok(kind);
    }
    let class = keys
        .get("architectures")
        .and_then(Value::as_array)
        .and_then(|list| list.first())
        .and_then(Value::as_str);
    match keys.need("model_type", class)? {
        "LlamaForCausalLM" => Ok("llama"),
        "MistralForCausalLM" => Ok("mistral"),
        "Qwen2ForCausalLM" => Ok("qwen2"),
        "Qwen3ForCausalLM" => Ok("qwen3"),
        other => Err(LoadError::UnsupportedArchitecture {
            name: other.to_owned(),
        }),
    }
}

fn refuse_unsupported(keys: Keys<'_>) -> Result<()> {
    match keys.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(LoadError::unsupported("hidden_act", other, "silu")),
    }
    if let Some(quantised) = keys.get("quantization_config") {
        let method = quantised.get("quant_method").and_then(Value::as_str);
        return Err(LoadError::unsupported(
            "quantization_config.quant_method",
            method.unwrap_or("not named"),
            "weights stored as F32, F16 or BF16",
        ));
    }
    Ok(())
}

/// The object that holds the rotary scaling, whatever its name.
fn rope_keys(keys: Keys<'_>) -> Result<Option<Keys<'_>>> {
    for (key, prefix) in [
        ("rope_scaling", "rope_scaling."),
        ("rope_parameters", "rope_parameters."),
    ] {
        if let Some(value) = keys.get(key) {
            let Value::Object(map) = value else {
                return Err(keys.invalid(key, value, "an object is needed"));
            };
            if map.values().any(Value::is_object) {
                return Err(LoadError::unsupported(
                    key,
                    "different for each kind of layer",
                    "one setting for all layers",
                ));
            }
            return Ok(Some(Keys { map, prefix }));
        }
    }
    Ok(None)
}

fn scaling(keys: Keys<'_>, context: usize) -> Result<RopeScaling> {
    let name = match keys.text("rope_type")? {
        Some(name) => Some(name),
        None => keys.text("type")?,
    };
    let factor = || {
        keys.float("factor")
            .and_then(|found| keys.need("factor", found))
    };
    let original = keys.size("original_max_position_embeddings")?;
    match name {
        None if keys.get("factor").is_some() => keys.need("rope_type", None),
        None | Some("default" | "none") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
        Some("dynamic") => Ok(RopeScaling::DynamicNtk {
            factor: factor()?,
            original_context: original.unwrap_or(context),
        }),
        Some("llama3") => {
            let float = |key: &str| keys.float(key).and_then(|found| keys.need(key, found));
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: float("low_freq_factor")?,
                high_freq_factor: float("high_freq_factor")?,
                original_context: keys.need("original_max_position_embeddings", original)?,
            })
        }
        Some("yarn") => yarn(keys, factor()?, original.unwrap_or(context)),
        Some(other) => Err(LoadError::UnknownRopeScaling {
            name: other.to_owned(),
        }),
    }
}

fn yarn(keys: Keys<'_>, factor: f64, original_context: usize) -> Result<RopeScaling> {
    let mscale = keys.float("mscale")?.filter(|&m| m != 0.0);
    let mscale_all = keys.float("mscale_all_dim")?.filter(|&m| m != 0.0);
    let attention_factor = match (keys.float("attention_factor")?, mscale, mscale_all) {
        (Some(given), _, _) => given,
        (None, Some(part), Some(all)) => {
            RopeScaling::yarn_attention(factor, part) / RopeScaling::yarn_attention(factor, all)
        }
        _ => RopeScaling::yarn_attention(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: keys.float("beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.float("beta_slow")?.unwrap_or(1.0),
        attention_factor,
        truncate: keys.flag("truncate", true)?,
    })
}

fn windows(keys: Keys<'_>, kind: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    let given = keys.size("sliding_window")?;
    let (window, first) = match kind {
        // Absent is not null: the family's own default is a window.
        "mistral" if !keys.map.contains_key("sliding_window") => (Some(4096), 0),
        "mistral" => (given, 0),
        "qwen2" | "qwen3" if keys.flag("use_sliding_window", false)? => {
            (given, keys.size("max_window_layers")?.unwrap_or(28))
        }
        _ => (None, 0),
    };
    let Some(window) = window else {
        return Ok(Vec::new());
    };
    let Some(kinds) = keys.get("layer_types") else {
        return Ok((0..layers)
            .map(|l| (l >= first).then_some(window))
            .collect());
    };
    let wanted = "a list of full_attention and sliding_attention, one for each layer, is needed";
    let list = kinds.as_array().filter(|list| list.len() == layers);
    let list = list.ok_or_else(|| keys.invalid("layer_types", kinds, wanted))?;
    list.iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => Ok(Some(window)),
            _ => Err(keys.invalid("layer_types", kind, wanted)),
        })
        .collect()
}
