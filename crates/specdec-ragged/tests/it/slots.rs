//! What the state machine does not reach: limits, windows, shapes.

use burn::prelude::*;
use specdec_core::{CacheError, Error, KvCache, KvSegment, ModelSpec, Phase, RowSpan, SeqId};
use specdec_ragged::{SlotCache, SlotOptions};

fn spec(layers: usize, windows: Vec<Option<usize>>) -> ModelSpec {
    let mut spec = ModelSpec::new(10, layers, 4, &Device::flex()).with_heads(1, 1, 4);
    spec.windows = windows;
    spec
}

fn cache(windows: Vec<Option<usize>>, options: SlotOptions) -> SlotCache {
    SlotCache::with_options(&spec(windows.len(), windows), &options).expect("good options")
}

/// Runs `len` tokens of a sequence through every layer; the means each token saw, layer 0. Values
/// are the position plus 1.
fn pass(cache: &mut SlotCache, seq: u64, len: usize, layers: usize, phase: Phase) -> Vec<f32> {
    let (device, seq) = (Device::flex(), SeqId(seq));
    let start = cache.len(seq);
    let mut attend = cache
        .begin(&[RowSpan { seq, start, len }], phase)
        .expect("a good row");
    let values: Vec<f32> = (start..start + len)
        .flat_map(|p| std::iter::repeat_n(p as f32 + 1.0, 4))
        .collect();
    let v = Tensor::<3>::from_data(TensorData::new(values, [len, 1, 4]), &device);
    let zero = Tensor::<3>::zeros([len, 1, 4], &device);
    let mut first = Vec::new();
    for layer in 0..layers {
        let out = attend
            .attend(layer, zero.clone(), zero.clone(), v.clone())
            .expect("fits");
        if layer == 0 {
            first = out.into_data().try_into_vec_as::<f32>().expect("f32");
        }
    }
    first.chunks(4).map(|c| c[0]).collect()
}

/// Field case A4: a window's cache holds no more than window, block and rounding to chunks, also
/// when several tokens arrive at once and some are taken back; what is seen is the window.
#[test]
fn a4_a_window_is_bounded_and_exact() {
    let (window, chunk) = (16, 4);
    let options = SlotOptions {
        chunk,
        ..SlotOptions::default()
    };
    let mut cache = cache(vec![Some(window), Some(window)], options);
    let mut most = 0;
    for round in 0..60 {
        let len = 1 + round % 7;
        let start = cache.len(SeqId(0));
        let seen = pass(&mut cache, 0, len, 2, Phase::Verify);
        for (i, mean) in seen.iter().enumerate() {
            let p = start + i;
            let from = (p + 1).saturating_sub(window);
            let want = (from..=p).map(|c| c as f32 + 1.0).sum::<f32>() / (p + 1 - from) as f32;
            assert!(
                (mean - want).abs() < 1e-3,
                "position {p}: {mean} for {want}"
            );
        }
        most = most.max(cache.held_positions(SeqId(0)));
        cache.commit(&[1 + round % len]).expect("staged");
    }
    assert!(cache.len(SeqId(0)) > 3 * window);
    assert!(most <= window + 7 + 2 * chunk, "{most} positions held");
    cache.evict(SeqId(0));
    let all = cache.memory_bytes() / cache.bytes_per_position();
    assert_eq!(cache.free_positions(), all, "chunks were lost");
}

/// A layer without a window keeps everything, whatever the others do.
#[test]
fn mixed_windows_keep_what_the_widest_layer_needs() {
    let options = SlotOptions {
        chunk: 4,
        ..SlotOptions::default()
    };
    let mut cache = cache(vec![Some(3), None], options);
    for _ in 0..5 {
        pass(&mut cache, 0, 6, 2, Phase::Prefill);
        cache.commit(&[6]).expect("staged");
    }
    assert!(cache.export(SeqId(0), 0..30).is_ok());
    let seen = pass(&mut cache, 0, 1, 2, Phase::Verify);
    assert!(
        (seen[0] - 30.0).abs() < 1e-4,
        "the window of layer 0 sees 29, 30, 31: {seen:?}"
    );
}

#[test]
fn a_full_cache_says_how_much_is_missing_and_loses_nothing() {
    let options = SlotOptions {
        chunk: 4,
        preallocate: 4,
        max_positions: Some(10),
    };
    let mut cache = cache(vec![None], options);
    pass(&mut cache, 0, 8, 1, Phase::Prefill);
    cache.commit(&[8]).expect("staged");
    let row = RowSpan {
        seq: SeqId(1),
        start: 0,
        len: 5,
    };
    let refused = cache
        .begin(&[row], Phase::Prefill)
        .map(|_| ())
        .expect_err("12 positions at most");
    assert!(
        matches!(
            refused,
            Error::Cache(CacheError::Full {
                needed: 2,
                available: 1
            })
        ),
        "{refused}"
    );
    assert_eq!((cache.len(SeqId(0)), cache.len(SeqId(1))), (8, 0));
    cache.evict(SeqId(0));
    pass(&mut cache, 1, 5, 1, Phase::Prefill);
    cache.commit(&[5]).expect("room is free again");
}

/// Field case E1: rolling back allocates nothing and moves nothing.
#[test]
fn e1_rounds_of_rejection_allocate_nothing() {
    let options = SlotOptions {
        chunk: 8,
        preallocate: 64,
        max_positions: None,
    };
    let mut cache = cache(vec![None], options);
    let bytes = cache.memory_bytes();
    for _ in 0..30 {
        pass(&mut cache, 0, 9, 1, Phase::Verify);
        cache.commit(&[1]).expect("staged");
        pass(&mut cache, 0, 5, 1, Phase::Draft);
        cache.rollback();
    }
    assert_eq!(cache.memory_bytes(), bytes);
    assert_eq!(cache.len(SeqId(0)), 30);
}

#[test]
fn broken_contracts_are_named() {
    let mut cache = cache(vec![None, None], SlotOptions::default());
    pass(&mut cache, 0, 2, 1, Phase::Verify);
    let missing = cache.commit(&[2]).expect_err("layer 1 did not attend");
    assert!(matches!(
        missing,
        Error::Cache(CacheError::LayerMissing {
            layer: 1,
            layers: 2
        })
    ));
    cache.rollback();
    let device = Device::flex();
    let row = RowSpan {
        seq: SeqId(0),
        start: 0,
        len: 1,
    };
    let t = |heads| Tensor::<3>::zeros([1, heads, 4], &device);
    let mut attend = cache.begin(&[row], Phase::Verify).expect("a good row");
    assert!(
        attend.attend(2, t(1), t(1), t(1)).is_err(),
        "there are layers 0 and 1"
    );
    assert!(
        attend.attend(0, t(1), t(3), t(3)).is_err(),
        "the cache has one kv head"
    );
    drop(attend);
    cache.rollback();
    let mut attend = cache.begin(&[row], Phase::Verify).expect("a good row");
    attend.attend(0, t(1), t(1), t(1)).expect("fits");
    let twice = attend
        .attend(0, t(1), t(1), t(1))
        .expect_err("layer 0 again");
    assert!(matches!(
        twice,
        Error::Cache(CacheError::LayerTwice { layer: 0 })
    ));
    drop(attend);
    cache.rollback();
    let twice = cache
        .begin(&[row, row], Phase::Verify)
        .map(|_| ())
        .expect_err("a row twice");
    assert!(matches!(
        twice,
        Error::Cache(CacheError::Duplicate {
            first: 0,
            second: 1,
            ..
        })
    ));
    let segment = KvSegment {
        range: 0..1,
        layers: vec![(t(1), t(1))],
    };
    assert!(
        cache.import(SeqId(5), &segment).is_err(),
        "one layer for a cache of two"
    );
    assert!(
        cache.export(SeqId(5), 0..1).is_err(),
        "nothing is committed"
    );
    let none = SlotOptions {
        chunk: 0,
        ..SlotOptions::default()
    };
    assert!(SlotCache::with_options(&spec(1, vec![]), &none).is_err());
}
