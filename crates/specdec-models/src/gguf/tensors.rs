//! The tensors of a file, and their names.

use super::{GgmlType, GgufFile, reader::Entry};
use crate::{LoadError, StoredTensor, TensorSource, error::Result};
use specdec_kernels::RotaryPairing;
use std::borrow::Cow;

/// A tensor of a GGUF file.
#[derive(Debug, Clone, Copy)]
pub struct GgufTensor<'a> {
    pub(super) entry: &'a Entry,
    pub(super) bytes: Option<&'a [u8]>,
}

impl<'a> GgufTensor<'a> {
    /// Its name in the file.
    pub fn name(&self) -> &'a str {
        &self.entry.name
    }

    /// Its shape, outermost dimension first (the file stores it the other way round).
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// How it is stored.
    pub fn kind(&self) -> GgmlType {
        self.entry.kind
    }

    /// Its bytes in the mapped file.
    ///
    /// # Errors
    /// [`LoadError::UnsupportedTensorType`] for a type whose size is not known here.
    pub fn bytes(&self) -> Result<&'a [u8]> {
        self.bytes.ok_or_else(|| self.unsupported())
    }

    fn unsupported(&self) -> LoadError {
        LoadError::UnsupportedTensorType {
            tensor: self.entry.name.clone(),
            type_name: self.entry.kind.to_string(),
        }
    }

    fn stored(&self) -> Result<StoredTensor<'a>> {
        let format = self.entry.kind.format().ok_or_else(|| self.unsupported())?;
        Ok(StoredTensor {
            format,
            shape: self.entry.shape.clone(),
            bytes: Cow::Borrowed(self.bytes()?),
        })
    }
}

/// Names outside the layers: Hugging Face's, ggml's.
const OUTER: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
];

/// Names within a layer.
const INNER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// ggml's name for a tensor that Hugging Face calls `name`; other names stay as they are.
pub(super) fn ggml_name(name: &str) -> String {
    let renamed = || {
        let (stem, kind) = name.rsplit_once('.')?;
        if let Some((_, outer)) = OUTER.iter().find(|(hf, _)| *hf == stem) {
            return Some(format!("{outer}.{kind}"));
        }
        let (layer, stem) = stem.strip_prefix("model.layers.")?.split_once('.')?;
        let (_, inner) = INNER.iter().find(|(hf, _)| *hf == stem)?;
        Some(format!("blk.{layer}.{inner}.{kind}"))
    };
    renamed().unwrap_or_else(|| name.to_owned())
}

impl TensorSource for GgufFile {
    fn tensor(&self, name: &str) -> Result<Option<StoredTensor<'_>>> {
        let tensor = GgufFile::tensor(self, &ggml_name(name));
        tensor.map(|t| t.stored()).transpose()
    }

    fn native_name(&self, name: &str) -> String {
        ggml_name(name)
    }

    /// Llama files keep query and key rows in the order of the paper's interleaved rotation
    /// (their converter reorders them); Qwen files keep Hugging Face's halves.
    fn pairing(&self) -> RotaryPairing {
        match self.metadata.string("general.architecture") {
            Ok(Some("llama")) => RotaryPairing::Interleaved,
            _ => RotaryPairing::HalfSplit,
        }
    }

    fn native_names(&self) -> Vec<String> {
        self.tensors.iter().map(|(_, e)| e.name.clone()).collect()
    }
}
