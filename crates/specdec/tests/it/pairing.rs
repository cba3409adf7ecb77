//! Field case F1: target and draft model must speak of the same tokens.

use crate::tiny_pair::{folder, pair};
use serde_json::Value;
use specdec::{Drafting, Error, Generator, Model, Options, Prompt};
use std::path::{Path, PathBuf};

/// A copy of the draft model whose tokenizer file was changed.
fn changed(name: &str, file: &str, change: impl Fn(&mut Value)) -> PathBuf {
    let to = std::env::temp_dir().join(format!("specdec-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&to).expect("a temporary folder");
    for entry in std::fs::read_dir(folder().join("draft")).expect("the pair is in the repository") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("a file");
        std::fs::copy(&path, to.join(name)).expect("a copy");
    }
    let path = to.join(file);
    let text = std::fs::read_to_string(&path).expect("readable");
    let mut value = serde_json::from_str(&text).expect("good JSON");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("writable");
    to
}

fn refused(draft: &Path) -> String {
    let draft = Model::open(draft).expect("a good model of its own");
    let error = Generator::builder(&pair().0)
        .drafting(Drafting::Model(draft))
        .build()
        .expect_err("the vocabularies differ");
    assert!(
        matches!(error, Error::Decode(specdec::core::Error::Build(_))),
        "{error:?}"
    );
    error.to_string()
}

#[test]
fn f1_two_swapped_tokens_are_found_when_the_pair_is_built() {
    let draft = changed("swapped", "tokenizer.json", |value| {
        let vocab = value["model"]["vocab"]
            .as_object_mut()
            .expect("a vocabulary by token");
        let token = |wanted: u64| {
            let found = vocab.iter().find(|(_, id)| id.as_u64() == Some(wanted));
            found.expect("ids have no holes").0.clone()
        };
        let (a, b) = (token(40), token(41));
        vocab.insert(a, 41.into());
        vocab.insert(b, 40.into());
    });
    let text = refused(&draft);
    assert!(
        text.contains("40"),
        "the first difference is not named: {text}"
    );
    std::fs::remove_dir_all(draft).ok();
}

#[test]
fn f1_another_end_token_is_found_when_the_pair_is_built() {
    let draft = changed("ends", "generation_config.json", |value| {
        value["eos_token_id"] = 5.into();
    });
    let text = refused(&draft);
    assert!(
        text.contains("end"),
        "the first difference is not named: {text}"
    );
    std::fs::remove_dir_all(draft).ok();
}

/// Promise 5: what is wrong with one request is said, and the generator goes on.
#[test]
fn a_bad_request_is_named_and_hurts_nothing() {
    let mut generator = Generator::builder(&pair().0).build().expect("it fits");
    let good = || {
        (
            Prompt::user("Count from one to five."),
            Options::max_new_tokens(40),
        )
    };
    let mut hot = good();
    hot.1.sampling.top_p = Some(1.5);
    let mut stopless = good();
    stopless.1.stop = vec![String::new()];
    let results = generator
        .generate_batch(
            [
                good(),
                (Prompt::Tokens(vec![]), Options::default()),
                (Prompt::Tokens(vec![1_000_000]), Options::default()),
                hot,
                stopless,
                good(),
            ],
            |_, _| {},
        )
        .expect("steps succeed");
    let texts: Vec<String> = results
        .iter()
        .map(|r| match r {
            Ok(done) => done.text.clone(),
            Err(error) => format!("error: {error}"),
        })
        .collect();
    assert_eq!(texts[0], texts[5]);
    assert!(!texts[0].starts_with("error"), "{}", texts[0]);
    for (text, word) in texts[1..5]
        .iter()
        .zip(["empty", "1000000", "top_p", "stop"])
    {
        assert!(
            text.starts_with("error") && text.contains(word),
            "{word}: {text}"
        );
    }
    let alone = generator.generate(good().0, &good().1).expect("it goes on");
    assert_eq!(alone.text, texts[0]);
}
