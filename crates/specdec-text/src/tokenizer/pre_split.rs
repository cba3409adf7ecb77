//! How byte-level vocabularies cut text before merging, by the name in `tokenizer.ggml.pre`.
//!
//! The expressions are facts about the models, as their tokenizer.json files and llama.cpp's
//! `src/llama-vocab.cpp` state them. They are applied in order, each to the parts that the ones before left.

use tokenizers::{
    NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use crate::error::{Result, TextError};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// What a pre-tokenizer's name stands for.
pub(crate) struct PreSplit {
    expressions: &'static [&'static str],
    /// Text is composed (Unicode NFC) first.
    composed: bool,
    /// A part that is a token as it stands needs no merging.
    pub(crate) ignore_merges: bool,
    /// A begin token goes first where the metadata does not say.
    pub(crate) add_bos: bool,
}

/// What `tokenizer.ggml.pre` names.
///
/// # Errors
/// [`TextError::Unsupported`] with the name.
pub(crate) fn pre_split(name: &str) -> Result<PreSplit> {
    let plain = |expressions| PreSplit {
        expressions,
        composed: false,
        ignore_merges: false,
        add_bos: false,
    };
    Ok(match name {
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        "gpt-2" | "phi-2" | "exaone4" | "gigachat" | "a.x-4.0" | "mellum" | "jais" | "trillion"
        | "granite-docling" => plain(&[GPT2]),
        "mpt" | "olmo" => PreSplit {
            composed: true,
            ..plain(&[GPT2])
        },
        "smollm" | "starcoder" | "refact" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            plain(&[r"\p{N}", GPT2])
        }
        "command-r" => PreSplit {
            composed: true,
            ..plain(&[r"\p{N}", GPT2])
        },
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" => PreSplit {
            ignore_merges: true,
            add_bos: true,
            ..plain(&[LLAMA3])
        },
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => plain(&[LLAMA3]),
        "qwen2" => PreSplit {
            composed: true,
            ..plain(&[QWEN2])
        },
        "deepseek-r1-qwen" | "stablelm2" | "megrez" | "hunyuan" | "grok-2" | "solar-open" => {
            plain(&[QWEN2])
        }
        "qwen35" => PreSplit {
            composed: true,
            ..plain(&[QWEN35])
        },
        "seed-coder" => plain(&[SEED_CODER]),
        "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => plain(&[GPT4O]),
        "tekken" => PreSplit {
            ignore_merges: true,
            add_bos: true,
            ..plain(&[TEKKEN])
        },
        "deepseek-coder" => plain(&[
            "[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            "[一-龥ࠀ-一가-\u{D7FF}]+",
            r"\p{N}",
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
            plain(&[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3])
        }
        "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
        _ => {
            return Err(TextError::Unsupported {
                part: "GGUF pre-tokenizer (tokenizer.ggml.pre)",
                kind: name.to_owned(),
            });
        }
    })
}

impl PreSplit {
    /// The cutting, ending in GPT-2's byte alphabet.
    pub(crate) fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let unsupported = |error| TextError::malformed("pre-tokenizer expression", error);
        let mut steps = Vec::new();
        for &expression in self.expressions {
            let pattern = SplitPattern::Regex(expression.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(unsupported)?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, true, false,
        )));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }

    /// What happens to the text before cutting.
    pub(crate) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.composed.then_some(NormalizerWrapper::NFC(NFC))
    }
}
