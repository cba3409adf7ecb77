use specdec_text::{GgufVocabulary, Special, Tokenizer};

use crate::fixtures::{bytes, sentence_piece, sentence_piece_gguf, sentence_piece_json, strings};

/// SentencePiece as its authors describe it: join the neighbours of the best score until none can be.
fn sentence_piece_by_hand(vocabulary: &GgufVocabulary, text: &str) -> Vec<u32> {
    let kinds = vocabulary.token_types.as_ref().unwrap();
    let scores = vocabulary.scores.as_ref().unwrap();
    let id = |piece: &str| (0..vocabulary.tokens.len()).find(|&id| vocabulary.tokens[id] == piece);
    let joinable = |piece: &str| id(piece).filter(|&id| matches!(kinds[id], 1 | 4));
    let mut pieces: Vec<String> = format!(" {text}")
        .replace(' ', "▁")
        .chars()
        .map(String::from)
        .collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for place in 1..pieces.len() {
            if let Some(id) = joinable(&format!("{}{}", pieces[place - 1], pieces[place]))
                && best.is_none_or(|(score, _)| scores[id] > score)
            {
                best = Some((scores[id], place));
            }
        }
        let Some((_, place)) = best else { break };
        let right = pieces.remove(place);
        pieces[place - 1].push_str(&right);
    }
    let ids = pieces.iter().flat_map(|piece| match joinable(piece) {
        Some(id) => vec![id],
        None => piece
            .bytes()
            .map(|byte| id(&format!("<0x{byte:02X}>")).unwrap())
            .collect(),
    });
    ids.map(|id| id as u32).collect()
}

#[test]
fn sentence_piece_joins_the_best_neighbours_and_falls_back_to_bytes() {
    let vocabulary = sentence_piece_gguf();
    let tokenizer = sentence_piece();
    let more = [
        "abcabc aabbcc",
        "the tokens",
        "      six",
        "a数b",
        "öß é",
        "<0x41>",
        "the<unk>",
        "x</s>",
        "speculative decoding's",
    ];
    for text in strings()
        .iter()
        .map(String::as_str)
        .chain(more)
        .filter(|text| !text.is_empty())
    {
        assert_eq!(
            tokenizer.encode(text, Special::Text).unwrap(),
            sentence_piece_by_hand(&vocabulary, text),
            "{text:?}"
        );
    }
    // Each part between special tokens gets its own space.
    let (begin, the) = (1, tokenizer.token_id("▁the").unwrap());
    assert_eq!(
        tokenizer.encode("the<s>the", Special::Parse).unwrap(),
        [the, begin, the]
    );
    let bare = GgufVocabulary {
        add_space_prefix: Some(false),
        ..vocabulary
    };
    let bare = Tokenizer::from_gguf(&bare).unwrap();
    assert_eq!(bare.encode(" the", Special::Text).unwrap(), [the]);
}

#[test]
fn g8_sentence_piece_gives_the_same_ids_and_texts_from_both_formats() {
    let json = bytes(&sentence_piece_json());
    let hub = Tokenizer::from_bytes(&json).unwrap();
    let gguf = sentence_piece();
    let theirs = tokenizers::Tokenizer::from_bytes(&json).unwrap();
    assert_eq!(hub.first_difference(&gguf), None);
    assert!(hub.add_bos() && gguf.add_bos());
    for text in strings()
        .into_iter()
        .chain(["a<s>b</s><|tool|> c".to_owned(), "<|tool|>".to_owned()])
    {
        for special in [Special::Parse, Special::Text] {
            assert_eq!(
                hub.encode(&text, special).unwrap(),
                gguf.encode(&text, special).unwrap(),
                "{text:?}"
            );
        }
        let ids = gguf.encode_prompt(&text).unwrap();
        assert_eq!(ids, hub.encode_prompt(&text).unwrap());
        assert_eq!(ids, theirs.encode(text.as_str(), true).unwrap().get_ids());
        for show in [false, true] {
            let expected = theirs.decode(&ids, !show).unwrap();
            assert_eq!(gguf.decode(&ids, show).unwrap(), expected);
            assert_eq!(hub.decode(&ids, show).unwrap(), expected);
        }
    }
}

#[test]
fn a_decoder_that_drops_several_spaces_drops_them_from_as_many_tokens() {
    let mut json = sentence_piece_json();
    json["decoder"]["decoders"][3]["start"] = 2.into();
    let theirs = tokenizers::Tokenizer::from_bytes(bytes(&json)).unwrap();
    let ours = Tokenizer::from_bytes(&bytes(&json)).unwrap();
    let (space, the) = (ours.token_id("▁").unwrap(), ours.token_id("▁the").unwrap());
    for ids in [
        vec![the],
        vec![space, the],
        vec![space, space, the],
        vec![1, space, the, space, the],
    ] {
        for show in [false, true] {
            assert_eq!(
                ours.decode(&ids, show).unwrap(),
                theirs.decode(&ids, !show).unwrap(),
                "{ids:?}"
            );
        }
    }
}
