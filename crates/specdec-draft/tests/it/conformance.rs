//! Both drafters through the suites that every drafter has to pass.

use burn::prelude::*;
use specdec_core::TargetModel;
use specdec_draft::{ModelDrafter, NgramDrafter};
use specdec_ragged::SlotCache;
use specdec_testkit::{HashLm, conformance};
use std::sync::Arc;

fn hash_lm() -> Arc<dyn TargetModel> {
    Arc::new(HashLm::new(20, &Device::flex()))
}

fn model_drafter(model: Arc<dyn TargetModel>) -> ModelDrafter {
    let cache = SlotCache::new(model.spec()).expect("a cache");
    ModelDrafter::new(model, cache)
}

#[test]
fn the_ngram_drafter_keeps_every_promise() {
    let report = conformance::drafter(&hash_lm(), NgramDrafter::default);
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn the_model_drafter_keeps_every_promise() {
    let draft = || HashLm::new(20, &Device::flex()).with_mistakes(0.4, 3);
    let report = conformance::drafter(&hash_lm(), || model_drafter(Arc::new(draft())));
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

/// The acceptance plan (the test that sees the hole after full acceptance, a cache that keeps what
/// was rejected, rounds without drafts, and mixed-up rows): every round of every row accepts exactly
/// what the draft model's known mistakes allow.
#[test]
fn the_model_drafter_accepts_exactly_what_its_model_allows() {
    let report = conformance::model_drafter(&Device::flex(), model_drafter);
    report.unwrap_or_else(|violation| panic!("{violation}"));
}
