//! The `config.json` of a drafter.

use crate::config::{DraftConfig, HeadConfig, LayerKind};
use crate::error::{DraftModelError, Result};
use serde_json::{Map, Value, json};
use specdec_core::Token;

const PLAIN: &str = "DFlashDraftModel";
const WITH_HEAD: &str = "LiLiCorrDraftModel";

/// Keys of `dflash_config` that are read.
const KNOWN: [&str; 12] = [
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "lilicorr_enabled",
    "lilicorr_candidate_topk",
    "lilicorr_hidden_size",
    "lilicorr_factor_dim",
    "lilicorr_num_layers",
    "lilicorr_num_heads",
    "lilicorr_mlp_ratio",
    "lilicorr_logit_scale",
    "lilicorr_vector_eps",
];

/// Keys of settings that would change what is computed, with the only value that is honoured.
fn fixed() -> [(&'static str, Value); 3] {
    [
        ("attention_bias", json!(false)),
        ("hidden_act", json!("silu")),
        ("rope_scaling", Value::Null),
    ]
}

/// An object of the file with the path that leads to it.
struct Object<'a> {
    path: &'static str,
    map: &'a Map<String, Value>,
}

impl Object<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn need(&self, key: &str) -> Result<&Value> {
        self.get(key).ok_or_else(|| DraftModelError::MissingKey {
            key: self.name(key),
        })
    }

    fn size(&self, key: &str) -> Result<usize> {
        let value = self.need(key)?;
        let size = value.as_u64().and_then(|v| usize::try_from(v).ok());
        size.ok_or_else(|| {
            DraftModelError::invalid(
                self.name(key),
                value,
                "a whole number of 0 or more is needed",
            )
        })
    }

    fn number(&self, key: &str) -> Result<f64> {
        let value = self.need(key)?;
        value
            .as_f64()
            .ok_or_else(|| DraftModelError::invalid(self.name(key), value, "a number is needed"))
    }

    fn token(&self, key: &str) -> Result<Token> {
        let value = self.need(key)?;
        let token = value.as_u64().and_then(|v| Token::try_from(v).ok());
        token.ok_or_else(|| DraftModelError::invalid(self.name(key), value, "a token id is needed"))
    }
}

impl DraftConfig {
    /// Reads the text of a `config.json` of a DFlash or LiLiCorr checkpoint. The draft vocabulary, if
    /// there is one, is stored with the tensors ([`DraftModel::load`](crate::DraftModel::load)).
    ///
    /// # Errors
    /// [`DraftModelError::MissingKey`], [`DraftModelError::UnknownKey`] for a key of `dflash_config`
    /// that nothing reads, [`DraftModelError::InvalidKey`], and as [`check`](Self::check).
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| DraftModelError::invalid("config.json", e, "a JSON object is needed"))?;
        let Some(map) = value.as_object() else {
            let wanted = "a JSON object is needed";
            return Err(DraftModelError::invalid("config.json", &value, wanted));
        };
        let top = Object { path: "", map };
        for (key, only) in fixed() {
            if let Some(value) = top.get(key)
                && *value != only
            {
                let wanted = "only the usual value is honoured";
                return Err(DraftModelError::invalid(key, value, wanted));
            }
        }
        let special = top.need("dflash_config")?;
        let Some(map) = special.as_object() else {
            let wanted = "an object is needed";
            return Err(DraftModelError::invalid("dflash_config", special, wanted));
        };
        if let Some(key) = map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            let key = format!("dflash_config.{key}");
            return Err(DraftModelError::UnknownKey { key });
        }
        let special = Object {
            path: "dflash_config.",
            map,
        };
        let config = Self {
            hidden: top.size("hidden_size")?,
            layers: layers(&top)?,
            heads: top.size("num_attention_heads")?,
            kv_heads: top.size("num_key_value_heads")?,
            head_dim: top.size("head_dim")?,
            intermediate: top.size("intermediate_size")?,
            rms_eps: top.number("rms_norm_eps")?,
            rope_theta: theta(&top)?,
            vocab: top.size("vocab_size")?,
            target_layers: top.size("num_target_layers")?,
            taps: taps(&special)?,
            mask_token: special.token("mask_token_id")?,
            block_size: match special.get("block_size") {
                Some(_) => special.size("block_size")?,
                None => top.size("block_size")?,
            },
            draft_vocab: None,
            head: head(&top, &special)?,
        };
        for key in ["eos_token_id", "pad_token_id"] {
            let same = |value: &Value| value.as_u64() == Some(u64::from(config.mask_token));
            let clash = top.get(key).is_some_and(|value| {
                same(value) || value.as_array().is_some_and(|all| all.iter().any(same))
            });
            if clash {
                return Err(DraftModelError::invalid(
                    "dflash_config.mask_token_id",
                    config.mask_token,
                    "a token that text never holds is needed, not its end or padding",
                ));
            }
        }
        config.check()?;
        Ok(config)
    }

    /// The text of its `config.json`.
    pub fn to_json(&self) -> String {
        let mut special = Map::new();
        special.insert("mask_token_id".into(), json!(self.mask_token));
        special.insert("target_layer_ids".into(), json!(self.taps));
        if let Some(head) = &self.head {
            for (key, value) in [
                ("candidate_topk", json!(head.candidates)),
                ("hidden_size", json!(head.hidden.unwrap_or(0))),
                ("factor_dim", json!(head.factor)),
                ("num_layers", json!(head.layers)),
                ("num_heads", json!(head.heads)),
                ("mlp_ratio", json!(head.mlp_ratio)),
                ("logit_scale", json!(head.logit_scale)),
                ("vector_eps", json!(head.vector_eps)),
            ] {
                special.insert(format!("lilicorr_{key}"), value);
            }
        }
        let kinds = self.layers.iter().map(|layer| match layer {
            LayerKind::Full => "full_attention",
            LayerKind::Sliding(_) => "sliding_attention",
        });
        let window = self.layers.iter().find_map(|layer| match layer {
            LayerKind::Full => None,
            LayerKind::Sliding(window) => Some(*window),
        });
        let architecture = if self.head.is_some() {
            WITH_HEAD
        } else {
            PLAIN
        };
        let text = json!({
            "architectures": [architecture],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers.len(),
            "layer_types": kinds.collect::<Vec<_>>(),
            "sliding_window": window,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "hidden_act": "silu",
            "attention_bias": false,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": null,
            "vocab_size": self.vocab,
            "draft_vocab_size": self.draft_vocab.as_ref().map(Vec::len),
            "num_target_layers": self.target_layers,
            "block_size": self.block_size,
            "torch_dtype": "float32",
            "dflash_config": special,
        });
        format!("{text:#}\n")
    }
}

fn theta(top: &Object<'_>) -> Result<f64> {
    let nested = top.get("rope_parameters").and_then(Value::as_object);
    let Some(map) = nested else {
        return top.number("rope_theta");
    };
    let kind = map.get("rope_type").and_then(Value::as_str);
    if kind.is_some_and(|kind| kind != "default") {
        let wanted = "only plain rotary positions are computed";
        return Err(DraftModelError::invalid(
            "rope_parameters.rope_type",
            kind.unwrap_or(""),
            wanted,
        ));
    }
    let path = "rope_parameters.";
    Object { path, map }.number("rope_theta")
}

fn layers(top: &Object<'_>) -> Result<Vec<LayerKind>> {
    let count = top.size("num_hidden_layers")?;
    if count == 0 || count > 4096 {
        let wanted = "1 to 4096 layers are needed";
        return Err(DraftModelError::invalid("num_hidden_layers", count, wanted));
    }
    let Some(types) = top.get("layer_types") else {
        // Without a list all layers are alike, and a window would have to be guessed at.
        if top.get("use_sliding_window").and_then(Value::as_bool) == Some(true) {
            let key = "layer_types".to_owned();
            return Err(DraftModelError::MissingKey { key });
        }
        return Ok(vec![LayerKind::Full; count]);
    };
    let invalid = || {
        let wanted =
            "a list of full_attention and sliding_attention, one for each layer, is needed";
        DraftModelError::invalid("layer_types", types, wanted)
    };
    let list = types
        .as_array()
        .filter(|list| list.len() == count)
        .ok_or_else(invalid)?;
    list.iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(LayerKind::Full),
            Some("sliding_attention") => Ok(LayerKind::Sliding(top.size("sliding_window")?)),
            _ => Err(invalid()),
        })
        .collect()
}

fn taps(special: &Object<'_>) -> Result<Vec<usize>> {
    let key = "target_layer_ids";
    let value = special.need(key)?;
    let invalid = || {
        DraftModelError::invalid(
            special.name(key),
            value,
            "a list of layer numbers is needed",
        )
    };
    let list = value.as_array().ok_or_else(invalid)?;
    list.iter()
        .map(|id| {
            let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
            id.ok_or_else(invalid)
        })
        .collect()
}

fn head(top: &Object<'_>, special: &Object<'_>) -> Result<Option<HeadConfig>> {
    let architecture = top.need("architectures")?;
    let name = architecture.get(0).and_then(Value::as_str);
    let switched = special.get("lilicorr_enabled").and_then(Value::as_bool);
    match name {
        Some(WITH_HEAD) if switched != Some(false) => {}
        Some(PLAIN) => {
            let prefix = "lilicorr_";
            let of_head = |key: &&String| key.starts_with(prefix) && *key != "lilicorr_enabled";
            return match special.map.keys().find(of_head) {
                // Settings of a head that would never be computed.
                Some(key) => Err(DraftModelError::UnknownKey {
                    key: special.name(key),
                }),
                None => Ok(None),
            };
        }
        _ => {
            let wanted = "DFlashDraftModel, or LiLiCorrDraftModel with its head, is needed";
            return Err(DraftModelError::invalid(
                "architectures",
                architecture,
                wanted,
            ));
        }
    }
    let size = |key: &str| special.size(&format!("lilicorr_{key}"));
    let number = |key: &str| special.number(&format!("lilicorr_{key}"));
    Ok(Some(HeadConfig {
        candidates: size("candidate_topk")?,
        hidden: Some(size("hidden_size")?).filter(|&h| h > 0),
        factor: size("factor_dim")?,
        layers: size("num_layers")?,
        heads: size("num_heads")?,
        mlp_ratio: number("mlp_ratio")?,
        logit_scale: number("logit_scale")?,
        vector_eps: number("vector_eps")?,
    }))
}
