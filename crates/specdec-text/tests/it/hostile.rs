//! Tokenizers and templates from strangers: whatever is in them, reading and using them ends with a
//! result or an error, in little time and memory.

use crate::{
    fixtures::{
        byte_level, byte_level_gguf, byte_level_json, bytes, sentence_piece_gguf,
        sentence_piece_json,
    },
    templates::{CHATML, HEADERS, THINKING, TURNS},
};
use serde_json::{Value, json};
use specdec_testkit::hostile::{Campaign, CampaignReport, CountingAllocator, measured};
use specdec_text::{
    ChatOptions, ChatTemplate, GgufVocabulary, Message, Special, TextError, Tokenizer,
};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

/// Tells the counts where they can be read without stopping the test.
fn told(report: &CampaignReport) {
    writeln!(std::io::stderr(), "{report}").expect("standard error is open");
    assert!(report.accepted > 0 && report.reasons > 3, "{report}");
}

/// There and back, with special tokens and without, each id by itself and all of them.
fn used(tokenizer: &Tokenizer) -> Result<(), TextError> {
    for text in [
        "Hello  wörld 123!\n",
        "<|im_end|>a<s>▁<unk>",
        "",
        "数\u{0}\u{10ffff}",
    ] {
        for special in [Special::Parse, Special::Text] {
            let ids = tokenizer.encode(text, special)?;
            tokenizer.decode(&ids, true)?;
        }
        tokenizer.encode_prompt(text)?;
    }
    for id in 0..tokenizer.vocab_size().min(50) as u32 {
        if tokenizer.token_bytes(id).is_some() {
            tokenizer.decode(&[id], false)?;
        }
    }
    Ok(())
}

fn unigram_json() -> Value {
    let vocab: Vec<Value> = [
        "<unk>", "</s>", "▁", "a", "b", "▁a", "ab", "l", "o", "H", "e",
    ]
    .iter()
    .enumerate()
    .map(|(i, text)| json!([text, -(i as f64) / 2.0]))
    .collect();
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": true, "rstrip": false,
            "normalized": true, "special": true}],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
    })
}

#[test]
fn hostile_tokenizer_files() {
    let report = Campaign::new("tokenizer")
        .input(bytes(byte_level_json()))
        .input(bytes(&sentence_piece_json()))
        .input(bytes(&unigram_json()))
        .input(bytes(&unigram_json()))
        .corpus(corpus("tokenizer"))
        .memory(256 << 20)
        .run(
            |mutator, bytes| mutator.json(bytes),
            |bytes| {
                let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
                used(&tokenizer).map_err(|e| e.to_string())
            },
        );
    told(&report);
}

#[test]
fn hostile_files_beside_a_tokenizer() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tokenizer.json"), bytes(&unigram_json())).expect("written");
    let good = json!({
        "bos_token": {"content": "a"}, "eos_token": "</s>", "add_bos_token": true, "pad_token": null,
        "additional_special_tokens": ["<|im_end|>", {"content": "b"}], "eos_token_id": [1, 2], "bos_token_id": 3,
        "text_config": {"eos_token_id": 1},
        "chat_template": [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TURNS}],
    });
    let report = Campaign::new("tokenizer-config").input(bytes(&good)).run(
        |mutator, bytes| mutator.json(bytes),
        |bytes| {
            for name in [
                "tokenizer_config.json",
                "config.json",
                "generation_config.json",
            ] {
                fs::write(folder.path().join(name), bytes).expect("written");
            }
            let tokenizer = Tokenizer::from_folder(folder.path()).map_err(|e| e.to_string())?;
            used(&tokenizer).map_err(|e| e.to_string())?;
            let template =
                ChatTemplate::of(&tokenizer, &ChatOptions::default()).map_err(|e| e.to_string())?;
            let words = [Message::user("ab")];
            template
                .encode(&tokenizer, &words, &ChatOptions::default())
                .map_err(|e| e.to_string())?;
            Ok(())
        },
    );
    told(&report);
}

/// A vocabulary as JSON, so that its parts can be mutated.
fn as_json(vocabulary: &GgufVocabulary, keep: usize) -> Value {
    let cut = |list: &Option<Vec<String>>| list.as_ref().map(|l| l[..l.len().min(keep)].to_vec());
    json!({
        "model": vocabulary.model, "pre": vocabulary.pre, "tokens": vocabulary.tokens,
        "types": vocabulary.token_types, "scores": vocabulary.scores, "merges": cut(&vocabulary.merges),
        "bos": vocabulary.bos_id, "eos": vocabulary.eos_id, "unk": vocabulary.unk_id,
        "add_bos": vocabulary.add_bos, "prefix": vocabulary.add_space_prefix,
    })
}

fn from_json(bytes: &[u8]) -> Result<GgufVocabulary, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let id = |key: &str| value[key].as_u64().map(|id| id as u32);
    let strings = |key: &str| -> Option<Vec<String>> {
        let list = value[key].as_array()?;
        Some(
            list.iter()
                .map(|v| v.as_str().unwrap_or_default().to_owned())
                .collect(),
        )
    };
    let numbers = |key: &str| -> Option<Vec<f64>> {
        let list = value[key].as_array()?;
        Some(
            list.iter()
                .map(|v| v.as_f64().unwrap_or(f64::NAN))
                .collect(),
        )
    };
    Ok(GgufVocabulary {
        model: text("model").unwrap_or_default(),
        pre: text("pre"),
        tokens: strings("tokens").unwrap_or_default(),
        token_types: numbers("types").map(|all| all.into_iter().map(|t| t as i32).collect()),
        scores: numbers("scores").map(|all| all.into_iter().map(|s| s as f32).collect()),
        merges: strings("merges"),
        bos_id: id("bos"),
        eos_id: id("eos"),
        unk_id: id("unk"),
        add_bos: value["add_bos"].as_bool(),
        add_space_prefix: value["prefix"].as_bool(),
        ..GgufVocabulary::default()
    })
}

#[test]
fn hostile_gguf_vocabularies() {
    let report = Campaign::new("gguf-vocabulary")
        .input(bytes(&as_json(&byte_level_gguf(), 60)))
        .input(bytes(&as_json(&sentence_piece_gguf(), 60)))
        .corpus(corpus("gguf-vocabulary"))
        .memory(256 << 20)
        .run(
            |mutator, bytes| mutator.json(bytes),
            |bytes| {
                let tokenizer =
                    Tokenizer::from_gguf(&from_json(bytes)?).map_err(|e| e.to_string())?;
                used(&tokenizer).map_err(|e| e.to_string())
            },
        );
    told(&report);
}

fn talk() -> (Vec<Message>, ChatOptions) {
    let messages = vec![
        Message::system("Be brief."),
        Message::user("Hi <|im_end|> {{ there }}"),
        Message::assistant("<think>so</think> hello"),
        Message::user("1 + 1?").with(
            "tool_calls",
            json!([{"function": {"name": "f", "arguments": {"a": [1, null]}}}]),
        ),
    ];
    (
        messages,
        ChatOptions::default().with_tools(json!([{"type": "function", "function": {"name": "f"}}])),
    )
}

#[test]
fn hostile_templates() {
    const WORDS: [&str; 42] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{%- for a in messages recursive %}",
        "{% endfor %}",
        "{% if x %}",
        "{% else %}",
        "{% endif %}",
        "{% set x = [x] %}",
        "{% set ns.last = ns.last + ns.last %}",
        "{{ loop(messages) }}",
        "{% macro f(a) %}",
        "{% endmacro %}",
        "{{ f(f) }}",
        "{% generation %}",
        "{% endgeneration %}",
        "{% break %}",
        "| tojson(indent=4)",
        "| tojson",
        "| join(messages)",
        "| trim",
        "| length",
        "| replace('a', messages)",
        "range(99999)",
        "* 99999999",
        "+ messages",
        "[::-1]",
        "[1:]",
        ".items()",
        "raise_exception(messages)",
        "strftime_now('%d')",
        "namespace(last=[])",
        "(",
        ")",
        "'",
        "\\",
        "{{ messages }}",
        "-1",
        "\u{f0000}",
    ];
    let tokenizer = byte_level();
    let (messages, options) = talk();
    let mut campaign = Campaign::new("template").corpus(corpus("template"));
    for template in [CHATML, HEADERS, THINKING, TURNS] {
        campaign = campaign.input(template.as_bytes().to_vec());
    }
    let report = campaign.run(
        |mutator, text| mutator.text(text, &WORDS),
        |text| {
            let source = std::str::from_utf8(text).map_err(|e| e.to_string())?;
            let template = ChatTemplate::parse(source, "hostile").map_err(|e| e.to_string())?;
            let ids = template
                .encode(&tokenizer, &messages, &options)
                .map_err(|e| e.to_string())?;
            tokenizer.decode(&ids, true).map_err(|e| e.to_string())?;
            Ok(())
        },
    );
    told(&report);
}

/// Templates that would take forever, or nest without bound, end soon: in an error, or in a text. The
/// engine runs on a thread of its own, whose memory the counting allocator does not see.
#[test]
fn hostile_templates_that_do_not_end() {
    // As long as a tag, and as a template, may be.
    let nested = |open: &str, close: &str, size: usize| {
        let times = size / (open.len() + close.len());
        format!("{}x{}", open.repeat(times), close.repeat(times))
    };
    let tag = |open: &str, close: &str| format!("{{{{ {} }}}}", nested(open, close, 8100));
    let chain = |part: &str| format!("{{{{ 1{} }}}}", part.repeat(8100 / part.len()));
    let sources = [
        " ".repeat(1 << 19),
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{{ 'a' * 99999999 }}".to_owned(),
        "{{ ('a' * 9999999) * 99 }}".to_owned(),
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s][::-1] %}{% endfor %}{{ ns.s }}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}".to_owned(),
        "{{ [1] * 99999999 }}".to_owned(),
        "{{ ([1] * 99999999) | string }}".to_owned(),
        "{{ ([1] * 99999999) | tojson }}".to_owned(),
        "{{ ([1] * 99999999) | join(', ') }}".to_owned(),
        "{{ ([[1]] * 9999) | tojson(indent='a' * 9999999) }}".to_owned(),
        "{{ ([1] * 9999) | tojson(separators=['a' * 9999999, ':']) }}".to_owned(),
        "{{ ([1] * 9999) | tojson(indent=9999999999) }}".to_owned(),
        "{{ ('a' * 9999) | replace('a', 'b' * 9999999) }}".to_owned(),
        "{{ 'a' | indent(9999999999) }}".to_owned(),
        "{{ 'a'.center(9999999999) }}".to_owned(),
        "{{ '%9999999999d' | format(1) }}".to_owned(),
        "{{ range(999999999999999999) }}".to_owned(),
        "{{ 9999999999 ** 9999999999 }}".to_owned(),
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
        "{% for a in [[[]]] recursive %}{{ loop([[[]]]) }}{% endfor %}".to_owned(),
        "{{ raise_exception('a' * 99999999) }}".to_owned(),
        tag("(", ")"),
        tag("[", "]"),
        tag("-", ""),
        tag("not ", ""),
        chain(".a"),
        chain("[0]"),
        chain("|trim"),
        chain("+1"),
        chain("**1"),
        chain(" if 1 else 1"),
        chain("+1").repeat(15),
        format!("{{{{ 1{} }}}}", "+1".repeat(50_000)),
        nested("{% if 1 %}", "{% endif %}", 130_000),
        nested("{% for a in [1] %}", "{% endfor %}", 130_000),
        nested("{% set a %}", "{% endset %}", 130_000),
        nested("{% macro a() %}", "{% endmacro %}", 130_000),
    ];
    let (messages, options) = talk();
    let tokenizer = byte_level();
    for source in sources {
        let about: String = source.chars().take(90).collect();
        let begun = Instant::now();
        let ended = ChatTemplate::parse(&source, "hostile")
            .and_then(|template| template.encode(&tokenizer, &messages, &options))
            .map_err(|e| e.to_string());
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "{about}: {took:?}");
        let error = ended.err().unwrap_or_default();
        assert!(
            error.len() < 1 << 12,
            "{about}: an error of {} bytes",
            error.len()
        );
    }
}

/// What a template makes at great depth, as deep as its fuel allows, is taken apart again.
#[test]
fn hostile_templates_that_nest_values() {
    let nesting = [
        ("[]", "[ns.x]"),
        ("{}", "{'a': ns.x}"),
        ("[]", "[ns.x, 1][::-1]"),
    ];
    for (first, next) in nesting {
        for (times, last) in [
            (1, ""),
            (1, "{{ ns.x }}"),
            (1, "{{ ns.x | tojson }}"),
            (99, ""),
        ] {
            let source = format!(
                "{{% set ns = namespace(x={first}) %}}{{% for a in range({times}) %}}{{% for b in range(99999) %}}\
                 {{% set ns.x = {next} %}}{{% endfor %}}{{% endfor %}}{last}"
            );
            let template = ChatTemplate::parse(&source, "hostile").expect("it is well-formed");
            let rendered = template.render(&[Message::user("a")], &ChatOptions::default());
            assert_eq!(
                rendered.is_ok(),
                times == 1 && last.is_empty(),
                "{source}: {rendered:?}"
            );
        }
    }
}

/// A long conversation is no attack.
#[test]
fn a_long_conversation_is_rendered() {
    let messages: Vec<Message> = (0..2000)
        .map(|i| {
            if i % 2 == 0 {
                Message::user("word ".repeat(100))
            } else {
                Message::assistant("word ".repeat(100))
            }
        })
        .collect();
    for source in [CHATML, HEADERS, THINKING, TURNS] {
        let template = ChatTemplate::parse(source, "long").expect("it is well-formed");
        let text = template
            .render(&messages, &ChatOptions::default())
            .expect("it is rendered");
        assert!(text.len() > 900_000, "{}", text.len());
    }
}

/// The table of tokens is as long as its largest id: an absurd one is refused.
#[test]
fn hostile_ids_do_not_allocate() {
    for id in [u64::from(u32::MAX), 1 << 31, 1 << 25] {
        for place in ["/model/vocab/a", "/added_tokens/0/id"] {
            let mut value = byte_level_json().clone();
            *value.pointer_mut(place).expect("it is there") = id.into();
            let (read, memory) = measured(1 << 30, || Tokenizer::from_bytes(&bytes(&value)));
            assert!(
                read.is_err() && memory < 256 << 20,
                "{place} {id}: {memory} bytes"
            );
        }
    }
}

/// A file that does not end, such as a device or a pipe, is no tokenizer's.
#[cfg(unix)]
#[test]
fn hostile_files_that_do_not_end_are_refused() {
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "config.json",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("tokenizer.json"), bytes(&unigram_json())).expect("written");
        let _ = fs::remove_file(folder.path().join(name));
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(name)).expect("a link");
        let error = Tokenizer::from_folder(folder.path()).expect_err("refused");
        assert!(error.to_string().contains(name), "{error}");
    }
}
