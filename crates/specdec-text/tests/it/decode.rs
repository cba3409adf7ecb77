use proptest::prelude::*;
use specdec_text::{Detokenizer, GgufVocabulary, Special, TextError, Tokenizer};

use crate::fixtures::{
    IM_END, IM_START, TEXTS, byte_level, byte_level_gguf, byte_level_json, bytes, sentence_piece,
    strings,
};

/// Pieces, with the ending.
fn stream(tokenizer: &Tokenizer, ids: &[u32], show_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer).show_special(show_special);
    let mut pieces: Vec<String> = ids
        .iter()
        .map(|&id| detokenizer.push(id).unwrap())
        .collect();
    pieces.push(detokenizer.finish());
    pieces
}

/// The bytes of the tokens, lossily, by nothing but the standard library.
fn by_hand(tokenizer: &Tokenizer, ids: &[u32], show_special: bool) -> String {
    let shown = ids
        .iter()
        .filter(|&&id| show_special || !tokenizer.is_special(id));
    let bytes: Vec<u8> = shown
        .flat_map(|&id| tokenizer.token_bytes(id).unwrap())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One token for each byte of the text.
fn as_bytes(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let byte_token = |byte: u8| {
        let mut ids = (0..tokenizer.vocab_size() as u32).rev();
        ids.find(|&id| {
            !tokenizer.is_special(id) && tokenizer.token_bytes(id).as_deref() == Some(&[byte])
        })
        .unwrap()
    };
    text.bytes().map(byte_token).collect()
}

#[test]
fn g1_characters_spread_over_tokens_come_whole() {
    for tokenizer in [byte_level(), sentence_piece()] {
        for text in TEXTS {
            let ids = as_bytes(&tokenizer, text);
            let pieces = stream(&tokenizer, &ids, false);
            assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')));
            assert!(pieces.iter().all(|piece| piece.chars().count() <= 1));
            let expected = if tokenizer.add_bos() {
                text.strip_prefix(' ').unwrap_or(text)
            } else {
                text
            };
            assert_eq!(pieces.concat(), expected);
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected);
        }
    }
}

#[test]
fn g1_text_goes_there_and_back() {
    for tokenizer in [byte_level(), sentence_piece()] {
        for text in strings() {
            let ids = tokenizer.encode(&text, Special::Text).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            assert_eq!(stream(&tokenizer, &ids, false).concat(), text);
        }
    }
}

#[test]
fn g2_an_end_inside_a_character_is_one_replacement_character_streamed_or_not() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let whole = as_bytes(&tokenizer, "x🏳");
        for cut in 2..5 {
            let ids = &whole[..cut];
            let pieces = stream(&tokenizer, ids, false);
            assert!(
                pieces[..cut]
                    .iter()
                    .all(|piece| !piece.contains('\u{FFFD}')),
                "only the ending may"
            );
            assert_eq!(pieces.concat(), "x\u{FFFD}");
            assert_eq!(tokenizer.decode(ids, false).unwrap(), "x\u{FFFD}");
        }
    }
}

#[test]
fn g3_ten_thousand_tokens_stream_as_they_decode() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let size = tokenizer.vocab_size() as u64;
        let mut state = 7u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % size
        };
        let mut ids: Vec<u32> = Vec::new();
        while ids.len() < 10_000 {
            let text = &strings()[(random() % 200) as usize];
            ids.extend(tokenizer.encode(text, Special::Parse).unwrap());
            ids.push(random() as u32);
        }
        for show in [false, true] {
            assert_eq!(
                stream(&tokenizer, &ids, show).concat(),
                tokenizer.decode(&ids, show).unwrap()
            );
            let by_hand = by_hand(&tokenizer, &ids, show);
            let decoded = tokenizer.decode(&ids, show).unwrap();
            assert!(by_hand == decoded || by_hand.strip_prefix(' ') == Some(&decoded));
        }
    }
}

#[test]
fn g3_an_id_without_text_is_an_error_and_loses_nothing() {
    let tokenizer = byte_level();
    let ids = as_bytes(&tokenizer, "é");
    let mut detokenizer = Detokenizer::new(&tokenizer);
    assert_eq!(detokenizer.push(ids[0]).unwrap(), "");
    let beyond = tokenizer.vocab_size() as u32;
    assert!(matches!(detokenizer.push(beyond), Err(TextError::NoText { id, .. }) if id == beyond));
    assert_eq!(detokenizer.push(ids[1]).unwrap(), "é");
    assert!(matches!(
        tokenizer.decode(&[beyond], false),
        Err(TextError::NoText { .. })
    ));
}

#[test]
fn g3_decoding_is_that_of_the_tokenizers_crate() {
    let ours = byte_level();
    let theirs = tokenizers::Tokenizer::from_bytes(bytes(byte_level_json())).unwrap();
    for text in strings() {
        let ids = ours.encode(&text, Special::Parse).unwrap();
        for show in [false, true] {
            assert_eq!(
                ours.decode(&ids, show).unwrap(),
                theirs.decode(&ids, !show).unwrap()
            );
        }
    }
}

#[test]
fn special_tokens_are_shown_or_leave_no_trace() {
    let tokenizer = byte_level();
    let halves = as_bytes(&tokenizer, "é");
    let ids = [IM_START, halves[0], IM_END, halves[1]];
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "é");
    assert_eq!(stream(&tokenizer, &ids, false).concat(), "é");
    let shown = "<|im_start|>\u{FFFD}<|im_end|>\u{FFFD}";
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), shown);
    assert_eq!(stream(&tokenizer, &ids, true).concat(), shown);
}

#[test]
fn the_space_before_the_first_word_is_dropped_at_the_beginning_of_a_text_only() {
    let tokenizer = sentence_piece();
    let ids = tokenizer.encode("the tokens the", Special::Text).unwrap();
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "the tokens the");
    let (prompt, answer) = ids.split_at(1);
    let mut detokenizer = Detokenizer::new(&tokenizer).continuing();
    let tail: String = answer
        .iter()
        .map(|&id| detokenizer.push(id).unwrap())
        .collect();
    assert_eq!(
        tokenizer.decode(prompt, false).unwrap() + &tail,
        "the tokens the"
    );
    assert_eq!(tokenizer.decode(&[1, ids[0]], false).unwrap(), "the");
    assert_eq!(tokenizer.decode(&[1, ids[0]], true).unwrap(), "<s> the");
}

#[test]
fn f2_holes_and_unused_entries_are_ids_without_text() {
    let mut json = byte_level_json().clone();
    let size = byte_level().vocab_size() as u32;
    let mut last = json["added_tokens"][0].clone();
    last["id"] = (size + 2).into();
    last["content"] = "<last>".into();
    json["added_tokens"].as_array_mut().unwrap().push(last);
    // The tokenizers crate numbers added tokens by itself, unless the model has them.
    let misnumbered = Tokenizer::from_bytes(&bytes(&json)).unwrap_err();
    assert!(misnumbered.to_string().contains("<last>"), "{misnumbered}");
    for token in json["added_tokens"].as_array().unwrap().clone() {
        json["model"]["vocab"][token["content"].as_str().unwrap()] = token["id"].clone();
    }
    let tokenizer = Tokenizer::from_bytes(&bytes(&json)).unwrap();
    assert_eq!(tokenizer.vocab_size(), size as usize + 3);
    assert_eq!(tokenizer.ids_without_text(), [size, size + 1]);
    assert_eq!(tokenizer.token_bytes(size), None);

    let mut padded = byte_level_gguf();
    padded
        .tokens
        .extend(["[PAD0]".to_owned(), "[PAD1]".to_owned()]);
    padded.token_types.as_mut().unwrap().extend([5, 5]);
    let padded = Tokenizer::from_gguf(&padded).unwrap();
    assert_eq!(padded.ids_without_text(), [size, size + 1]);
    assert!(byte_level().ids_without_text().is_empty());
    let unpadded = Tokenizer::from_gguf(&GgufVocabulary {
        ..byte_level_gguf()
    })
    .unwrap();
    assert_eq!(unpadded.first_difference(&padded), None);
}

proptest! {
    #[test]
    fn any_ids_stream_as_they_decode(ids in prop::collection::vec(0u32..300, 0..60), show: bool) {
        let tokenizer = sentence_piece();
        let pieces = stream(&tokenizer, &ids, show);
        prop_assert_eq!(pieces.concat(), tokenizer.decode(&ids, show).unwrap());
        let text = by_hand(&tokenizer, &ids, show);
        let expected = text.strip_prefix(' ').filter(|_| ids.iter().find(|&&id| show || !tokenizer.is_special(id)).is_some_and(|&id| !tokenizer.is_special(id)));
        prop_assert_eq!(pieces.concat(), expected.unwrap_or(&text));
    }
}
