//! The caches and the controller through the suites that everybody has to pass.

use burn::prelude::*;
use specdec_core::{KvCache, ModelSpec};
use specdec_ragged::{AlignedCache, Alignment, RowLengths, SlotCache, SlotOptions};
use specdec_testkit::conformance::{self, CachePromises};

/// Small chunks, so that every row crosses their borders; attention to the bit.
fn keeps_every_promise<C: KvCache>(make: impl Fn(&ModelSpec, &SlotOptions) -> C) {
    let mut promises = CachePromises::default();
    promises.bitwise = true;
    for chunk in [1, 4, 64] {
        let options = SlotOptions {
            chunk,
            ..SlotOptions::default()
        };
        let make = |spec: &ModelSpec| make(spec, &options);
        let report = conformance::cache_promising(&promises, &Device::flex(), make)
            .unwrap_or_else(|violation| panic!("chunks of {chunk}: {violation}"));
        assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
    }
}

#[test]
fn the_slot_cache_keeps_every_promise() {
    keeps_every_promise(|spec, options| {
        SlotCache::with_options(spec, options).expect("good options")
    });
}

#[test]
fn the_aligned_cache_keeps_every_promise() {
    for alignment in [Alignment::All, Alignment::Pass] {
        keeps_every_promise(|spec, options| {
            AlignedCache::with_options(spec, alignment, options).expect("good options")
        });
    }
}

#[test]
fn row_lengths_keep_every_promise() {
    let report = conformance::controller(&Device::flex(), RowLengths::default)
        .unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
}
