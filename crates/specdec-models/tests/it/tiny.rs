//! Tiny models from a seed, and the same weights in each file format.

use burn::prelude::*;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value as Json, json};
use specdec_kernels::BlockFormat;
use specdec_models::{
    Architecture, MemoryTensors, ModelConfig,
    gguf::{GgmlType, GgufWriter, Value},
};
use std::{collections::BTreeMap, path::Path};

pub(crate) fn device() -> Device {
    Device::flex()
}

/// Numbers in -1..1 from a seed (splitmix64).
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64)
        .map(|index| {
            let mut z = (seed << 32)
                .wrapping_add(index + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// A model's settings and weights, named and laid out as Hugging Face does.
#[derive(Debug, Clone)]
pub(crate) struct Tiny {
    pub(crate) config: ModelConfig,
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

pub(crate) fn llama() -> Tiny {
    let mut config = ModelConfig::new(Architecture::Llama, 96, 32, 2)
        .with_heads(4, 2, 8)
        .with_intermediate(64);
    config.rms_eps = 1e-5;
    Tiny::of(config, 11)
}

pub(crate) fn qwen2() -> Tiny {
    let mut config = ModelConfig::new(Architecture::Qwen2, 96, 32, 2)
        .with_heads(4, 2, 8)
        .with_intermediate(64);
    config.rope_theta = 1_000_000.0;
    config.tied = false;
    Tiny::of(config, 12)
}

/// Heads wider than `hidden / heads`, and heads that are normalised.
pub(crate) fn qwen3() -> Tiny {
    let config = ModelConfig::new(Architecture::Qwen3, 96, 32, 2)
        .with_heads(4, 2, 16)
        .with_intermediate(64);
    Tiny::of(config, 13)
}

impl Tiny {
    pub(crate) fn of(config: ModelConfig, seed: u64) -> Self {
        let mut tiny = Self {
            config,
            tensors: BTreeMap::new(),
        };
        let c = tiny.config.clone();
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        tiny.add(seed, "model.embed_tokens.weight", &[c.vocab, c.hidden]);
        tiny.add(seed, "model.norm.weight", &[c.hidden]);
        if !c.tied {
            tiny.add(seed, "lm_head.weight", &[c.vocab, c.hidden]);
        }
        for layer in 0..c.layers {
            let name = |stem: &str| format!("model.layers.{layer}.{stem}");
            for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
                tiny.add(seed, &name(norm), &[c.hidden]);
            }
            for (stem, shape, bias) in [
                ("self_attn.q_proj", [q, c.hidden], c.qkv_bias),
                ("self_attn.k_proj", [kv, c.hidden], c.qkv_bias),
                ("self_attn.v_proj", [kv, c.hidden], c.qkv_bias),
                ("self_attn.o_proj", [c.hidden, q], c.output_bias),
                ("mlp.gate_proj", [c.intermediate, c.hidden], c.mlp_bias),
                ("mlp.up_proj", [c.intermediate, c.hidden], c.mlp_bias),
                ("mlp.down_proj", [c.hidden, c.intermediate], c.mlp_bias),
            ] {
                tiny.add(seed, &name(&format!("{stem}.weight")), &shape);
                if bias {
                    tiny.add(seed, &name(&format!("{stem}.bias")), &shape[..1]);
                }
            }
            if c.qk_norm {
                for norm in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
                    tiny.add(seed, &name(norm), &[c.head_dim]);
                }
            }
        }
        tiny
    }

    /// Adds a tensor; its values depend on the seed and its name only.
    pub(crate) fn add(&mut self, seed: u64, name: &str, shape: &[usize]) {
        let named = name
            .bytes()
            .fold(seed, |h, b| h.wrapping_mul(131).wrapping_add(b.into()));
        let mut values = numbers(named & 0xffff_ffff, shape.iter().product());
        for value in &mut values {
            *value = match shape {
                // Norms lie around one, biases around zero.
                [_] if name.contains("norm") => 1.0 + 0.3 * *value,
                [_] => 0.2 * *value,
                [_, k] => *value * 2.5 / (*k as f32).sqrt(),
                _ => *value,
            };
        }
        self.tensors
            .insert(name.to_owned(), (shape.to_vec(), values));
    }

    pub(crate) fn memory(&self) -> MemoryTensors {
        self.tensors
            .iter()
            .map(|(name, (shape, values))| (name.clone(), shape.clone(), values.clone()))
            .collect()
    }

    pub(crate) fn config_json(&self) -> Json {
        let c = &self.config;
        let kind = match c.architecture {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            _ => "qwen3",
        };
        json!({
            "model_type": kind,
            "vocab_size": c.vocab,
            "hidden_size": c.hidden,
            "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_dim,
            "intermediate_size": c.intermediate,
            "max_position_embeddings": c.context,
            "rms_norm_eps": c.rms_eps,
            "rope_theta": c.rope_theta,
            "tie_word_embeddings": c.tied,
            "hidden_act": "silu",
        })
    }

    /// Writes `config.json` and `model.safetensors`, all values as `dtype`.
    pub(crate) fn write_folder(&self, folder: &Path, dtype: Dtype) {
        std::fs::write(folder.join("config.json"), self.config_json().to_string()).unwrap();
        let names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        self.write_shard(&folder.join("model.safetensors"), &names, dtype);
    }

    pub(crate) fn write_shard(&self, path: &Path, names: &[&str], dtype: Dtype) {
        let encoded: Vec<(&str, &[usize], Vec<u8>)> = names
            .iter()
            .map(|&name| {
                let (shape, values) = &self.tensors[name];
                let bytes = match dtype {
                    Dtype::BF16 => encode(BlockFormat::BF16, values),
                    Dtype::F16 => encode(BlockFormat::F16, values),
                    _ => encode(BlockFormat::F32, values),
                };
                (name, shape.as_slice(), bytes)
            })
            .collect();
        let views = encoded.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
            (name.to_string(), view)
        });
        safetensors::serialize_to_file(views, None, path).unwrap();
    }

    /// The same weights as a GGUF file in the making; `format` says how each tensor is stored.
    pub(crate) fn gguf(&self, format: impl Fn(&str) -> BlockFormat) -> GgufWriter {
        let c = &self.config;
        let arch = match c.architecture {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            _ => "qwen3",
        };
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", Value::String(arch.to_owned()));
        for (key, size) in [
            ("vocab_size", c.vocab),
            ("embedding_length", c.hidden),
            ("block_count", c.layers),
            ("attention.head_count", c.heads),
            ("attention.head_count_kv", c.kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("rope.dimension_count", c.rope_dim),
            ("feed_forward_length", c.intermediate),
            ("context_length", c.context),
        ] {
            writer.set(format!("{arch}.{key}"), Value::U32(size as u32));
        }
        let float = |value: f64| Value::F32(value as f32);
        writer.set(format!("{arch}.rope.freq_base"), float(c.rope_theta));
        writer.set(
            format!("{arch}.attention.layer_norm_rms_epsilon"),
            float(c.rms_eps),
        );
        for (name, (shape, values)) in &self.tensors {
            let rotated = name.contains("q_proj") || name.contains("k_proj");
            let stored = if arch == "llama" && rotated {
                interleaved(values, shape[0], c.head_dim)
            } else {
                values.clone()
            };
            let name = ggml_name(name);
            let format = format(&name);
            let bytes = encode(format, &stored);
            writer.tensor(name, shape, GgmlType::of(format), bytes);
        }
        writer
    }

    pub(crate) fn gguf_f32(&self) -> GgufWriter {
        self.gguf(|_| BlockFormat::F32)
    }
}

/// Reorders the rows of each head from two halves to neighbouring pairs, as the converter of Llama
/// checkpoints does.
fn interleaved(values: &[f32], rows: usize, dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (half_row, pair_row) in row_places(rows, dim) {
        let width = values.len() / rows;
        out[pair_row * width..][..width].copy_from_slice(&values[half_row * width..][..width]);
    }
    out
}

/// The way back.
pub(crate) fn halves(values: &[f32], rows: usize, dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (half_row, pair_row) in row_places(rows, dim) {
        let width = values.len() / rows;
        out[half_row * width..][..width].copy_from_slice(&values[pair_row * width..][..width]);
    }
    out
}

/// Where each row stands in halves, and where in pairs.
fn row_places(rows: usize, dim: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).map(move |row| {
        let (head, at) = (row / dim, row % dim);
        let (half, pair) = (at / (dim / 2), at % (dim / 2));
        (row, head * dim + 2 * pair + half)
    })
}

/// ggml's names, spelt out here again so that a wrong one in the crate is seen.
fn ggml_name(name: &str) -> String {
    name.replace("model.embed_tokens", "token_embd")
        .replace("model.norm", "output_norm")
        .replace("lm_head", "output")
        .replace("model.layers.", "blk.")
        .replace("input_layernorm", "attn_norm")
        .replace("post_attention_layernorm", "ffn_norm")
        .replace("self_attn.q_norm", "attn_q_norm")
        .replace("self_attn.k_norm", "attn_k_norm")
        .replace("self_attn.q_proj", "attn_q")
        .replace("self_attn.k_proj", "attn_k")
        .replace("self_attn.v_proj", "attn_v")
        .replace("self_attn.o_proj", "attn_output")
        .replace("mlp.gate_proj", "ffn_gate")
        .replace("mlp.up_proj", "ffn_up")
        .replace("mlp.down_proj", "ffn_down")
}

pub(crate) fn encode(format: BlockFormat, values: &[f32]) -> Vec<u8> {
    match format {
        BlockFormat::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        BlockFormat::F16 => values
            .iter()
            .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
            .collect(),
        BlockFormat::BF16 => values
            .iter()
            .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes())
            .collect(),
        BlockFormat::Q8_0 => values.chunks(32).flat_map(q8_0).collect(),
        other => panic!("these tests do not write {other}"),
    }
}

fn q8_0(block: &[f32]) -> Vec<u8> {
    let most = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = half::f16::from_f32(most / 127.0);
    let mut bytes = scale.to_le_bytes().to_vec();
    let quant = |v: &f32| (v / scale.to_f32()).round().clamp(-127.0, 127.0) as i8 as u8;
    bytes.extend(block.iter().map(quant));
    bytes
}

/// The values that `encode` keeps.
pub(crate) fn kept(format: BlockFormat, values: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    specdec_kernels::dequantize(format, &encode(format, values), &mut out).unwrap();
    out
}
