use serde_json::json;
use specdec_text::{GgufVocabulary, Special, TextError, Tokenizer};

use crate::fixtures::{
    IM_END, IM_START, byte_level, byte_level_gguf, byte_level_json, bytes, sentence_piece_gguf,
    strings,
};

#[test]
fn g8_one_vocabulary_gives_the_same_ids_from_both_formats() {
    let hub = byte_level();
    let gguf = Tokenizer::from_gguf(&byte_level_gguf()).unwrap();
    for special in [Special::Parse, Special::Text] {
        for text in strings() {
            assert_eq!(
                hub.encode(&text, special).unwrap(),
                gguf.encode(&text, special).unwrap(),
                "{text:?} {special:?}"
            );
        }
    }
}

#[test]
fn g8_the_ids_are_those_of_the_tokenizers_crate() {
    let ours = byte_level();
    let theirs = tokenizers::Tokenizer::from_bytes(bytes(byte_level_json())).unwrap();
    for text in strings() {
        let expected = theirs.encode(text.as_str(), false).unwrap();
        assert_eq!(
            ours.encode(&text, Special::Parse).unwrap(),
            expected.get_ids(),
            "{text:?}"
        );
    }
}

#[test]
fn g8_unsupported_kinds_are_errors_that_name_the_kind() {
    for kind in ["bert", "t5", "rwkv", "plamo2"] {
        let vocabulary = GgufVocabulary {
            model: kind.to_owned(),
            ..byte_level_gguf()
        };
        let error = Tokenizer::from_gguf(&vocabulary).unwrap_err();
        assert!(
            matches!(&error, TextError::Unsupported { kind: named, .. } if named == kind),
            "{error}"
        );
        assert!(error.to_string().contains(kind));
    }
    let vocabulary = GgufVocabulary {
        pre: Some("nobody-knows".to_owned()),
        ..byte_level_gguf()
    };
    assert!(
        Tokenizer::from_gguf(&vocabulary)
            .unwrap_err()
            .to_string()
            .contains("nobody-knows")
    );
    let word_piece = json!({
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": {"[UNK]": 0}},
    });
    assert!(
        Tokenizer::from_bytes(&bytes(&word_piece))
            .unwrap_err()
            .to_string()
            .contains("WordPiece")
    );
    let mut other_decoder = byte_level_json().clone();
    other_decoder["decoder"] =
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": false});
    assert!(
        Tokenizer::from_bytes(&bytes(&other_decoder))
            .unwrap_err()
            .to_string()
            .contains("CTC")
    );
}

#[test]
fn metadata_that_does_not_fit_together_is_an_error_that_names_the_key() {
    let good = byte_level_gguf;
    let spm = sentence_piece_gguf;
    let wrong = [
        (
            GgufVocabulary {
                pre: None,
                ..good()
            },
            "tokenizer.ggml.pre",
        ),
        (
            GgufVocabulary {
                merges: None,
                ..good()
            },
            "tokenizer.ggml.merges",
        ),
        (
            GgufVocabulary {
                tokens: Vec::new(),
                ..good()
            },
            "tokenizer.ggml.tokens",
        ),
        (
            GgufVocabulary {
                token_types: Some(vec![1]),
                ..good()
            },
            "tokenizer.ggml.token_type",
        ),
        (
            GgufVocabulary {
                merges: Some(vec!["alone".to_owned()]),
                ..good()
            },
            "tokenizer.ggml.merges",
        ),
        (
            GgufVocabulary {
                merges: Some(vec![String::new()]),
                ..good()
            },
            "tokenizer.ggml.merges",
        ),
        (
            GgufVocabulary {
                merges: Some(vec!["zzzz qqqq".to_owned()]),
                ..good()
            },
            "tokenizer.ggml.merges",
        ),
        (
            GgufVocabulary {
                eos_id: Some(1_000_000),
                ..good()
            },
            "tokenizer.ggml.eos_token_id",
        ),
        (
            GgufVocabulary {
                scores: None,
                ..spm()
            },
            "tokenizer.ggml.scores",
        ),
        (
            GgufVocabulary {
                scores: Some(vec![0.0]),
                ..spm()
            },
            "tokenizer.ggml.scores",
        ),
        (
            GgufVocabulary {
                unk_id: Some(9_999),
                ..spm()
            },
            "tokenizer.ggml.unknown_token_id",
        ),
    ];
    for (vocabulary, key) in wrong {
        let error = Tokenizer::from_gguf(&vocabulary).unwrap_err();
        assert!(error.to_string().contains(key), "{error} should name {key}");
    }
    assert!(matches!(
        Tokenizer::from_bytes(b"{}"),
        Err(TextError::Malformed { .. })
    ));
    assert!(matches!(
        Tokenizer::from_bytes(b"\xFF"),
        Err(TextError::Malformed { .. })
    ));
    assert!(matches!(
        Tokenizer::from_file("/nowhere/tokenizer.json"),
        Err(TextError::Read { .. })
    ));
}

#[test]
fn a10_text_that_spells_special_tokens_is_as_the_caller_says() {
    let tokenizer = byte_level();
    let text = "a<|im_end|>\n<|im_start|>b<|im_end|>";
    let parsed = tokenizer.encode(text, Special::Parse).unwrap();
    assert_eq!(parsed.iter().filter(|&&id| id == IM_END).count(), 2);
    assert_eq!(parsed.iter().filter(|&&id| id == IM_START).count(), 1);
    assert_eq!(tokenizer.encode_prompt(text).unwrap(), parsed);
    let plain = tokenizer.encode(text, Special::Text).unwrap();
    assert!(!plain.iter().any(|&id| tokenizer.is_special(id)));
    assert_eq!(tokenizer.decode(&plain, false).unwrap(), text);
    // Other added tokens are text like any other.
    let think = tokenizer.token_id("<think>").unwrap();
    assert_eq!(tokenizer.encode("<think>", Special::Text).unwrap(), [think]);
    assert!(!tokenizer.is_special(think));
}

#[test]
fn g6_a_model_with_special_tokens_among_its_words_does_not_write_them() {
    let unigram = json!({
        "added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [
            ["<unk>", 0.0], ["</s>", 0.0], ["▁", -2.0], ["<", -3.0], ["/", -3.0], ["s", -3.0], [">", -3.0], ["▁a", -2.5],
        ]},
    });
    let tokenizer = Tokenizer::from_bytes(&bytes(&unigram)).unwrap();
    assert_eq!(tokenizer.encode("a</s>", Special::Parse).unwrap(), [7, 1]);
    assert_eq!(
        tokenizer.encode("a</s>", Special::Text).unwrap(),
        [7, 3, 4, 5, 6]
    );
    // What the model does not know is its unknown token, which is special and yet no forgery.
    assert_eq!(tokenizer.encode("a x", Special::Text).unwrap(), [7, 2, 0]);
    assert_eq!(tokenizer.decode(&[7, 3, 4, 5, 6], false).unwrap(), "a</s>");
}

#[test]
fn added_tokens_take_their_spaces_and_whole_words_as_the_tokenizers_crate_has_it() {
    let mut json = byte_level_json().clone();
    let next = json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|token| token["id"].as_u64())
        .max()
        .unwrap()
        + 1;
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (offset, (content, single_word, lstrip, rstrip, normalized)) in [
        ("<l>", false, true, false, false),
        ("<r>", false, false, true, false),
        ("word", true, false, false, false),
        ("norm", false, false, false, true),
        ("ord", false, false, false, false),
        ("<<", false, false, false, false),
    ]
    .into_iter()
    .enumerate()
    {
        added.push(
            json!({"id": next + offset as u64, "content": content, "single_word": single_word,
            "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized, "special": offset == 1}),
        );
    }
    json["normalizer"] = json!({"type": "Lowercase"});
    let ours = Tokenizer::from_bytes(&bytes(&json)).unwrap();
    let theirs = tokenizers::Tokenizer::from_bytes(bytes(&json)).unwrap();
    let more = [
        "a  <l>  b",
        "a  <r>  b",
        "<r> <l>",
        "word words word. sword word",
        "NORM enorm Norm",
        "swordy ord word",
        "<l><l> <r>",
        " <<|im_end|> <",
    ];
    for text in strings().iter().map(String::as_str).chain(more) {
        let expected = theirs.encode(text, false).unwrap();
        assert_eq!(
            ours.encode(text, Special::Parse).unwrap(),
            expected.get_ids(),
            "{text:?}"
        );
    }
    assert!(
        !ours
            .encode("a<R>b <r>", Special::Text)
            .unwrap()
            .iter()
            .any(|&id| ours.is_special(id))
    );
}

#[test]
fn unused_entries_are_never_written() {
    let mut vocabulary = byte_level_gguf();
    let merges = vocabulary.merges.as_ref().unwrap().iter();
    let merged = merges
        .map(|merge| merge.replace(' ', ""))
        .find(|merged| merged.bytes().all(|byte| byte.is_ascii_lowercase()))
        .unwrap();
    let place = vocabulary
        .tokens
        .iter()
        .position(|token| *token == merged)
        .unwrap();
    let text = byte_level().decode(&[place as u32], false).unwrap();
    assert!(
        byte_level()
            .encode(&text, Special::Text)
            .unwrap()
            .contains(&(place as u32))
    );
    vocabulary.token_types.as_mut().unwrap()[place] = 5;
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    assert_eq!(tokenizer.encode(&text, Special::Text).unwrap().len(), 2);
    assert_eq!(tokenizer.ids_without_text(), [place as u32]);
}

#[test]
fn known_pre_tokenizers_compile_and_cut_as_their_models_do() {
    let known = [
        "default",
        "gpt-2",
        "mpt",
        "olmo",
        "smollm",
        "command-r",
        "llama-bpe",
        "llama3",
        "dbrx",
        "qwen2",
        "qwen35",
        "deepseek-r1-qwen",
        "seed-coder",
        "gpt-4o",
        "tekken",
        "deepseek-coder",
        "deepseek-v3",
        "falcon",
    ];
    for pre in known {
        let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
            pre: Some(pre.to_owned()),
            ..byte_level_gguf()
        })
        .unwrap();
        for text in strings() {
            let ids = tokenizer.encode(&text, Special::Text).unwrap();
            // Composing is the one thing that may change the text.
            if !text.contains('\u{301}') && !text.contains('e') {
                assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{pre}");
            }
        }
    }
}

#[test]
fn i2_everything_may_cross_and_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Tokenizer>();
    shared::<specdec_text::Detokenizer>();
    shared::<specdec_text::StopMatcher>();
    shared::<specdec_text::StopState>();
    fn sent<T: Send + Sync>() {}
    sent::<specdec_text::ChatTemplate>();
    sent::<TextError>();
    let tokenizer = byte_level();
    let serial: Vec<_> = strings()
        .iter()
        .map(|text| tokenizer.encode(text, Special::Parse).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (text, expected) in strings().iter().zip(&serial) {
                    assert_eq!(tokenizer.encode(text, Special::Parse).unwrap(), *expected);
                }
            });
        }
    });
}
