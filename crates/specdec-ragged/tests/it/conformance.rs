//! The slot cache through the suite that every cache has to pass.

use burn::prelude::*;
use specdec_core::ModelSpec;
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_testkit::conformance::{self, CachePromises};

/// Small chunks, so that every row crosses their borders; attention to the bit.
#[test]
fn the_slot_cache_keeps_every_promise() {
    let mut promises = CachePromises::default();
    promises.bitwise = true;
    for chunk in [1, 4, 64] {
        let options = SlotOptions {
            chunk,
            ..SlotOptions::default()
        };
        let make =
            |spec: &ModelSpec| SlotCache::with_options(spec, &options).expect("good options");
        let report = conformance::cache_promising(&promises, &Device::flex(), make)
            .unwrap_or_else(|violation| panic!("chunks of {chunk}: {violation}"));
        assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
    }
}
