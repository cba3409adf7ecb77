use crate::seeded::{Seeded, digest};
use std::fmt;

/// One tensor of a weight file: its name, shape and numbers in row-major order.
pub type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// Which family's names, biases and norms a [`TinyModel`] has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Untied output weights, no biases.
    Llama,
    /// Tied output weights, biases on queries, keys and values.
    Qwen2,
    /// Tied output weights, norms on each head's queries and keys, head dimension of its own.
    Qwen3,
}

/// A transformer of two layers with weights from a seed, as a checkpoint folder has it: tensors by
/// name, and the text of its `config.json`. Numbers are the same on every platform.
#[derive(Clone, PartialEq)]
pub struct TinyModel {
    /// The tensors.
    pub tensors: Vec<NamedTensor>,
    /// The text of `config.json`.
    pub config: String,
    /// Tokens of the vocabulary.
    pub vocab: usize,
}

impl fmt::Debug for TinyModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TinyModel")
            .field("tensors", &self.tensors.len())
            .field("vocab", &self.vocab)
            .finish_non_exhaustive()
    }
}

const VOCAB: usize = 288;
const HIDDEN: usize = 64;
const INNER: usize = 160;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const LAYERS: usize = 2;

/// The tiny model of a family: 288 tokens, hidden width 64, two layers, four query and two
/// key/value heads of 16 (Qwen3: of 32).
pub fn tiny(family: Family, seed: u64) -> TinyModel {
    let mut maker = Maker {
        seed,
        tensors: Vec::new(),
    };
    let head_dim = if family == Family::Qwen3 {
        32
    } else {
        HIDDEN / HEADS
    };
    let (q, kv) = (HEADS * head_dim, KV_HEADS * head_dim);
    maker.matrix("model.embed_tokens.weight", VOCAB, HIDDEN, 0.1);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        maker.norm(&name("input_layernorm.weight"), HIDDEN);
        for (part, out) in [("q", q), ("k", kv), ("v", kv)] {
            maker.linear(&name(&format!("self_attn.{part}_proj.weight")), out, HIDDEN);
            if family == Family::Qwen2 {
                maker.bias(&name(&format!("self_attn.{part}_proj.bias")), out);
            }
        }
        if family == Family::Qwen3 {
            maker.norm(&name("self_attn.q_norm.weight"), head_dim);
            maker.norm(&name("self_attn.k_norm.weight"), head_dim);
        }
        maker.linear(&name("self_attn.o_proj.weight"), HIDDEN, q);
        maker.norm(&name("post_attention_layernorm.weight"), HIDDEN);
        maker.linear(&name("mlp.gate_proj.weight"), INNER, HIDDEN);
        maker.linear(&name("mlp.up_proj.weight"), INNER, HIDDEN);
        maker.linear(&name("mlp.down_proj.weight"), HIDDEN, INNER);
    }
    maker.norm("model.norm.weight", HIDDEN);
    if family == Family::Llama {
        maker.linear("lm_head.weight", VOCAB, HIDDEN);
    }
    TinyModel {
        tensors: maker.tensors,
        config: config(family, head_dim),
        vocab: VOCAB,
    }
}

fn config(family: Family, head_dim: usize) -> String {
    let (architecture, kind) = match family {
        Family::Llama => ("LlamaForCausalLM", "llama"),
        Family::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        Family::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
    };
    let tied = family != Family::Llama;
    let theta = if tied { "1000000.0" } else { "10000.0" };
    let eps = if tied { "1e-06" } else { "1e-05" };
    format!(
        r#"{{
  "architectures": ["{architecture}"],
  "model_type": "{kind}",
  "vocab_size": {VOCAB},
  "hidden_size": {HIDDEN},
  "intermediate_size": {INNER},
  "num_hidden_layers": {LAYERS},
  "num_attention_heads": {HEADS},
  "num_key_value_heads": {KV_HEADS},
  "head_dim": {head_dim},
  "hidden_act": "silu",
  "max_position_embeddings": 1024,
  "rms_norm_eps": {eps},
  "rope_theta": {theta},
  "rope_scaling": null,
  "attention_bias": false,
  "tie_word_embeddings": {tied},
  "bos_token_id": 1,
  "eos_token_id": 2,
  "torch_dtype": "float32"
}}
"#
    )
}

struct Maker {
    seed: u64,
    tensors: Vec<NamedTensor>,
}

impl Maker {
    /// Numbers around `mean`, drawn from the seed and the tensor's name alone.
    fn fill(&mut self, name: &str, shape: Vec<usize>, mean: f32, deviation: f32) {
        let letters = name.bytes().map(u64::from);
        let mut draws = Seeded::new(digest([self.seed].into_iter().chain(letters)));
        let n = shape.iter().product();
        let numbers = (0..n).map(|_| mean + deviation * draws.normal()).collect();
        self.tensors.push((name.to_owned(), shape, numbers));
    }

    fn matrix(&mut self, name: &str, out: usize, width: usize, deviation: f32) {
        self.fill(name, vec![out, width], 0.0, deviation);
    }

    /// `[out, in]`, scaled so that outputs are about as large as inputs.
    fn linear(&mut self, name: &str, out: usize, width: usize) {
        self.matrix(name, out, width, 1.0 / (width as f32).sqrt());
    }

    fn bias(&mut self, name: &str, out: usize) {
        self.fill(name, vec![out], 0.0, 0.3);
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.fill(name, vec![width], 1.0, 0.1);
    }
}
