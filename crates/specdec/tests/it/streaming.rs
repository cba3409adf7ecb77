//! Streams: the same text as without one, stop strings that never show, and their end.

use crate::tiny_pair::pair;
use specdec::core::{CancelToken, FinishReason, Granularity};
use specdec::{DraftLength, Drafting, Generated, Generator, Options, Piece, Prompt};

fn generator(drafting: Drafting) -> Generator {
    Generator::builder(&pair().0)
        .drafting(drafting)
        .draft_length(DraftLength::Fixed(4))
        .build()
        .expect("it fits")
}

fn story() -> Prompt {
    Prompt::user("Tell me a story about a fox named Mia.")
}

fn stream(generator: &mut Generator, options: &Options) -> (Vec<Piece>, Generated) {
    let mut stream = generator.stream(story(), options).expect("a good prompt");
    let pieces = stream.by_ref().map(|p| p.expect("no step fails")).collect();
    (pieces, stream.into_generated().expect("it has ended"))
}

/// A stop string that is complete before the fewest tokens neither ends the output nor hides what follows; the first one
/// completed by the last of them, or later, does both.
#[test]
fn a_stop_string_before_the_fewest_tokens_does_not_count() {
    let whole = generator(Drafting::Off)
        .generate(story(), &Options::max_new_tokens(60))
        .expect("a good prompt");
    // Where each token's text ends.
    let (pieces, _) = stream(&mut generator(Drafting::Off), &Options::max_new_tokens(60));
    let mut ends = vec![0];
    for piece in &pieces {
        assert_eq!(piece.tokens.len(), 1);
        ends.push(ends[ends.len() - 1] + piece.text.len());
    }
    let spaces: Vec<usize> = whole.text.match_indices(' ').map(|(at, _)| at).collect();
    for fewest in [1, 2, 15, 30] {
        // The token that holds a space is the first one whose text ends behind it.
        let of = |at: &usize| ends.partition_point(|end| end <= at);
        let expected = spaces.iter().find(|at| of(at) >= fewest).expect("a space");
        for drafting in [Drafting::Off, Drafting::Model(pair().1.clone())] {
            let mut options = Options::max_new_tokens(60).stop([" "]);
            options.min_new_tokens = fewest;
            let done = generator(drafting)
                .generate(story(), &options)
                .expect("a good prompt");
            assert_eq!(done.text, whole.text[..*expected], "at least {fewest}");
            assert_eq!(done.tokens, whole.tokens[..of(expected)]);
            assert_eq!(done.finish, FinishReason::Stop);
        }
    }
}

/// Field cases B5 and G4: whatever the stop string, drafter and granularity, the pieces joined are
/// the text, the ids of the pieces are the ids of the result, and the text ends before the stop.
#[test]
fn b5_streamed_text_is_the_text_and_holds_no_stop_string() {
    let whole = generator(Drafting::Off)
        .generate(story(), &Options::max_new_tokens(80))
        .expect("a good prompt");
    let text = &whole.text;
    assert!(text.len() > 80 && text.is_ascii(), "{text}");
    for at in (5..text.len() - 12).step_by(7) {
        for len in [1, 4, 11] {
            let stop = &text[at..at + len];
            let first = text.find(stop).expect("it is a part");
            for granularity in [Granularity::Token, Granularity::Block] {
                for drafting in [Drafting::ngram(), Drafting::Model(pair().1.clone())] {
                    let mut options = Options::max_new_tokens(80).stop([stop]);
                    options.granularity = granularity;
                    let (pieces, done) = stream(&mut generator(drafting), &options);
                    let joined: String = pieces.iter().map(|p| p.text.as_str()).collect();
                    assert_eq!(joined, text[..first], "stop {stop:?}");
                    assert_eq!(done.text, joined);
                    assert_eq!(done.finish, FinishReason::Stop);
                    let ids: Vec<u32> = pieces
                        .iter()
                        .flat_map(|p| &p.tokens)
                        .map(|t| t.token)
                        .collect();
                    assert_eq!(ids, done.tokens);
                    assert_eq!(ids, whole.tokens[..ids.len()]);
                }
            }
        }
    }
}

#[test]
fn g4_pieces_come_per_token_or_per_round() {
    let mut options = Options::max_new_tokens(60);
    let mut generator = generator(Drafting::Model(pair().1.clone()));
    let (pieces, by_token) = stream(&mut generator, &options);
    assert!(pieces.iter().all(|p| p.tokens.len() <= 1));
    options.granularity = Granularity::Block;
    let (pieces, by_block) = stream(&mut generator, &options);
    let rounds = pieces.iter().filter(|p| !p.tokens.is_empty()).count();
    assert_eq!(rounds as u64, by_block.stats.rounds);
    assert!(rounds < by_block.tokens.len());
    assert_eq!(
        (by_token.tokens, by_token.text),
        (by_block.tokens, by_block.text)
    );
}

/// Field case I6: dropping a stream cancels it, a token cancels it, and the generator goes on.
#[test]
fn i6_a_stream_ends_by_dropping_it_or_by_a_token() {
    let mut generator = generator(Drafting::ngram());
    let whole = generator
        .generate(story(), &Options::max_new_tokens(50))
        .expect("good")
        .text;
    let mut stream = generator
        .stream(story(), &Options::default())
        .expect("good");
    for _ in 0..3 {
        stream.next().expect("it goes on").expect("no step fails");
    }
    drop(stream);
    assert_eq!(generator.decoder().live().count(), 0);
    assert_eq!(
        generator
            .generate(story(), &Options::max_new_tokens(50))
            .expect("good")
            .text,
        whole
    );

    let cancel = CancelToken::new();
    let options = Options {
        cancel: Some(cancel.clone()),
        ..Options::max_new_tokens(200)
    };
    let mut stream = generator.stream(story(), &options).expect("good");
    for _ in 0..3 {
        stream.next().expect("it goes on").expect("no step fails");
    }
    cancel.cancel();
    while stream.next().is_some() {}
    let done = stream.into_generated().expect("it has ended");
    assert_eq!(done.finish, FinishReason::Cancelled);
    assert!(
        done.tokens.len() >= 3 && whole.starts_with(&done.text),
        "{}",
        done.text
    );
}
