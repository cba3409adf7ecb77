//! How often a step stops the device to read from it.
//!
//! wgpu writes every mapping of a buffer and every submission to its log. A read submits what is queued
//! and then maps a buffer for each tensor it was asked for: a run of mappings between two submissions is
//! a read.

use crate::Check;
use crate::drafters::block_model;
use crate::world::{Target, hash_lm, prompt, slots, transformer};
use burn::prelude::*;
use log::{Level, LevelFilter, Log, Metadata, Record};
use specdec_core::{Decoder, Drafter, FixedLength, KvCache, Request, SamplingParams};
use specdec_draft::ModelDrafter;
use specdec_lilicorr::{DFlashDrafter, LiLiCorrDrafter};
use specdec_ragged::{SlotOptions, Strategy};
use specdec_rakv::{Identity, PrefixStore, StoreOptions, StoredPrefixes};
use specdec_testkit::scripted::{QForm, SamplingDrafter};
use specdec_testkit::weights::Family;
use specdec_vegas::{Vegas, VegasConfig, VegasDrafter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// They see the reads of the whole process, so nothing may run beside them.
pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("a_read_is_seen", a_read_is_seen),
    ("one_a_step", one_a_step),
    (
        "one_for_each_pass_of_a_drafter",
        one_for_each_pass_of_a_drafter,
    ),
    ("one_to_store_a_prefix", one_to_store_a_prefix),
];

struct Watch;

static WATCH: Watch = Watch;
static READS: AtomicUsize = AtomicUsize::new(0);
static MAPPING: AtomicBool = AtomicBool::new(false);

impl Log for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() == Level::Trace && metadata.target().starts_with("wgpu_core")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        if text.starts_with("Buffer::map_async") && text.contains("Read") {
            if !MAPPING.swap(true, Ordering::SeqCst) {
                READS.fetch_add(1, Ordering::SeqCst);
            }
        } else if text == "Queue::submit" {
            MAPPING.store(false, Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

/// How many reads happen meanwhile.
fn reads<T>(work: impl FnOnce() -> T) -> (usize, T) {
    // It is set once for the process.
    let _ = log::set_logger(&WATCH);
    log::set_max_level(LevelFilter::Trace);
    READS.store(0, Ordering::SeqCst);
    MAPPING.store(false, Ordering::SeqCst);
    let result = work();
    let seen = READS.load(Ordering::SeqCst);
    log::set_max_level(LevelFilter::Off);
    (seen, result)
}

/// The counter counts.
fn a_read_is_seen(device: &Device) {
    let tensor = |n: usize| Tensor::<1>::ones([n], device) * 2.0;
    assert_eq!(reads(|| tensor(3).exp()).0, 0);
    assert_eq!(
        reads(|| tensor(3).into_data().iter::<f32>().sum::<f32>()).0,
        1
    );
    let both = || {
        tensor(3).into_data().iter::<f32>().count() + tensor(5).into_data().iter::<f32>().count()
    };
    assert_eq!(reads(both).0, 2);
    let together = burn::tensor::Transaction::default()
        .register(tensor(3))
        .register(tensor(5));
    assert_eq!(reads(|| together.execute()).0, 1);
}

/// Reads of three steps of a pool of `rows` rows, after its first two rounds.
fn of_steps(
    mut decoder: Decoder,
    vocab: usize,
    rows: usize,
    sampling: &SamplingParams,
) -> Vec<usize> {
    for row in 0..rows {
        let text = prompt(5 + row, vocab);
        let request = Request::new(text)
            .max_new_tokens(30)
            .sampling(sampling.clone());
        decoder.submit(request).expect("a good request");
    }
    while decoder.stats().rounds < 2 * rows as u64 {
        decoder.step().expect("a step");
    }
    let before = decoder.stats().drafted;
    let counts = (0..3)
        .map(|_| reads(|| decoder.step().expect("a step")).0)
        .collect();
    let drafted = decoder.stats().drafted - before;
    assert_eq!(
        drafted > 0,
        decoder.stats().speculative_rounds > 0,
        "drafts in the steps that are watched"
    );
    counts
}

fn builder(
    target: &Target,
    cache: impl KvCache + 'static,
    drafter: Option<Box<dyn Drafter>>,
) -> specdec_core::DecoderBuilder {
    Decoder::builder(target.clone())
        .cache(cache)
        .drafter_boxed(drafter)
        .controller(FixedLength(K))
}

const K: usize = 3;

/// A drafter that never asks the device: the next ids after the last token.
fn on_the_host(vocab: usize) -> Box<dyn Drafter> {
    Box::new(SamplingDrafter::new(QForm::Greedy, 1, move |tokens| {
        let next = tokens
            .last()
            .map_or(0, |token| (*token as usize + 1) % vocab);
        (0..vocab)
            .map(|id| if id == next { 1.0 } else { 0.0 })
            .collect()
    }))
}

/// Plain steps and those of a drafter on the host: one read, whatever the rows, layers, strategies and ways
/// to choose.
fn one_a_step(device: &Device) {
    let exact: Target = Arc::new(hash_lm(device).with_spread(4.0));
    let soft = transformer(Family::Qwen3, 5, device);
    let mut sampled = SamplingParams::sampled(0.7);
    sampled.seed = Some(1);
    for target in [&exact, &soft] {
        let vocab = target.spec().vocab;
        for rows in [1, 4] {
            for drafts in [false, true] {
                for sampling in [&SamplingParams::greedy(), &sampled] {
                    let drafter = drafts.then(|| on_the_host(vocab));
                    let decoder = builder(target, slots(target.spec()), drafter)
                        .build()
                        .expect("the parts fit");
                    let counts = of_steps(decoder, vocab, rows, sampling);
                    assert_eq!(
                        counts,
                        [1, 1, 1],
                        "{rows} rows, drafts {drafts}, {}",
                        sampling.temperature
                    );
                }
            }
        }
        // With ties counted, as the facade does on GPUs.
        let decoder = builder(target, slots(target.spec()), None)
            .tie_margin(1e-2)
            .build();
        let counts = of_steps(
            decoder.expect("the parts fit"),
            vocab,
            4,
            &SamplingParams::greedy(),
        );
        assert_eq!(counts, [1, 1, 1], "ties");
        for strategy in [Strategy::EqSpec, Strategy::ExSpec { window: 3 }] {
            let parts = strategy
                .parts(target.spec(), 3, &SlotOptions::default())
                .expect("good options");
            let drafter = Some(on_the_host(vocab));
            let decoder = builder(target, parts.cache, drafter)
                .scheduler(parts.scheduler)
                .build();
            let counts = of_steps(
                decoder.expect("the parts fit"),
                vocab,
                4,
                &SamplingParams::greedy(),
            );
            assert_eq!(counts, [1, 1, 1], "{strategy}");
        }
    }
}

/// A draft model reads once for each token of the longest draft, Vegas once more for the weights of all
/// layers, a block drafter once, and once more for its head: whatever the rows.
fn one_for_each_pass_of_a_drafter(device: &Device) {
    let target = transformer(Family::Qwen3, 5, device);
    let spec = target.spec();
    for rows in [1, 4] {
        let block = || block_model(&target, device);
        let config = VegasConfig {
            ratio: 0.1,
            min: 2,
            ..VegasConfig::paper()
        };
        let sparse = Vegas::new(slots(spec), spec, config.check().expect("a good config"));
        let dense: Box<dyn KvCache> = Box::new(slots(spec));
        let cases: Vec<(&str, usize, Box<dyn KvCache>, Box<dyn Drafter>)> = vec![
            (
                "draft model",
                K,
                dense,
                Box::new(ModelDrafter::new(target.clone(), slots(spec))),
            ),
            (
                "vegas",
                K + 1,
                Box::new(sparse),
                Box::new(VegasDrafter::new()),
            ),
            (
                "dflash",
                1,
                Box::new(slots(spec)),
                Box::new(DFlashDrafter::new(block().without_head(), &*target).expect("it fits")),
            ),
            (
                "lilicorr",
                2,
                Box::new(slots(spec)),
                Box::new(LiLiCorrDrafter::new(block(), &*target).expect("it fits")),
            ),
        ];
        for (what, most, cache, drafter) in cases {
            let decoder = Decoder::builder(target.clone())
                .cache_boxed(cache)
                .drafter_boxed(Some(drafter))
                .controller(FixedLength(K))
                .build()
                .expect("the parts fit");
            let counts = of_steps(decoder, spec.vocab, rows, &SamplingParams::greedy());
            assert!(
                counts.iter().all(|n| (1..=1 + most).contains(n)),
                "{what}, {rows} rows: {counts:?}"
            );
        }
    }
}

/// All layers of a prompt's entries come to the host together.
fn one_to_store_a_prefix(device: &Device) {
    let target: Target = Arc::new(hash_lm(device));
    let options = StoreOptions {
        block: 8,
        ..StoreOptions::default()
    };
    let identity = Identity::of(target.spec()).expect("it has a fingerprint");
    let store = PrefixStore::open(identity, options).expect("good options");
    let mut decoder = builder(&target, slots(target.spec()), None)
        .prefixes(StoredPrefixes::new(store.clone(), device))
        .build()
        .expect("the parts fit");
    decoder
        .submit(Request::new(prompt(40, 20)).max_new_tokens(8))
        .expect("a good request");
    // The step prefills, stores and decodes.
    let (seen, _) = reads(|| decoder.step().expect("a step"));
    assert!(store.stats().memory_bytes > 0, "something was stored");
    assert!(seen <= 2, "{seen} reads");
}
