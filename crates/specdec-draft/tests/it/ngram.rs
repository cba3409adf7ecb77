//! What prompt look-up proposes.

use burn::prelude::*;
use proptest::prelude::*;
use specdec_core::{
    Decoder, DraftContext, DraftRow, Drafter, FixedLength, Request, SeqId, TargetModel, Token,
    sampling::Sampler,
};
use specdec_draft::{NgramDrafter, NgramSettings};
use specdec_ragged::SlotCache;
use specdec_testkit::{HashLm, VecCache, scripted::ScriptedTarget};
use std::sync::Arc;

fn propose(drafter: &mut NgramDrafter, seq: u64, tokens: &[Token], k: usize) -> Vec<Token> {
    let model = HashLm::new(5, &Device::flex());
    let sampler = Sampler::greedy();
    let rows = [DraftRow::new(SeqId(seq), tokens, tokens.len(), k, &sampler)];
    let mut cache = VecCache::new(model.spec());
    let cx = DraftContext {
        rows: &rows,
        target: &model,
        cache: &mut cache,
    };
    drafter
        .draft(cx)
        .expect("look-up cannot fail")
        .rows
        .remove(0)
        .tokens
}

fn settings(min_match: usize) -> NgramSettings {
    NgramSettings {
        min_match,
        ..NgramSettings::default()
    }
}

#[test]
fn proposes_what_followed() {
    let mut drafter = NgramDrafter::default();
    assert_eq!(
        propose(&mut drafter, 0, &[1, 2, 3, 4, 5, 9, 1, 2], 3),
        [3, 4, 5]
    );
    assert_eq!(propose(&mut drafter, 1, &[1, 2, 3, 4], 3), [] as [Token; 0]);
    assert_eq!(propose(&mut drafter, 2, &[7], 3), [] as [Token; 0]);
}

#[test]
fn a_period_is_continued_as_long_as_asked_for() {
    let mut drafter = NgramDrafter::default();
    assert_eq!(propose(&mut drafter, 0, &[7, 7, 7], 5), [7; 5]);
    assert_eq!(
        propose(&mut drafter, 1, &[1, 2, 3, 1, 2, 3, 1, 2], 7),
        [3, 1, 2, 3, 1, 2, 3]
    );
}

#[test]
fn other_texts_are_searched_and_lose_to_the_sequences_own() {
    let mut drafter = NgramDrafter::default().with_texts([vec![1, 2, 8, 8], vec![5, 6, 4, 3]]);
    assert_eq!(propose(&mut drafter, 0, &[9, 5, 6], 2), [4, 3]);
    assert_eq!(propose(&mut drafter, 1, &[1, 2, 7, 0, 1, 2], 2), [7, 0]);
    // A longer agreement wins wherever it is.
    let mut drafter = NgramDrafter::default().with_texts([vec![0, 1, 2, 8]]);
    assert_eq!(propose(&mut drafter, 0, &[1, 2, 7, 0, 1, 2], 1), [8]);
}

#[test]
fn a_name_that_is_used_again_starts_afresh() {
    let mut drafter = NgramDrafter::default();
    propose(&mut drafter, 0, &[1, 2, 3, 4, 5, 1, 2], 2);
    drafter.evict(SeqId(0));
    assert_eq!(propose(&mut drafter, 0, &[6, 1, 2], 2), [] as [Token; 0]);
    // Even without word of the end.
    assert_eq!(propose(&mut drafter, 0, &[2, 6], 2), [] as [Token; 0]);
    // Nor does a longer text hide what was there.
    propose(&mut drafter, 0, &[1, 2, 3, 4, 5, 1, 2], 2);
    drafter.evict(SeqId(0));
    let longer = [7, 8, 9, 7, 8, 6, 5, 4, 7, 8];
    assert_eq!(propose(&mut drafter, 0, &longer, 1), [6]);
}

/// What was proposed is no part of the text, whatever came of it: after every round the proposal is
/// that of a drafter that has just been given the text.
#[test]
fn proposals_leave_no_trace() {
    let mut drafter = NgramDrafter::default();
    let mut text: Vec<Token> = vec![1, 2, 3, 1, 2];
    for round in 0..60usize {
        let k = 1 + round % 5;
        let got = propose(&mut drafter, 0, &text, k);
        assert_eq!(got, propose(&mut NgramDrafter::default(), 0, &text, k));
        // Some of it is accepted, and the target says something else behind it.
        let accepted = (round * 7 % 4).min(got.len());
        text.extend(&got[..accepted]);
        text.push((round * round / 3 % 4) as Token);
    }
    // After rounds without drafts the text is longer than with all that was proposed.
    let mut text = vec![1, 2, 3, 1, 2];
    assert_eq!(propose(&mut drafter, 1, &text, 4), [3, 1, 2, 3]);
    text.extend([5, 6, 7, 5, 6]);
    assert_eq!(propose(&mut drafter, 1, &text, 1), [7]);
}

#[test]
fn settings_out_of_range_are_named() {
    let bad = [
        (
            NgramSettings {
                min_match: 0,
                ..settings(2)
            },
            "min_match",
        ),
        (
            NgramSettings {
                max_match: 1,
                ..settings(2)
            },
            "max_match",
        ),
        (
            NgramSettings {
                candidates: 0,
                ..settings(2)
            },
            "candidates",
        ),
    ];
    for (settings, name) in bad {
        let error = NgramDrafter::new(settings).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
}

proptest! {
    /// Whatever is proposed did follow the newest tokens once, over the most tokens that any place
    /// offers (a plain search over all places is the oracle).
    #[test]
    fn the_proposal_is_the_best_place(
        text in proptest::collection::vec(0u32..3, 1..60),
        n in 1usize..4,
        cuts in proptest::collection::vec(1usize..60, 0..4),
    ) {
        let mut drafter = NgramDrafter::new(settings(n)).expect("good settings");
        // The index grows by any pieces.
        let mut cuts = cuts;
        cuts.sort_unstable();
        for cut in cuts.into_iter().filter(|cut| *cut < text.len()) {
            propose(&mut drafter, 0, &text[..cut], 1);
        }
        let got = propose(&mut drafter, 0, &text, 1);
        let agree = |next: usize| {
            (0..next).take(16).take_while(|i| text[next - 1 - i] == text[text.len() - 1 - i]).count()
        };
        // The last 32 places with the same n-gram are looked at.
        let places: Vec<usize> = (n..text.len()).rev().filter(|p| agree(*p) >= n).take(32).collect();
        let best = places.iter().copied().max_by_key(|p| (agree(*p), *p));
        prop_assert_eq!(got, best.map(|p| text[p]).into_iter().collect::<Vec<_>>());
    }
}

/// Field case A6: one repeated token, a pattern with two continuations, no repetition; short and
/// long matches. Equal to plain, and drafts are accepted where the target repeats itself.
#[test]
fn a6_any_repetition_gives_the_plain_output() {
    let prompts: [&[Token]; 3] = [
        &[4, 4, 4, 4, 4, 4],
        &[1, 2, 3, 1, 2, 4, 1, 2],
        &[0, 1, 2, 3, 4, 5, 6, 7],
    ];
    for n in [1, 2, 5] {
        for prompt in prompts {
            let model = HashLm::new(8, &Device::flex());
            let mut decoder = Decoder::builder(Arc::new(model.clone()))
                .cache(SlotCache::new(model.spec()).expect("a cache"))
                .drafter(NgramDrafter::new(settings(n)).expect("good settings"))
                .controller(FixedLength(6))
                .build()
                .expect("it fits");
            let done = decoder
                .generate(Request::new(prompt).max_new_tokens(60))
                .expect("good");
            assert_eq!(
                done.tokens,
                model.greedy(prompt, 60),
                "n {n}, prompt {prompt:?}"
            );
        }
    }
    // A target that goes round in a circle: from the second round on every draft is right.
    let circle: Vec<Token> = (0..60).map(|i| i % 4).collect();
    let target = ScriptedTarget::following(8, &Device::flex(), [(vec![3], circle.clone())]);
    let mut decoder = Decoder::builder(Arc::new(target.clone()))
        .cache(VecCache::new(target.spec()))
        .drafter(NgramDrafter::default())
        .build()
        .expect("it fits");
    let done = decoder
        .generate(Request::new([3]).max_new_tokens(60))
        .expect("good");
    assert_eq!(done.tokens, circle);
    assert!(done.stats.acceptance_rate() > Some(0.9), "{:?}", done.stats);
}
