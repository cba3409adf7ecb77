//! Small vocabularies, in every form in which they come.

use std::sync::OnceLock;

use serde_json::{Value, json};
use specdec_text::{GgufVocabulary, Tokenizer};
use tokenizers::{
    AddedToken,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::byte_level::ByteLevel,
};

pub(crate) const TEXTS: &[&str] = &[
    "Speculative decoding drafts tokens and lets the target verify them.",
    "The quick brown fox jumps over the lazy dog; it's 2026, isn't it?",
    "fn main() {\n    let x = vec![1, 22, 333, 4444];\n\tprintln!(\"{x:?}\");\n}\n",
    "  leading spaces,   inner   runs\t\ttabs and trailing   ",
    "Grüße aus Köln, à bientôt, señor — naïve façade…",
    "数据和模型。日本語のテキスト、한국어 텍스트",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇩🇪, e\u{301} composed",
    "\u{0}\u{1b}[31mred\u{1b}[0m \r\n\u{a0}nbsp\u{3000}wide",
    "We'll don't they've I'm you're SHE'LL 1234567890 3.14e-10",
    "{\"key\": [null, true, {\"a\\\"b\": \"c\\\\d\"}]} <b>bold</b> & a<|b",
];

pub(crate) const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub(crate) const IM_START: u32 = 1;
pub(crate) const IM_END: u32 = 2;

/// A byte-level vocabulary of the SmolLM kind, as tokenizer.json: trained, three special tokens first and two
/// user-defined ones last.
pub(crate) fn byte_level_json() -> &'static Value {
    static JSON: OnceLock<Value> = OnceLock::new();
    JSON.get_or_init(|| {
        let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(500)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(SPECIAL.map(|token| AddedToken::from(token, true)).to_vec())
            .build();
        let texts: Vec<String> = TEXTS.iter().flat_map(|&text| [text.to_owned(), text.to_lowercase()]).collect();
        tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), texts.into_iter()).unwrap();
        let thoughts = ["<think>", "</think>"].map(|token| AddedToken::from(token, false).normalized(false));
        tokenizer.add_tokens(thoughts).unwrap();
        let mut json: Value = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
        json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]});
        json["decoder"] = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        json
    })
}

pub(crate) fn bytes(json: &Value) -> Vec<u8> {
    serde_json::to_vec(json).unwrap()
}

pub(crate) fn byte_level() -> Tokenizer {
    Tokenizer::from_bytes(&bytes(byte_level_json())).unwrap()
}

/// The same vocabulary, as a GGUF file has it.
pub(crate) fn byte_level_gguf() -> GgufVocabulary {
    let json = byte_level_json();
    let mut tokens: Vec<(u64, String, i32)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (id.as_u64().unwrap(), text.clone(), 1))
        .collect();
    for token in json["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap();
        let kind = if token["special"].as_bool().unwrap() {
            3
        } else {
            4
        };
        tokens.retain(|&(other, ..)| other != id);
        tokens.push((id, token["content"].as_str().unwrap().to_owned(), kind));
    }
    tokens.sort();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|pair| {
        format!(
            "{} {}",
            pair[0].as_str().unwrap(),
            pair[1].as_str().unwrap()
        )
    });
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("smollm".to_owned()),
        token_types: Some(tokens.iter().map(|&(.., kind)| kind).collect()),
        tokens: tokens.into_iter().map(|(_, text, _)| text).collect(),
        merges: Some(merges.collect()),
        bos_id: Some(IM_START),
        eos_id: Some(IM_END),
        add_bos: Some(false),
        ..GgufVocabulary::default()
    }
}

/// A SentencePiece vocabulary: unknown, begin, end, the 256 bytes, then pieces, the better the earlier.
pub(crate) fn sentence_piece_gguf() -> GgufVocabulary {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), 6);
    let pieces = [
        "▁t",
        "he",
        "in",
        "▁a",
        "re",
        "▁the",
        "er",
        "on",
        "▁s",
        "at",
        "▁▁",
        "en",
        "ing",
        "▁d",
        "ec",
        "od",
        "▁dec",
        "▁decod",
        "▁decoding",
        "to",
        "ken",
        "token",
        "▁token",
        "tokens",
        "▁tokens",
        "ab",
        "bc",
        "abc",
        "aa",
        "aaa",
        "▁▁▁▁",
        "it",
        "▁it",
        "'s",
        "▁sp",
        "▁spec",
        "ul",
        "ulat",
        "ive",
        "▁le",
        "▁let",
        "ö",
        "ßé",
    ];
    tokens.extend(pieces.map(str::to_owned));
    let mut letters: Vec<char> = "▁abcdefghijklmnopqrstuvwxyz'.,!?ABCäßé数\n"
        .chars()
        .collect();
    letters.sort_unstable();
    tokens.extend(letters.iter().map(char::to_string));
    types.resize(tokens.len(), 1);
    let scores = (0..tokens.len())
        .map(|index| -(index.saturating_sub(259) as f32))
        .collect();
    tokens.push("<|tool|>".to_owned());
    types.push(4);
    let mut scores: Vec<f32> = scores;
    scores.push(0.0);
    GgufVocabulary {
        model: "llama".to_owned(),
        tokens,
        token_types: Some(types),
        scores: Some(scores),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        ..GgufVocabulary::default()
    }
}

pub(crate) fn sentence_piece() -> Tokenizer {
    Tokenizer::from_gguf(&sentence_piece_gguf()).unwrap()
}

/// Two hundred strings of many kinds.
pub(crate) fn strings() -> Vec<String> {
    let mut strings: Vec<String> = Vec::new();
    for (index, text) in TEXTS.iter().enumerate() {
        let half: String = text.chars().skip(index + 3).collect();
        let next = TEXTS[(index + 1) % TEXTS.len()];
        strings.extend([
            (*text).to_owned(),
            format!(" {text}"),
            format!("{text}\n\n{text}"),
            text.to_uppercase(),
            text.to_lowercase(),
            half.clone(),
            format!("{half}<|im_end|>"),
            format!("<|im_start|>user\n{text}<|im_end|>\n"),
            format!("<think>{half}</think>\n\n{next}"),
            text.chars().rev().collect(),
            format!("{half}{next}"),
            format!("{text}    {next}"),
            text.split(' ').collect(),
            text.replace(' ', "  "),
            format!("\t{half}\r\n"),
            text.chars().step_by(2).collect(),
            text.chars().step_by(3).collect(),
            format!("{index}{text}{index}{index}"),
            format!("<|im_end|{half}"),
            format!("<|im_start|><|im_end|>{half}<|endoftext|>"),
        ]);
    }
    assert_eq!(strings.len(), 200);
    strings
}

/// The SentencePiece vocabulary as the tokenizer.json that converters make of it: every way to join two pieces into a
/// third is a merge, better pieces first.
pub(crate) fn sentence_piece_json() -> Value {
    let vocabulary = sentence_piece_gguf();
    let (kinds, scores) = (vocabulary.token_types.unwrap(), vocabulary.scores.unwrap());
    let pieces: Vec<(usize, &String)> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| matches!(kinds[id], 1 | 4))
        .collect();
    let mut merges: Vec<(usize, usize, usize)> = Vec::new();
    for &(left, a) in &pieces {
        for &(right, b) in &pieces {
            let whole = format!("{a}{b}");
            merges.extend(
                pieces
                    .iter()
                    .find(|(_, piece)| **piece == whole)
                    .map(|&(id, _)| (id, left, right)),
            );
        }
    }
    merges.sort_by(|x, y| scores[y.0].total_cmp(&scores[x.0]).then(x.cmp(y)));
    let text = |id: usize| vocabulary.tokens[id].as_str();
    let merges: Vec<Value> = merges
        .iter()
        .map(|&(_, left, right)| json!([text(left), text(right)]))
        .collect();
    let vocab: serde_json::Map<String, Value> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .map(|(id, text)| (text.clone(), id.into()))
        .collect();
    let added: Vec<Value> = [0, 1, 2, vocabulary.tokens.len() - 1]
        .iter()
        .map(|&id| {
            json!({"id": id, "content": text(id), "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": id < 3})
        })
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges},
    })
}
