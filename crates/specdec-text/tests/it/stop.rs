use proptest::prelude::*;
use specdec_text::{
    Detokenizer, Special, StopHit, StopMatcher, StopOutput, StopState, StopStrings, TextError,
};

use crate::fixtures::{byte_level, sentence_piece};

/// Where the text ends, by trying everything: (end of the text, stop string).
fn by_hand(text: &str, stops: &[&str]) -> Option<(usize, usize)> {
    (0..=text.len())
        .filter(|&end| text.is_char_boundary(end))
        .find_map(|end| {
            let ending = (0..stops.len()).filter(|&stop| text[..end].ends_with(stops[stop]));
            let longest = ending.rev().max_by_key(|&stop| stops[stop].len())?;
            Some((end - stops[longest].len(), longest))
        })
}

/// The longest end of the text that begins a stop string, and is not one.
fn held_by_hand<'a>(text: &'a str, stops: &[&str]) -> &'a str {
    let starts = (0..=text.len()).filter(|&start| text.is_char_boundary(start));
    let mut ends = starts.map(|start| &text[start..]);
    ends.find(|end| stops.iter().any(|stop| stop.starts_with(end)))
        .unwrap_or("")
}

/// Pushes the text in these pieces and checks every promise on the way.
fn check(text: &str, cuts: &[usize], stops: &[&str]) {
    let compiled = StopStrings::new(stops.iter().copied()).unwrap();
    let mut matcher = StopMatcher::new(&compiled);
    let mut out = String::new();
    let bounds: Vec<usize> = cuts.iter().copied().chain([text.len()]).collect();
    let mut from = 0;
    let expected = by_hand(text, stops);
    for to in bounds {
        let output = matcher.push(&text[from..to]);
        out.push_str(&output.text);
        from = to;
        let found = by_hand(&text[..to], stops);
        assert_eq!(
            output.matched,
            found.map(|(_, stop)| stop),
            "{text:?} {stops:?}"
        );
        if found.is_none() {
            assert_eq!(
                matcher.held(),
                held_by_hand(&text[..to], stops),
                "held of {:?}, {stops:?}",
                &text[..to]
            );
            assert_eq!(
                format!("{out}{}", matcher.held()),
                text[..to],
                "nothing is lost"
            );
        }
    }
    let ending = matcher.finish();
    assert_eq!(ending.matched, expected.map(|(_, stop)| stop));
    out.push_str(&ending.text);
    assert_eq!(out, expected.map_or(text, |(end, _)| &text[..end]));
}

#[test]
fn b5_a_stop_string_cut_at_every_place_never_shows() {
    let text = "He said: öhm, STOP\n\nand so on";
    let stops = ["öhm, STÖP", "STOP\n\n", "STOP\n\nx", "n so"];
    let places: Vec<usize> = (0..=text.len())
        .filter(|&place| text.is_char_boundary(place))
        .collect();
    check(text, &[], &stops);
    check(text, &places, &stops);
    for &first in &places {
        for &second in places.iter().filter(|&&second| second >= first) {
            check(text, &[first, second], &stops);
        }
    }
}

#[test]
fn b5_overlaps_and_repeats_hold_back_no_more_than_they_must() {
    check("aabaabaaab", &[1, 2, 3, 4, 5, 6, 7, 8, 9], &["aabaaab"]);
    check("xabcdab", &[1, 2, 3, 4, 5, 6], &["abcde", "bcx", "cda"]);
    check("abcd", &[2], &["bc", "abc", "c"]);
    check("<|im_end|", &[3], &["<|im_end|>"]);
    check("no stops", &[2], &[]);
    let mut matcher = StopMatcher::new(&StopStrings::new(["END"]).unwrap());
    assert_eq!(
        matcher.push("aEN"),
        StopOutput {
            text: "a".into(),
            matched: None
        }
    );
    assert_eq!(
        matcher.push("Dx"),
        StopOutput {
            text: String::new(),
            matched: Some(0)
        }
    );
    assert_eq!(
        matcher.push("more"),
        StopOutput {
            text: String::new(),
            matched: Some(0)
        }
    );
    assert_eq!(
        matcher.finish(),
        StopOutput {
            text: String::new(),
            matched: Some(0)
        }
    );
    assert_eq!(matcher.push("E"), StopOutput::default(), "a new text");
}

#[test]
fn b5_an_empty_stop_string_is_an_error() {
    assert!(matches!(
        StopStrings::new(["a", ""]),
        Err(TextError::EmptyStopString { index: 1 })
    ));
}

#[test]
fn b5_token_ids_tell_after_which_token_the_text_is_over() {
    for tokenizer in [byte_level(), sentence_piece()] {
        for text in ["a STOP b", "🏳️‍🌈é STOP", "the tokens", "é", "decoding."] {
            for stop in ["STOP", "é", "‍🌈", " tok", "g", "nothing", "the"] {
                let stops = StopStrings::new([stop]).unwrap();
                let ids = tokenizer.encode(text, Special::Text).unwrap();
                // The first token after which the text has the stop string.
                let mut text = Detokenizer::new(&tokenizer);
                let mut so_far = String::new();
                let expected = ids.iter().position(|&id| {
                    so_far.push_str(&text.push(id).unwrap());
                    so_far.contains(stop)
                });
                let state = StopState::new(&stops, &tokenizer);
                let hit = expected.map(|token| StopHit { token, stop: 0 });
                assert_eq!(state.first_match(&ids), hit, "{stop:?}");
                // In blocks of two, asking ahead and then committing.
                let mut state = state;
                let mut found = None;
                for (block, ids) in ids.chunks(2).enumerate() {
                    let ahead = state.first_match(ids);
                    assert_eq!(state.matched(), None, "asking changes nothing");
                    if let Some(hit) = ahead {
                        found = Some(block * 2 + hit.token);
                        break;
                    }
                    for &id in ids {
                        assert_eq!(state.push(id), None);
                    }
                }
                assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn b5_hidden_tokens_and_the_dropped_space_are_as_in_the_text() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode("a<|im_end|>b", Special::Parse).unwrap();
    let stops = StopStrings::new(["ab", "<|im_end|>"]).unwrap();
    assert_eq!(
        StopState::new(&stops, &tokenizer).first_match(&ids),
        Some(StopHit { token: 2, stop: 0 })
    );
    let shown = StopState::new(&stops, &tokenizer).show_special(true);
    assert_eq!(shown.first_match(&ids), Some(StopHit { token: 1, stop: 1 }));
    let tokenizer = sentence_piece();
    let ids = tokenizer.encode("the", Special::Text).unwrap();
    let stops = StopStrings::new([" the"]).unwrap();
    assert_eq!(StopState::new(&stops, &tokenizer).first_match(&ids), None);
    let goes_on = StopState::new(&stops, &tokenizer).continuing();
    assert_eq!(
        goes_on.first_match(&ids),
        Some(StopHit { token: 0, stop: 0 })
    );
}

proptest! {
    #[test]
    fn b5_any_text_in_any_pieces(
        text in "[abé]{0,24}",
        stops in prop::collection::vec("[abé]{1,5}", 0..4),
        cuts in prop::collection::vec(0usize..40, 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut <= text.len() && text.is_char_boundary(cut)).collect();
        cuts.sort_unstable();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        check(&text, &cuts, &stops);
    }
}
