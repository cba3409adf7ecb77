//! The prefix store through real decoders: pitfall cases P1 to P22.

use crate::world::*;
use specdec_core::{
    Decoder, FixedLength, KvCache, Phase, Request, Reuse, RowSpan, SeqId, TargetModel, Token,
};
use specdec_rakv::{Identity, PrefixStore, RakvError, StoreOptions, StoredPrefixes};
use specdec_testkit::scripted::{FlakyTarget, ScriptedTarget};
use std::sync::Arc;

#[test]
fn p1_the_same_prompt_twice() {
    let target = target();
    let store = store(&target);
    let mut decoder = decoder(&target, &store);
    let prompt = text(1, 50);
    assert_eq!(warm(&mut decoder, &prompt, 20), 0);
    assert_eq!(warm(&mut decoder, &prompt, 20), 49);
    for len in [1, 2] {
        let prompt = text(3, len);
        warm(&mut decoder, &prompt, 5);
        assert_eq!(warm(&mut decoder, &prompt, 5), len - 1);
    }
    // 49, and the first token of the last prompt, which the one before it began with too.
    assert_eq!(decoder.stats().reused, 49 + 2);
    assert_eq!(store.stats().pins, 0);
}

#[test]
fn p2_a_prompt_that_is_the_beginning_of_a_stored_text() {
    let target = target();
    let mut decoder = decoder(&target, &store(&target));
    let long = text(2, 70);
    warm(&mut decoder, &long, 30);
    for len in [69, 64, 63, 33, 8, 7, 2] {
        assert_eq!(warm(&mut decoder, &long[..len], 12), len - 1);
    }
}

/// P6 too: the target's next token depends on every position looked at.
#[test]
fn p3_p6_a_match_ends_anywhere() {
    let target = target();
    let store = store_of(&target, 64);
    let mut decoder = decoder(&target, &store);
    let stored = text(5, 132);
    warm(&mut decoder, &stored, 1);
    let cached = |tokens: &[Token], n: usize| {
        let lease = store.lookup(0, tokens, n).expect("it is stored");
        lease.segment(&device()).expect("entries")
    };
    let whole = cached(&stored, 131);
    for n in 1..=130 {
        let mut prompt = stored[..n].to_vec();
        prompt.push((stored[n] + 1) % VOCAB as Token);
        prompt.push(1);
        assert_eq!(
            store.stored(0, &prompt, n + 1).map(|s| s.tokens),
            Some(n),
            "offset {n}"
        );
        if n % 13 == 1 || n > 60 && n < 67 || n > 126 {
            assert_eq!(warm(&mut decoder, &prompt, 3), n);
            same(&cached(&prompt, n), &whole.clone().truncated(n));
        }
    }
}

#[test]
fn p4_texts_that_part() {
    let target = target();
    let mut decoder = decoder(&target, &store_of(&target, 16));
    let shared = text(7, 99);
    let with = |end: &[Token]| [shared.as_slice(), end].concat();
    warm(&mut decoder, &with(&[1, 2, 3, 4]), 8);
    assert_eq!(warm(&mut decoder, &with(&[2, 2, 3, 4]), 8), 99);
    assert_eq!(warm(&mut decoder, &with(&[3, 9]), 8), 99);
    assert_eq!(warm(&mut decoder, &with(&[2, 2, 3, 5]), 8), 102);
}

#[test]
fn p7_everything_that_makes_entries_others() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let prompt = text(1, 40);
    put(&on_disk(&target, folder.path()), &target, 0, &prompt);
    let own = identity(&target);
    assert_eq!(
        get(&on_disk(&target, folder.path()), &target, 0, &prompt),
        40
    );
    let seeded: Target = Arc::new(hash_lm().seeded(9));
    let windowed: Target = Arc::new(hash_lm().with_window(9, false));
    let others = [
        (identity(&seeded), "fingerprint"),
        (identity(&windowed), "fingerprint"),
        (own.clone().with_numerics("f16"), "numeric mode"),
        (own.clone().with_revision("adapter 1"), "revision"),
    ];
    for (other, what) in others {
        assert_ne!(other.digest(), own.digest(), "{what}");
        // Another model's folder under this one's name: every file is refused, with the reason.
        let fake = tempfile::tempdir().expect("a folder");
        let of = |i: &Identity| format!("{:032x}", i.digest());
        let to = fake.path().join(of(&other));
        std::fs::create_dir(&to).expect("a folder");
        for file in std::fs::read_dir(folder.path().join(of(&own))).expect("files") {
            let file = file.expect("a file");
            std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
        }
        let options = StoreOptions {
            block: 8,
            disk: Some(specdec_rakv::DiskOptions::new(fake.path())),
            ..StoreOptions::default()
        };
        let store = PrefixStore::open(other, options).expect("it opens");
        assert_eq!(store.stored(0, &prompt, 40), None);
        let refusals = store.refusals();
        assert_eq!(refusals.len(), 6, "five blocks and an index: {refusals:?}");
        assert!(refusals.iter().all(|r| r.contains(what)), "{refusals:?}");
    }
    // A decoder for another model is not built.
    let store = store(&target);
    let prefixes = StoredPrefixes::new(store, &device());
    let refused = Decoder::builder(Arc::clone(&seeded))
        .cache(slots(&seeded))
        .prefixes(prefixes)
        .build();
    let text = refused.expect_err("another model's entries").to_string();
    assert!(text.contains("fingerprint"), "{text}");
    let nameless = ScriptedTarget::new(9, &device(), |_| vec![0.0]);
    assert!(matches!(
        Identity::of(nameless.spec()),
        Err(RakvError::NoFingerprint)
    ));
}

#[test]
fn p8_scopes_share_nothing() {
    let target = target();
    let mut decoder = decoder(&target, &store(&target));
    let prompt = text(4, 30);
    let mut reused = |reuse| {
        let request = Request::new(prompt.clone()).max_new_tokens(3).reuse(reuse);
        decoder.generate(request).expect("decoding").stats.reused
    };
    assert_eq!(reused(Reuse::Within(0)), 0);
    assert_eq!(reused(Reuse::Within(1)), 0);
    assert_eq!(reused(Reuse::Shared), 0);
    assert_eq!(reused(Reuse::Within(1)), 29);
    assert_eq!(reused(Reuse::Within(0)), 29);
    assert_eq!(reused(Reuse::Off), 0);
    assert_eq!(reused(Reuse::Within(2)), 0);
    assert_eq!(reused(Reuse::Shared), 29);
}

/// A value that every platform and every release of this format must give.
#[test]
fn p10_the_digest_is_stable() {
    let identity = identity(&target()).with_numerics("test");
    assert_eq!(format!("{:032x}", identity.digest()), GOLDEN_DIGEST);
}

const GOLDEN_DIGEST: &str = "1b6235e39718826b43b4fff55a9c9ef5";

#[test]
fn p11_only_committed_exact_entries_of_the_right_kind() {
    let target = target();
    let store = store(&target);
    let mut cache = slots(&target);
    let seq = SeqId(3);
    let rows = [RowSpan {
        seq,
        start: 0,
        len: 9,
    }];
    let block = specdec_core::Block::single(seq, 0, &text(1, 9), &device());
    for phase in [Phase::Draft, Phase::Verify] {
        let mut attend = cache.begin(&rows, phase).expect("a pass");
        target.forward(&block, &mut *attend, &[]).expect("a pass");
        drop(attend);
        assert!(
            cache.export(seq, 0..9).is_err(),
            "what is staged is nobody's: {phase:?}"
        );
        cache.rollback();
    }
    let tokens = text(1, 9);
    let good = || entries(&target, &tokens, 0..9);
    let mut fewer = good();
    fewer.layers.pop();
    let mut narrow = good();
    narrow.layers[2].1 = narrow.layers[2].1.clone().narrow(0, 0, 8);
    let mut whole = good();
    for (k, v) in &mut whole.layers {
        *k = k.clone().cast(burn::tensor::DType::F16);
        *v = v.clone().cast(burn::tensor::DType::F16);
    }
    let mut mixed = good();
    mixed.layers[0] = whole.layers[0].clone();
    for (what, wrong) in [("layers", fewer), ("shape", narrow), ("types", mixed)] {
        let refused = store.insert(0, &tokens, wrong, 1.0);
        assert!(
            matches!(refused, Err(RakvError::Entries(_))),
            "{what}: {refused:?}"
        );
    }
    let beyond = store.insert(0, &tokens[..5], good(), 1.0);
    assert!(matches!(beyond, Err(RakvError::Entries(_))), "{beyond:?}");
    assert_eq!(store.stats().blocks, 0);
    // Half precision is another type, not another thing: it comes back as it was.
    store
        .insert(0, &tokens, whole.clone(), 1.0)
        .expect("stored");
    let back = store
        .lookup(0, &tokens, 9)
        .and_then(|l| l.segment(&device()));
    same(&back.expect("stored"), &whole);
}

#[test]
fn p12_rejected_drafts_are_not_stored() {
    let target = target();
    let store = store(&target);
    let prompts = vec![text(1, 20)];
    let mut decoder = speculating(&target, &store, often_right(&prompts, 0.5), FixedLength(8));
    let out = 30;
    assert_eq!(warm(&mut decoder, &prompts[0], out), 0);
    // All but the newest token have entries.
    let whole = [prompts[0].clone(), hash_lm().greedy(&prompts[0], out)].concat();
    let stored = store.stored(0, &whole, whole.len()).expect("stored");
    assert_eq!(stored.tokens, whole.len() - 1);
    assert_eq!(warm(&mut decoder, &whole, 10), whole.len() - 1);
}

#[test]
fn p13_failed_and_cancelled_requests_leave_nothing_half_done() {
    let target: Target = Arc::new(FlakyTarget::new(hash_lm(), [1, 3]));
    let store = store(&target);
    let mut decoder = decoder(&target, &store);
    let prompt = text(1, 60);
    let first = decoder
        .submit(Request::new(prompt.clone()).max_new_tokens(4))
        .expect("taken");
    decoder.step().expect("one chunk");
    decoder.step().expect_err("scripted");
    decoder.cancel(first).expect("it is live");
    let stats = store.stats();
    assert_eq!(stats.pins, 0);
    // What was committed before the failure is exact, and kept.
    assert_eq!(store.stored(0, &prompt, 60).map(|s| s.tokens), Some(11));
    let again = decoder
        .submit(Request::new(prompt.clone()).max_new_tokens(4))
        .expect("taken");
    let mut done = Vec::new();
    while !decoder.is_idle() {
        match decoder.step() {
            Ok(events) => done.extend(events),
            Err(_) => continue,
        }
    }
    let finished = done.into_iter().find_map(|event| match event {
        specdec_core::Event::Finished(done) if done.seq == again => Some(done),
        _ => None,
    });
    let finished = finished.expect("it ended");
    assert_eq!(finished.tokens, hash_lm().greedy(&prompt, 4));
    assert_eq!((finished.stats.reused, store.stats().pins), (11, 0));
}

#[test]
fn p20_windows_and_caches_that_cannot_rewind() {
    // All layers slide: the cache gives back what nobody can see, and it is not stored.
    let model = hash_lm().with_window(6, true);
    let target: Target = Arc::new(model.clone());
    let store = store(&target);
    let mut decoder = decoder(&target, &store);
    for (prompt, n) in [(text(1, 6), 2), (text(2, 40), 20), (text(2, 40), 20)] {
        let request = Request::new(prompt.clone()).max_new_tokens(n);
        let done = decoder.generate(request).expect("decoding");
        assert_eq!(done.tokens, model.greedy(&prompt, n));
    }
    assert!(store.stats().unexported > 0);
    assert_eq!(
        store.stored(0, &text(1, 6), 5).map(|s| s.tokens),
        Some(5),
        "within the window"
    );
    let exact = target_without_rewind();
    let prefixes = StoredPrefixes::new(self::store(&exact), &device());
    let refused = Decoder::builder(Arc::clone(&exact))
        .cache(Refusing(slots(&exact), false))
        .prefixes(prefixes)
        .build();
    assert!(
        refused
            .expect_err("it cannot rewind")
            .to_string()
            .contains("prefix")
    );
}

fn target_without_rewind() -> Target {
    target()
}
