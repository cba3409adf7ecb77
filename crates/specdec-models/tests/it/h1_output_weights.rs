//! Output weights present or absent, tied or not, in both formats.

use crate::{
    dense_attend::logits_of,
    reference::{distance, logits, plain_frequencies},
    tiny::{self, Tiny, device},
};
use safetensors::Dtype;
use specdec_models::{LoadError, LoadOptions, LoadedModel, Result, load_folder, load_gguf};

const TOKENS: [u32; 5] = [3, 80, 9, 9, 41];

fn from_folder(tiny: &Tiny) -> Result<LoadedModel> {
    let dir = tempfile::tempdir().unwrap();
    tiny.write_folder(dir.path(), Dtype::F32);
    load_folder(dir.path(), &LoadOptions::new(), &device())
}

fn from_gguf(tiny: &Tiny) -> Result<LoadedModel> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    tiny.gguf_f32().write(&path).unwrap();
    load_gguf(&path, &LoadOptions::new(), &device())
}

/// A model with an output map of its own, in the file at least.
fn with_output(tied: bool) -> Tiny {
    let mut tiny = tiny::llama();
    tiny.add(99, "lm_head.weight", &[96, 32]);
    tiny.config.tied = tied;
    tiny
}

fn without_output(tied: bool) -> Tiny {
    let mut tiny = tiny::llama();
    tiny.config.tied = tied;
    tiny
}

#[track_caller]
fn assert_computes(loaded: &LoadedModel, expected: &Tiny) {
    let expected = logits(expected, &plain_frequencies(expected), &TOKENS);
    let far = distance(&logits_of(&loaded.model, &TOKENS), &expected);
    assert!(far < 1e-4, "{far}");
}

#[test]
fn h1_absent_and_tied_uses_the_embedding() {
    let tiny = without_output(true);
    assert_computes(&from_folder(&tiny).unwrap(), &tiny);
    assert_computes(&from_gguf(&tiny).unwrap(), &tiny);
}

#[test]
fn h1_present_and_untied_uses_the_output_weights() {
    let tiny = with_output(false);
    assert_computes(&from_folder(&tiny).unwrap(), &tiny);
    assert_computes(&from_gguf(&tiny).unwrap(), &tiny);
}

#[test]
fn h1_present_but_tied_uses_the_embedding_and_says_so() {
    let loaded = from_folder(&with_output(true)).unwrap();
    assert_computes(&loaded, &without_output(true));
    assert_eq!(loaded.report.unused, ["lm_head.weight"]);
    // A GGUF file does not say "tied"; weights that are there are used.
    let loaded = from_gguf(&with_output(true)).unwrap();
    assert_computes(&loaded, &with_output(false));
    assert!(loaded.report.unused.is_empty());
}

#[test]
fn h1_absent_but_untied_names_the_tensor() {
    let error = from_folder(&without_output(false)).unwrap_err();
    assert!(matches!(error, LoadError::TensorMissing { name } if name == "lm_head.weight"));
    // In a GGUF file an absent output map is how "tied" is written.
    assert_computes(
        &from_gguf(&without_output(false)).unwrap(),
        &without_output(true),
    );
}
