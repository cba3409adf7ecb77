//! The suites that everybody has to pass.

use crate::world::{Target, bare, device, transformer};
use specdec_core::{KvCache, ModelSpec};
use specdec_ragged::{AlignedCache, Alignment, SlotCache, SlotOptions};
use specdec_testkit::conformance::{self, CachePromises};
use specdec_testkit::{HashLm, VecCache};
use specdec_vegas::{CheckedConfig, Random, Streaming, Vegas, VegasConfig, VegasDrafter};
use std::sync::Arc;

fn keeps<C: KvCache>(promises: &CachePromises, make: impl Fn(&ModelSpec, SlotOptions) -> C) {
    for chunk in [3, 64] {
        let make = |spec: &ModelSpec| {
            let options = SlotOptions {
                chunk,
                ..SlotOptions::default()
            };
            make(spec, options)
        };
        let report = conformance::cache_promising(promises, &device(), make)
            .unwrap_or_else(|violation| panic!("chunks of {chunk}: {violation}"));
        assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
    }
}

fn slots(spec: &ModelSpec, options: &SlotOptions) -> SlotCache {
    SlotCache::with_options(spec, options).expect("good options")
}

/// Where everything fits the budget, drafts too are exact.
#[test]
fn a_generous_vegas_is_the_cache_inside() {
    let mut promises = CachePromises::default();
    promises.bitwise = true;
    let generous = || VegasConfig::default().check().expect("a good config");
    keeps(&promises, |spec, options| {
        Vegas::new(slots(spec, &options), spec, generous())
    });
}

/// With few keys drafts are not, and nothing else changes.
#[test]
fn a_sparse_vegas_keeps_the_other_promises() {
    let mut promises = CachePromises::default();
    promises.bitwise = true;
    promises.exact_drafts = false;
    promises.walks = 3;
    keeps(&promises, |spec, options| {
        Vegas::new(slots(spec, &options), spec, bare(0.2, 1))
    });
    keeps(&promises, |spec, options| {
        let cache = AlignedCache::with_options(spec, Alignment::Pass, &options);
        let rule = Streaming { sinks: 1 };
        Vegas::with_select(cache.expect("good options"), spec, bare(0.2, 1), rule)
    });
    promises.bitwise = false;
    keeps(&promises, |spec, _| {
        Vegas::with_select(VecCache::new(spec), spec, bare(0.2, 1), Random::default())
    });
}

/// The suite drafts over a plain cache; its own failures, rejections and cancels over soft attention
/// and hard.
#[test]
fn the_drafter_keeps_every_promise() {
    let hash: Target = Arc::new(HashLm::new(20, &device()).with_spread(4.0));
    let limits = [None, Some(2.9)];
    for limit in limits {
        let make = || match limit {
            None => VegasDrafter::new(),
            Some(nats) => VegasDrafter::new()
                .with_entropy_limit(nats)
                .expect("a good limit"),
        };
        let report = conformance::drafter(&hash, make);
        let report = report.unwrap_or_else(|violation| panic!("{violation}"));
        assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
    }
    let _: CheckedConfig = bare(0.2, 1);
}

/// The whole acceptance trace of a drafter that runs a copy with known mistakes through the cache of
/// the target.
#[test]
fn its_drafts_are_those_of_the_model_it_runs() {
    let make = |model: Target| VegasDrafter::new().with_model(model, "copy");
    let report = conformance::model_drafter(&device(), make);
    let report = report.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.checks().all(|(_, times)| times > 0), "{report:?}");
}

/// The target computes the same through it, to the bit.
#[test]
fn a_target_is_the_same_through_it() {
    let mut promises = conformance::TargetPromises::default();
    promises.tolerance = 0.0;
    let target = transformer();
    let make = |_: &_| {
        Vegas::new(
            crate::world::slots(target.spec()),
            target.spec(),
            bare(0.1, 1),
        )
    };
    conformance::target_promising(&promises, &*target, make)
        .unwrap_or_else(|violation| panic!("{violation}"));
}
