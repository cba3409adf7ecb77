use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::{Value, json};
use specdec_text::{GgufVocabulary, TextError, Tokenizer};

use crate::fixtures::{byte_level, byte_level_gguf, byte_level_json, bytes};

/// A folder of its own for each test, gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let path = std::env::temp_dir().join(format!("specdec-text-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for (file, content) in files {
            fs::write(path.join(file), content).unwrap();
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ids(tokenizer: &Tokenizer) -> Vec<u32> {
    tokenizer.eos_ids().iter().copied().collect()
}

#[test]
fn b6_end_tokens_come_from_every_file_of_a_folder() {
    let json = bytes(byte_level_json());
    let folder = Folder::new(
        "ends",
        &[
            ("tokenizer.json", &json),
            ("generation_config.json", br#"{"eos_token_id": [30, 31]}"#),
            ("config.json", br#"{"eos_token_id": 32, "bos_token_id": 0}"#),
            ("tokenizer_config.json", r#"{"eos_token": {"content": "</think>"}, "bos_token": "<|im_start|>", "add_bos_token": true, "chat_template": "hello"}"#.as_bytes()),
        ],
    );
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    let think = tokenizer.token_id("</think>").unwrap();
    // 0 and 2 by their names.
    assert_eq!(ids(&tokenizer), [0, 2, 30, 31, 32, think]);
    assert!(
        tokenizer.is_special(think),
        "an end token is special, whatever its flag"
    );
    assert_eq!(tokenizer.bos_id(), Some(1));
    assert_eq!(tokenizer.chat_template(), Some("hello"));
    assert_eq!(tokenizer.encode_prompt("x").unwrap()[0], 1);
    assert_eq!(
        tokenizer
            .encode_prompt("<|im_start|>x")
            .unwrap()
            .iter()
            .filter(|&&id| id == 1)
            .count(),
        1
    );
}

#[test]
fn b6_end_tokens_come_from_gguf_metadata_and_well_known_names() {
    let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
        eot_id: Some(40),
        eom_id: Some(41),
        ..byte_level_gguf()
    })
    .unwrap();
    assert_eq!(ids(&tokenizer), [0, 2, 40, 41]);
    assert_eq!(ids(&byte_level()), [0, 2]);
}

#[test]
fn b6_names_that_may_be_text_count_where_they_are_special() {
    let with = |name: &str, kind: i32| {
        let mut vocabulary = byte_level_gguf();
        vocabulary.tokens.push(name.to_owned());
        vocabulary.token_types.as_mut().unwrap().push(kind);
        let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
        tokenizer
            .eos_ids()
            .contains(&(tokenizer.vocab_size() as u32 - 1))
    };
    assert!(with("</s>", 3));
    assert!(!with("</s>", 4), "an HTML tag of some vocabularies");
    assert!(with("<end_of_turn>", 4));
    assert!(with("<|end|>", 3));
    let mut harmony = byte_level_gguf();
    harmony
        .tokens
        .extend(["<|end|>".to_owned(), "<|return|>".to_owned()]);
    harmony.token_types.as_mut().unwrap().extend([3, 3]);
    let last = harmony.tokens.len() as u32 - 1;
    assert_eq!(ids(&Tokenizer::from_gguf(&harmony).unwrap()), [0, 2, last]);
}

#[test]
fn the_post_processor_tells_whether_a_begin_token_is_added() {
    let mut json = byte_level_json().clone();
    json["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}}});
    let tokenizer = Tokenizer::from_bytes(&bytes(&json)).unwrap();
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.add_bos(), tokenizer.add_eos()),
        (Some(1), true, false)
    );
    assert!(!byte_level().add_bos());
    let json = bytes(&json);
    let config = br#"{"bos_token": "<|im_start|>", "add_bos_token": false}"#;
    let folder = Folder::new(
        "post",
        &[("tokenizer.json", &json), ("tokenizer_config.json", config)],
    );
    assert!(
        !Tokenizer::from_folder(&folder.0).unwrap().add_bos(),
        "the config has the last word"
    );
}

#[test]
fn templates_come_from_the_config_as_one_or_several_or_from_their_own_file() {
    let json = bytes(byte_level_json());
    let config = json!({"chat_template": [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]});
    let config = bytes(&config);
    let files: [(&str, &[u8]); 2] = [
        ("tokenizer.json", &json),
        ("tokenizer_config.json", &config),
    ];
    let folder = Folder::new("named", &files);
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(
        (
            tokenizer.chat_template(),
            tokenizer.chat_template_named("tool_use")
        ),
        (Some("one"), Some("two"))
    );
    fs::write(folder.0.join("chat_template.jinja"), "three").unwrap();
    fs::create_dir(folder.0.join("additional_chat_templates")).unwrap();
    fs::write(folder.0.join("additional_chat_templates/rag.jinja"), "four").unwrap();
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(
        (
            tokenizer.chat_template(),
            tokenizer.chat_template_named("rag")
        ),
        (Some("three"), Some("four"))
    );
}

#[test]
fn wrong_folders_are_errors_that_name_the_file() {
    let empty = Folder::new("empty", &[]);
    assert!(matches!(
        Tokenizer::from_folder(&empty.0),
        Err(TextError::Read { .. })
    ));
    let other = Folder::new("other", &[("tokenizer.model", b"x")]);
    assert!(
        Tokenizer::from_folder(&other.0)
            .unwrap_err()
            .to_string()
            .contains("tokenizer.model")
    );
    let json = bytes(byte_level_json());
    for file in [
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    ] {
        let broken = Folder::new(
            &format!("broken-{file}"),
            &[("tokenizer.json", &json), (file, b"{")],
        );
        assert!(
            Tokenizer::from_folder(&broken.0)
                .unwrap_err()
                .to_string()
                .contains(file)
        );
    }
}

#[test]
fn a_config_may_name_an_end_token_that_is_an_ordinary_word() {
    let mut json = byte_level_json().clone();
    let added: Vec<Value> = json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|token| token["content"] != "<|im_end|>")
        .cloned()
        .collect();
    json["added_tokens"] = added.into();
    let json = bytes(&json);
    let folder = Folder::new(
        "word",
        &[
            ("tokenizer.json", &json),
            ("tokenizer_config.json", br#"{"eos_token": "<|im_end|>"}"#),
        ],
    );
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.eos_ids(), &BTreeSet::from([0, 2]));
    assert_eq!(
        tokenizer
            .encode("<|im_end|>", specdec_text::Special::Parse)
            .unwrap(),
        [2]
    );
}
