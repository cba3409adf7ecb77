//! What the store holds, for whom and for how long.

use crate::world::*;
use specdec_core::{KvCache, SeqId, Token};
use specdec_rakv::{
    Documents, Eviction, PrefixStore, RakvError, StoreOptions, TokenOverlap, preload,
};
use std::sync::Barrier;

#[test]
fn p14_what_is_being_read_stays() {
    let target = target();
    let one = entries(&target, &text(0, 8), 0..8);
    let bytes: usize = one
        .layers
        .iter()
        .map(|(k, _)| 2 * 4 * k.shape().num_elements())
        .sum();
    let options = StoreOptions {
        block: 8,
        memory: 4 * bytes,
        ..StoreOptions::default()
    };
    let store = PrefixStore::open(identity(&target), options).expect("good options");
    let first = text(1, 16);
    put(&store, &target, 0, &first);
    let lease = store.lookup(0, &first, 16).expect("stored");
    for seed in 2..20 {
        put(&store, &target, 0, &text(seed, 16));
        let stats = store.stats();
        assert!(
            stats.memory_bytes + stats.zombie_bytes <= 4 * bytes,
            "{stats:?}"
        );
    }
    same(
        &lease.segment(&device()).expect("entries"),
        &entries(&target, &first, 0..16),
    );
    // A longer text in place of a shorter one, while the shorter one is read.
    drop(lease);
    let options = StoreOptions {
        block: 8,
        ..StoreOptions::default()
    };
    let store = PrefixStore::open(identity(&target), options).expect("good options");
    put(&store, &target, 0, &first[..5]);
    let lease = store.lookup(0, &first, 5).expect("stored");
    put(&store, &target, 0, &first[..8]);
    assert!(store.stats().zombie_bytes > 0);
    same(
        &lease.segment(&device()).expect("entries"),
        &entries(&target, &first, 0..5),
    );
    drop(lease);
    assert_eq!(store.stats().zombie_bytes, 0);
    assert_eq!(store.stats().memory_bytes, bytes);
}

#[test]
fn p16_threads_share_one_store() {
    let target = target();
    let store = store(&target);
    let prompt = text(1, 60);
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut decoder = decoder(&target, &store);
                barrier.wait();
                for n in 0..5 {
                    warm(&mut decoder, &prompt, 10 + n);
                    warm(&mut decoder, &text(n, 30), 5);
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.pins, 0);
    // One set of blocks, however many wrote them: 60 + 13 tokens and three other texts.
    let each = stats.memory_bytes / stats.blocks;
    assert!(stats.blocks <= 10 + 5 * 5 && each > 0, "{stats:?}");
    let mut after = decoder(&target, &store);
    assert_eq!(warm(&mut after, &prompt, 10), 59);
}

#[test]
fn p19_a_wrong_hint_changes_nothing() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (text(1, 40), text(2, 40));
    {
        let store = on_disk(&target, folder.path());
        let mut cache = slots(&target);
        for text in [&one, &two] {
            let done = preload(&store, 0, &*target, &mut cache, (text, 16)).expect("computed");
            assert_eq!(done, 40);
            assert_eq!(cache.len(SeqId(u64::MAX)), 0);
        }
        let again = preload(&store, 0, &*target, &mut cache, (&one, 16)).expect("nothing to do");
        assert_eq!(again, 0);
        let longer = [one.clone(), vec![1, 2, 3]].concat();
        let more = preload(&store, 0, &*target, &mut cache, (&longer, 16)).expect("computed");
        assert_eq!(more, 3);
        let wrong = preload(&store, 0, &*target, &mut cache, (&[99], 16));
        assert!(matches!(wrong, Err(RakvError::Decoding(_))), "{wrong:?}");
    }
    let store = on_disk(&target, folder.path());
    assert_eq!(
        store.stats().memory_bytes,
        0,
        "nothing is read before it is needed"
    );
    let mut documents = Documents::new(store.clone(), 0, TokenOverlap);
    documents.insert("one", one.clone());
    documents.insert("two", two.clone());
    assert_eq!(documents.similar(&two[5..30], 1), ["two"]);
    assert_eq!(documents.fetch_similar(&two[5..30], 1), [("two", 40)]);
    assert!(store.stats().memory_bytes > 0);
    assert_eq!(documents.fetch("three"), 0);
    // A document whose text has changed: what is reused ends where it differs.
    let mut changed = two.clone();
    changed[20] = (changed[20] + 1) % VOCAB as Token;
    documents.insert("two", changed.clone());
    assert_eq!(documents.fetch("two"), 20);
    let mut decoder = decoder(&target, &store);
    assert_eq!(warm(&mut decoder, &[changed, vec![3, 4]].concat(), 9), 20);
    assert_eq!(warm(&mut decoder, &[one, vec![5, 6]].concat(), 9), 40);
}

#[test]
fn p22_memory_is_what_was_stored() {
    let target = target();
    let store = store(&target);
    let mut decoder = decoder(&target, &store);
    warm(&mut decoder, &text(0, 30), 10);
    let before = decoder.cache().memory_bytes();
    let mut tokens = 39;
    for seed in 1..20 {
        let prompt = text(seed, 30);
        warm(&mut decoder, &prompt, 10);
        tokens += 39;
    }
    let spec = target.spec();
    let each = 2 * spec.layers * spec.kv_heads * spec.head_dim * 4;
    let stats = store.stats();
    assert!(stats.memory_bytes <= tokens * each, "{stats:?}");
    assert!(stats.memory_bytes > tokens * each / 2, "{stats:?}");
    // Every sequence found the memory of the one before it.
    assert_eq!(decoder.cache().memory_bytes(), before);
}

/// A long text used often survives a burst of texts used once, where losing it would cost more.
#[test]
fn cost_aware_eviction_keeps_what_is_dear() {
    let target = target();
    let spec = target.spec();
    let each = 2 * spec.layers * spec.kv_heads * spec.head_dim * 4;
    let survives = |eviction| {
        let options = StoreOptions {
            block: 8,
            memory: 12 * 8 * each,
            eviction,
            ..StoreOptions::default()
        };
        let store = PrefixStore::open(identity(&target), options).expect("good options");
        let dear = text(1, 32);
        put(&store, &target, 0, &dear);
        for _ in 0..5 {
            get(&store, &target, 0, &dear);
        }
        for seed in 2..40 {
            put(&store, &target, 0, &text(seed, 16));
        }
        get(&store, &target, 0, &dear)
    };
    assert_eq!(survives(Eviction::LeastRecent), 0);
    assert_eq!(survives(Eviction::CostAware), 32);
}

#[test]
fn options_out_of_range_are_refused() {
    let options = StoreOptions {
        block: 0,
        ..StoreOptions::default()
    };
    let refused = PrefixStore::open(identity(&target()), options);
    assert!(matches!(
        refused,
        Err(RakvError::Setting {
            setting: "block",
            ..
        })
    ));
}

fn assert_shared<T: Send + Sync>() {}

#[test]
fn stores_are_shared_between_threads() {
    assert_shared::<PrefixStore>();
    assert_shared::<specdec_rakv::Lease>();
    assert_shared::<Documents>();
}
