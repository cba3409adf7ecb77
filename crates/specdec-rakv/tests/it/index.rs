//! The index against a plain list of what was stored.

use crate::world::*;
use proptest::prelude::*;
use specdec_core::Token;
use specdec_rakv::{Eviction, PrefixStore, StoreOptions};

#[derive(Debug, Clone)]
enum Act {
    /// Store the first part of a text.
    Put { text: usize, len: usize, scope: u64 },
    /// Look a text up, up to a limit.
    Get {
        text: usize,
        limit: usize,
        scope: u64,
    },
}

/// Texts that share beginnings of many lengths.
fn texts() -> impl Strategy<Value = Vec<Vec<Token>>> {
    let token = 0..3u32;
    prop::collection::vec(prop::collection::vec(token, 1..24), 2..8)
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0..8usize, 1..24usize, 0..2u64).prop_map(|(text, len, scope)| Act::Put {
            text,
            len,
            scope
        }),
        (0..8usize, 0..26usize, 0..2u64).prop_map(|(text, limit, scope)| Act::Get {
            text,
            limit,
            scope
        }),
    ];
    prop::collection::vec(act, 1..40)
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// P15 without a budget: a look-up finds the longest common beginning with anything stored.
    #[test]
    fn p15_the_longest_stored_prefix(texts in texts(), acts in acts(), block in 1..6usize) {
        let target = target();
        let store = store_of(&target, block);
        let mut stored: Vec<(u64, Vec<Token>)> = Vec::new();
        for act in acts {
            match act {
                Act::Put { text, len, scope } => {
                    let text = &texts[text % texts.len()];
                    let text = &text[..len.min(text.len())];
                    put(&store, &target, scope, text);
                    stored.push((scope, text.to_vec()));
                }
                Act::Get { text, limit, scope } => {
                    let text = &texts[text % texts.len()];
                    let longest = stored
                        .iter()
                        .filter(|(s, _)| *s == scope)
                        .map(|(_, t)| common(t, text))
                        .max()
                        .unwrap_or(0);
                    let got = store.lookup(scope, text, limit);
                    let tokens = got.as_ref().map_or(0, |l| l.tokens());
                    prop_assert_eq!(tokens, longest.min(limit));
                    if let Some(segment) = got.and_then(|l| l.segment(&device())) {
                        same(&segment, &entries(&target, text, 0..tokens));
                    }
                }
            }
        }
        prop_assert_eq!(store.stats().pins, 0);
    }

    /// P15 under pressure: never over the budget, never more than what is true, nothing unreachable.
    #[test]
    fn p15_under_pressure(
        texts in texts(),
        acts in acts(),
        blocks in 1..6usize,
        aware in any::<bool>(),
    ) {
        let target = target();
        let spec = target.spec();
        let each = 2 * spec.layers * spec.kv_heads * spec.head_dim * 4;
        let options = StoreOptions {
            block: 3,
            memory: blocks * 3 * each,
            eviction: if aware { Eviction::CostAware } else { Eviction::LeastRecent },
            disk: None,
        };
        let store = PrefixStore::open(identity(&target), options).expect("good options");
        let mut stored: Vec<(u64, Vec<Token>)> = Vec::new();
        for act in acts {
            match act {
                Act::Put { text, len, scope } => {
                    let text = &texts[text % texts.len()];
                    let text = &text[..len.min(text.len())];
                    put(&store, &target, scope, text);
                    stored.push((scope, text.to_vec()));
                }
                Act::Get { text, limit, scope } => {
                    let text = &texts[text % texts.len()];
                    let found = get_up_to(&store, &target, scope, text, limit);
                    let most = stored
                        .iter()
                        .filter(|(s, _)| *s == scope)
                        .map(|(_, t)| common(t, text))
                        .max()
                        .unwrap_or(0);
                    prop_assert!(found <= most.min(limit));
                }
            }
            let stats = store.stats();
            prop_assert!(stats.memory_bytes <= blocks * 3 * each, "{:?}", stats);
            prop_assert_eq!(stats.pins, 0);
            // Everything held can be reached: the blocks of all texts are all blocks.
            let mut reached = std::collections::BTreeSet::new();
            for (scope, text) in &stored {
                let found = store.stored(*scope, text, text.len()).map_or(0, |s| s.tokens);
                for end in (0..found).step_by(3) {
                    reached.insert((*scope, text[..(end + 3).min(found)].to_vec()));
                }
            }
            prop_assert!(stats.blocks <= reached.len(), "{:?} {:?}", stats, reached);
        }
    }
}

fn get_up_to(
    store: &PrefixStore,
    target: &Target,
    scope: u64,
    text: &[Token],
    limit: usize,
) -> usize {
    let Some(lease) = store.lookup(scope, text, limit) else {
        return 0;
    };
    let segment = lease.segment(&device()).expect("it has tokens");
    same(&segment, &entries(target, text, 0..lease.tokens()));
    lease.tokens()
}
