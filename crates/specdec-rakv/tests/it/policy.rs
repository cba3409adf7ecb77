//! Reuse where it is faster, and the joint menu.

use crate::world::*;
use specdec_core::{Decoder, Request};
use specdec_rakv::{
    CostTable, JointQuery, Line, Measurements, PrefillCosts, StoredPrefixes, joint_menu,
};
use std::sync::Arc;

/// A prefilled token takes a millisecond, a plain step ten, a restored byte this long.
fn costs(byte: f64) -> CostTable {
    let flat = CostTable::flat(0.01, &[(1, 1.1), (4, 1.3)], &[("drafter", 0.1)]).expect("a table");
    let mut raw: Measurements = flat.measurements().clone();
    raw.prefill = PrefillCosts {
        each: 1e-3,
        per_context: 1e-6,
    };
    raw.restore = Line {
        fixed: 1e-5,
        each: byte,
    };
    raw.sources[0].catch_up = Line {
        fixed: 0.0,
        each: 1e-3,
    };
    CostTable::new(raw).expect("a table")
}

#[test]
fn p18_restoring_slower_than_computing_is_declined() {
    let target = target();
    let prompt = text(1, 40);
    for (byte, reused) in [(1e-9, 39), (1e-3, 0)] {
        let store = store(&target);
        let prefixes = StoredPrefixes::new(store.clone(), &device()).with_costs(costs(byte));
        let mut decoder = Decoder::builder(Arc::clone(&target))
            .cache(slots(&target))
            .prefixes(prefixes)
            .build()
            .expect("the parts fit");
        warm(&mut decoder, &prompt, 6);
        assert_eq!(warm(&mut decoder, &prompt, 6), reused);
        assert_eq!(store.stats().declined, u64::from(reused == 0));
        assert_eq!(decoder.stats().reused, reused as u64);
    }
}

/// The menu of the paper: reuse without drafts, reuse with drafts of each length, starting afresh.
#[test]
fn the_joint_menu() {
    let target = target();
    let store = store(&target);
    let prompt = text(1, 200);
    put(&store, &target, 0, &prompt[..150]);
    let stored = store.stored(0, &prompt, 199);
    assert_eq!(stored.map(|s| s.tokens), Some(150));
    let query = JointQuery {
        prompt: 200,
        output: 8,
        stored,
        source: 0,
        drafter_knows: 0,
        acceptance: 0.95,
    };
    let best = |costs: &CostTable, query: &JointQuery| {
        let menu = joint_menu(costs, query);
        assert!(menu.windows(2).all(|w| w[0].time <= w[1].time));
        (menu[0].reuse, menu[0].length, menu.len())
    };
    let (cheap, dear) = (costs(1e-9), costs(1.0));
    // A short output does not earn back what the drafter has to read; a long one does (C9).
    assert_eq!(best(&cheap, &query), (true, 0, 6));
    let long = JointQuery {
        output: 256,
        ..query
    };
    assert_eq!(best(&cheap, &long), (true, 4, 6));
    assert_eq!(best(&dear, &long), (false, 4, 6));
    let known = JointQuery {
        drafter_knows: 200,
        ..query
    };
    assert_eq!(best(&cheap, &known), (true, 4, 6));
    let wrong = JointQuery {
        acceptance: 0.05,
        ..long
    };
    assert_eq!(best(&cheap, &wrong), (true, 0, 6));
    let nothing = JointQuery {
        stored: None,
        ..long
    };
    assert_eq!(best(&cheap, &nothing), (false, 4, 3));
    // What is not reused is computed: 150 tokens, a millisecond and a bit each.
    let menu = joint_menu(&cheap, &long);
    let time = |reuse| {
        menu.iter()
            .find(|c| c.reuse == reuse && c.length == 0)
            .expect("it is there")
            .time
    };
    let saved = (time(false) - time(true)).as_secs_f64();
    assert!((0.15..0.17).contains(&saved), "{saved}");
}

/// P21: nothing of a prompt's own log-probabilities can be asked for, so nothing can be missing;
/// those of emitted tokens are the target's, reused or not.
#[test]
fn p21_log_probabilities_after_a_hit() {
    let target = target();
    let mut decoder = decoder(&target, &store(&target));
    let mut values = Vec::new();
    for _ in 0..2 {
        let mut request = Request::new(text(2, 30)).max_new_tokens(10);
        request.sampling.logprobs = Some(3);
        let done = decoder.generate(request).expect("decoding");
        assert_eq!(done.logprobs.len(), 10);
        values.push(done.logprobs);
    }
    assert_eq!(decoder.stats().reused, 29);
    assert_eq!(values[0], values[1]);
}
