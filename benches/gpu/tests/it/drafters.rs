//! Every drafter and every way to batch, over transformers: the tokens of plain decoding.

use crate::Check;
use crate::margin::{plain, same};
use crate::world::{Target, finish, memory, prompts, slots, transformer};
use burn::prelude::*;
use specdec_core::{Completion, Decoder, DecoderBuilder, FirstCome, FixedLength, Request, Token};
use specdec_draft::{ModelDrafter, NgramDrafter};
use specdec_lilicorr::{
    DFlashDrafter, DraftConfig, DraftModel, HeadConfig, LayerKind, LiLiCorrDrafter,
};
use specdec_ragged::Strategy;
use specdec_rakv::{Adaptive, CalibrationOptions, calibrate};
use specdec_testkit::weights::Family;
use specdec_vegas::{Vegas, VegasConfig, VegasDrafter};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("ngram_llama", |device| ngram(device, Family::Llama)),
    ("ngram_qwen2", |device| ngram(device, Family::Qwen2)),
    ("ngram_qwen3", |device| ngram(device, Family::Qwen3)),
    ("a_twin_as_draft_model", |device| draft_model(device, 5)),
    ("a_stranger_as_draft_model", |device| draft_model(device, 6)),
    ("slots", |device| strategy(device, Strategy::Slots)),
    ("eqspec", |device| strategy(device, Strategy::EqSpec)),
    ("eqspec_refill", |device| {
        strategy(device, Strategy::EqSpecRefill)
    }),
    ("exspec", |device| {
        strategy(device, Strategy::ExSpec { window: 4 })
    }),
    ("vegas", vegas),
    ("dflash", dflash),
    ("lilicorr", lilicorr),
    ("adaptive_lengths", adaptive_lengths),
];

const NEW: usize = 16;

fn texts() -> Vec<Vec<Token>> {
    prompts(288)
}

/// Decodes the texts together, and compares each with itself alone. Returns the results.
fn check(target: &Target, builder: DecoderBuilder, what: &str) -> Vec<Completion> {
    let decoder = builder.prefill_chunk(16).build().expect("the parts fit");
    let requests = texts()
        .into_iter()
        .map(|text| Request::new(text).max_new_tokens(NEW));
    let done = finish(decoder, requests);
    for (want, got) in plain(target, &texts(), NEW).iter().zip(&done) {
        same(want, &got.tokens, &format!("{what}, {}", got.seq));
    }
    let drafted: u64 = done.iter().map(|done| done.stats.drafted).sum();
    assert!(drafted > 0, "{what}: nothing was drafted");
    done
}

fn over_slots(target: &Target) -> DecoderBuilder {
    Decoder::builder(target.clone())
        .cache(slots(target.spec()))
        .scheduler(FirstCome { max_rows: 3 })
        .controller(FixedLength(5))
}

fn ngram(device: &Device, family: Family) {
    let target = transformer(family, 5, device);
    check(
        &target,
        over_slots(&target).drafter(NgramDrafter::default()),
        "n-gram",
    );
}

/// A copy of the target is right but for ties; a stranger hardly ever.
fn draft_model(device: &Device, seed: u64) {
    let target = transformer(Family::Llama, 5, device);
    let draft = transformer(Family::Llama, seed, device);
    let drafter = ModelDrafter::new(draft.clone(), slots(draft.spec()));
    let done = check(&target, over_slots(&target).drafter(drafter), "draft model");
    let sum = |of: fn(&Completion) -> u64| done.iter().map(of).sum::<u64>();
    let (drafted, accepted) = (sum(|d| d.stats.drafted), sum(|d| d.stats.accepted));
    let twin = seed == 5;
    assert_eq!(
        twin,
        accepted * 10 > drafted * 9,
        "{accepted} of {drafted} accepted"
    );
}

fn strategy(device: &Device, strategy: Strategy) {
    let target = transformer(Family::Qwen3, 5, device);
    let parts = strategy
        .parts(target.spec(), 3, &memory())
        .expect("good options");
    let draft_cache = strategy
        .cache(target.spec(), &memory())
        .expect("good options");
    let builder = Decoder::builder(target.clone())
        .cache(parts.cache)
        .scheduler(parts.scheduler)
        .controller(FixedLength(4))
        .drafter(ModelDrafter::new(
            transformer(Family::Qwen3, 7, device),
            draft_cache,
        ));
    check(&target, builder, &strategy.to_string());
}

/// The target drafts for itself with few keys and with all.
fn vegas(device: &Device) {
    let target = transformer(Family::Llama, 5, device);
    for ratio in [0.1, 1.0] {
        let config = VegasConfig {
            ratio,
            min: 2,
            ..VegasConfig::paper()
        };
        let cache = Vegas::new(
            slots(target.spec()),
            target.spec(),
            config.check().expect("a good config"),
        );
        let builder = Decoder::builder(target.clone())
            .cache(cache)
            .controller(FixedLength(4))
            .drafter(VegasDrafter::new());
        let done = check(&target, builder, &format!("vegas {ratio}"));
        let rate = |d: &Completion| d.stats.acceptance_rate().unwrap_or(1.0);
        // All keys: nearly all drafts are accepted. (Ties may part draft and verify passes.)
        let all = done.iter().all(|d| rate(d) > 0.9);
        assert!(
            all || ratio < 1.0,
            "{:?}",
            done.iter().map(rate).collect::<Vec<_>>()
        );
    }
}

/// A block drafter with random weights for a target.
pub(crate) fn block_model(target: &Target, device: &Device) -> DraftModel {
    let spec = target.spec();
    let config = DraftConfig {
        hidden: spec.hidden,
        layers: vec![LayerKind::Full, LayerKind::Sliding(12)],
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        intermediate: 40,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        vocab: spec.vocab,
        target_layers: spec.layers,
        taps: vec![0, spec.layers - 1],
        mask_token: spec.vocab as Token - 1,
        block_size: 6,
        draft_vocab: None,
        head: Some(HeadConfig {
            candidates: 4,
            layers: 1,
            heads: 2,
            ..HeadConfig::new(16, 12)
        }),
    };
    DraftModel::with_deviation(&config, 3, 0.2, device).expect("a good config")
}

fn dflash(device: &Device) {
    let target = transformer(Family::Qwen3, 5, device);
    let model = block_model(&target, device).without_head();
    let drafter = DFlashDrafter::new(model, &*target).expect("it fits");
    check(&target, over_slots(&target).drafter(drafter), "dflash");
}

fn lilicorr(device: &Device) {
    let target = transformer(Family::Qwen3, 5, device);
    let drafter = LiLiCorrDrafter::new(block_model(&target, device), &*target).expect("it fits");
    let got = check(&target, over_slots(&target).drafter(drafter), "lilicorr");
    // The same weights from the same seed draft the same on the CPU, so they are accepted alike.
    let cpu = Device::flex();
    let target = transformer(Family::Qwen3, 5, &cpu);
    let drafter = LiLiCorrDrafter::new(block_model(&target, &cpu), &*target).expect("it fits");
    let want = check(
        &target,
        over_slots(&target).drafter(drafter),
        "lilicorr on the CPU",
    );
    let accepted = |done: &[Completion]| done.iter().map(|d| d.stats.accepted).sum::<u64>();
    assert!(
        accepted(&got).abs_diff(accepted(&want)) <= 2,
        "{} and {}",
        accepted(&got),
        accepted(&want)
    );
}

/// Costs measured on the device, lengths planned from them.
fn adaptive_lengths(device: &Device) {
    let target = transformer(Family::Llama, 5, device);
    let mut cache = slots(target.spec());
    let mut drafter = NgramDrafter::default();
    let options = CalibrationOptions {
        contexts: vec![16],
        lengths: vec![0, 2, 4],
        warm_up: 1,
        rounds: 3,
        chunk: 16,
        ..CalibrationOptions::default()
    };
    let calibrated =
        calibrate(&*target, &mut cache, &mut [&mut drafter], &options).expect("it measures");
    let controller = Adaptive::new(calibrated.table);
    let report = controller.clone();
    let builder = Decoder::builder(target.clone())
        .cache(cache)
        .drafter(drafter)
        .controller(controller)
        .scheduler(FirstCome { max_rows: 3 });
    let decoder = builder.prefill_chunk(16).build().expect("the parts fit");
    let requests = texts()
        .into_iter()
        .map(|text| Request::new(text).max_new_tokens(NEW));
    let done = finish(decoder, requests);
    for (want, got) in plain(&target, &texts(), NEW).iter().zip(&done) {
        same(want, &got.tokens, &format!("adaptive, {}", got.seq));
    }
    assert!(report.report().spent > 0.0);
}
