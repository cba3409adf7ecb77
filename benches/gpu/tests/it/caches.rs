//! The cache state machine: random passes, commits, rollbacks, evictions and imports against a slow
//! cache of vectors; refusals; values that are not numbers.

use crate::Check;
use burn::prelude::*;
use specdec_core::{KvCache, ModelSpec};
use specdec_ragged::{AlignedCache, Alignment, SlotCache, SlotOptions};
use specdec_testkit::conformance::{self, CachePromises};
use specdec_vegas::{Vegas, VegasConfig};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("slots_of_one_column", |device| slots(device, 1)),
    ("slots_of_five_columns", |device| slots(device, 5)),
    ("aligned_with_all", |device| aligned(device, Alignment::All)),
    ("aligned_with_the_pass", |device| {
        aligned(device, Alignment::Pass)
    }),
    ("vegas_over_slots", vegas),
];

fn keeps<C: KvCache>(promises: CachePromises, device: &Device, make: impl Fn(&ModelSpec) -> C) {
    let report = conformance::cache_promising(&promises, device, make)
        .unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
}

/// Short walks: what they find on the CPU is found there.
fn promises() -> CachePromises {
    let mut promises = CachePromises::default();
    promises.walks = 1;
    promises.transitions = 30;
    promises
}

fn options(chunk: usize) -> SlotOptions {
    SlotOptions {
        chunk,
        ..SlotOptions::default()
    }
}

fn slots(device: &Device, chunk: usize) {
    keeps(promises(), device, |spec| {
        SlotCache::with_options(spec, &options(chunk)).expect("good options")
    });
}

fn aligned(device: &Device, alignment: Alignment) {
    keeps(promises(), device, |spec| {
        AlignedCache::with_options(spec, alignment, &options(4)).expect("good options")
    });
}

/// Drafts see few keys; everything else stays as it is.
fn vegas(device: &Device) {
    let mut promises = promises();
    promises.exact_drafts = false;
    let config = VegasConfig {
        ratio: 0.2,
        min: 1,
        ..VegasConfig::paper()
    };
    let config = config.check().expect("a good config");
    keeps(promises, device, |spec| {
        let inner = SlotCache::with_options(spec, &options(5)).expect("good options");
        Vegas::new(inner, spec, config.clone())
    });
}
