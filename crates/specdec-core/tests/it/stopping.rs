//! Ends, stops and limits.

use crate::world::{decoder, drafters, hash_lm, plain, play, play_with, row, script, share};
use specdec_core::{Event, FinishReason, FixedLength, Request, StopRule, Token};
use specdec_testkit::oracle::{Continuations, Counted};
use specdec_testkit::scripted::{Listed, ScriptedDrafter};

const END: Token = 2;

/// B1: output, cache and counters end at the end token, wherever in a block it is accepted.
#[test]
fn b1_an_end_accepted_in_the_middle_of_a_block() {
    for place in 0..6 {
        let mut wants: Vec<Token> = (10..20).collect();
        wants[place] = END;
        let rows = [row(5, 10, &[]).wants(&wants)];
        let mut decoder = decoder(
            &share(script(&rows)),
            crate::world::script_drafter(&rows),
            FixedLength(5),
        );
        let request = Request::new([5, 1]).max_new_tokens(10).end_tokens([END]);
        let seq = decoder.submit(request).expect("a good request");
        let done = decoder.run().expect("decoding").remove(0);
        assert_eq!(done.tokens, wants[..=place]);
        assert_eq!(
            (done.finish, done.stats.emitted),
            (FinishReason::EndToken, place as u64 + 1)
        );
        assert_eq!(
            done.stats.accepted,
            place.min(5) as u64 + u64::from(place < 5)
        );
        assert_eq!(decoder.cache().len(seq), 0, "the cache is free again");
        assert_eq!(decoder.cache().memory_bytes(), 0);
    }
}

/// B3: exactly as many tokens as asked for.
#[test]
fn b3_limits_from_none_to_nine() {
    let model = hash_lm(20);
    let known = Continuations::new([(vec![7, 7], model.greedy(&[7, 7], 20))]);
    for limit in 0..=9 {
        let target = Counted::new(model.clone());
        let calls = target.calls();
        let mut decoder = decoder(
            &share(target),
            ScriptedDrafter::oracle(known.clone()),
            FixedLength(4),
        );
        let done = decoder
            .generate(Request::new([7, 7]).max_new_tokens(limit))
            .expect("decoding");
        assert_eq!(done.tokens, model.greedy(&[7, 7], limit));
        assert_eq!(done.finish, FinishReason::Length);
        assert_eq!(
            calls.passes() == 0,
            limit == 0,
            "no model call for no tokens"
        );
    }
}

/// B4: counts are those of the tokens delivered, for every limit and a stop at every place.
#[test]
fn b4_counts_are_those_of_what_is_delivered() {
    for limit in 1..8usize {
        for place in 0..8usize {
            let mut wants: Vec<Token> = (10..20).collect();
            wants[place] = END;
            let rows = [row(5, limit, &[3]).wants(&wants)];
            let target = share(script(&rows));
            let mut decoder = decoder(&target, crate::world::script_drafter(&rows), FixedLength(4));
            let request = Request::new([5, 1]).max_new_tokens(limit).end_tokens([END]);
            let mut delivered = Vec::new();
            let mut completion = None;
            for event in decoder.stream(request).expect("a good request") {
                match event.expect("decoding") {
                    Event::Tokens { tokens, .. } => delivered.extend(tokens),
                    Event::Finished(done) => completion = Some(done),
                    other => panic!("unexpected {other:?}"),
                }
            }
            let done = completion.expect("an end");
            let n = limit.min(place + 1);
            assert_eq!(delivered.len(), n);
            assert_eq!(
                done.tokens,
                delivered.iter().map(|e| e.token).collect::<Vec<_>>()
            );
            assert_eq!((done.stats.emitted, done.prompt_tokens), (n as u64, 2));
            let drafted = delivered.iter().filter(|e| e.drafted).count() as u64;
            assert_eq!(done.stats.accepted, drafted);
            assert_eq!(decoder.stats().emitted, n as u64);
        }
    }
}

/// C3: a minimum holds the end back, and state advances per token, not per round.
#[test]
fn c3_a_minimum_of_tokens_before_the_end() {
    let rows = [row(5, 30, &[]).wants(&[END; 30])];
    let target = share(script(&rows));
    let request = || {
        let mut request = Request::new([5, 1]).max_new_tokens(30).end_tokens([END]);
        request.limits.min_new_tokens = 10;
        request
    };
    let want = plain(&target, request());
    assert_eq!(want.tokens, [[0; 10].as_slice(), &[END]].concat());
    for drafter in drafters(&target, &[5, 1], &want.tokens) {
        let done = decoder(&target, drafter, FixedLength(7))
            .generate(request())
            .expect("decoding");
        assert_eq!(
            (done.tokens, done.finish),
            (want.tokens.clone(), want.finish)
        );
    }
    // A drafter that wants to end at once, and goes on beyond the end.
    let eager = Listed::tokens(vec![vec![END; 7]; 20]);
    let done = decoder(&target, eager, FixedLength(7))
        .generate(request())
        .expect("decoding");
    assert_eq!(done.tokens, want.tokens);
}

/// Ends with the two tokens 12, 13 in a row.
#[derive(Debug, Default)]
struct Pair {
    fed: Vec<Token>,
}

impl StopRule for Pair {
    fn hits(&mut self, token: Token) -> bool {
        self.fed.push(token);
        assert_eq!(
            self.fed,
            (10..10 + self.fed.len() as Token).collect::<Vec<_>>(),
            "fed in order"
        );
        self.fed.ends_with(&[12, 13])
    }
}

/// C43 and B5: a stop rule is fed every emitted token once, across the edges of blocks, and nothing
/// after it is emitted.
#[test]
fn eqspec_c43_b5_a_stop_across_the_edge_of_a_block() {
    for k in 0..6 {
        for wrong in 0..4 {
            let rows = [row(5, 12, &[wrong])];
            let mut decoder = decoder(
                &share(script(&rows)),
                crate::world::script_drafter(&rows),
                FixedLength(k),
            );
            let mut request = Request::new([5, 1]).max_new_tokens(12);
            request.stop = Some(Box::new(Pair::default()));
            let done = decoder.generate(request).expect("decoding");
            assert_eq!(
                (done.tokens, done.finish),
                (vec![10, 11, 12, 13], FinishReason::Stop)
            );
            assert_eq!(decoder.stats().emitted, 4);
        }
    }
}

/// B2 with an oracle that goes on beyond the end: what lies behind it does not exist.
#[test]
fn b2_drafts_beyond_an_end_do_not_exist() {
    let rows = [row(5, 12, &[]).wants(&[10, END, 12, 13, 14])];
    let (done, _) = play(&rows, FixedLength(4), &[END]).remove(0);
    assert_eq!(done.tokens, [10, END]);
    let wrong = Listed::tokens([vec![END, END, END], vec![]]);
    let (done, rounds) =
        play_with(&share(script(&rows)), wrong, &rows, FixedLength(4), &[END]).remove(0);
    assert_eq!(done.tokens, [10, END]);
    assert_eq!(rounds, [(3, 0, 1), (0, 0, 1)]);
}

/// A stop inside the minimum does not end the output, and is not asked again about the past.
#[test]
fn c3_a_stop_inside_the_minimum() {
    for k in 0..5 {
        let rows = [row(5, 9, &[])];
        let mut decoder = decoder(
            &share(script(&rows)),
            crate::world::script_drafter(&rows),
            FixedLength(k),
        );
        let mut request = Request::new([5, 1]).max_new_tokens(9);
        request.limits.min_new_tokens = 5;
        request.stop = Some(Box::new(Pair::default()));
        let done = decoder.generate(request).expect("decoding");
        assert_eq!((done.tokens.len(), done.finish), (9, FinishReason::Length));
    }
}

/// The minimum counts the token that completes the stop.
#[test]
fn c3_a_stop_at_the_minimum() {
    for k in 0..5 {
        let rows = [row(5, 9, &[])];
        let drafter = crate::world::script_drafter(&rows);
        let mut decoder = decoder(&share(script(&rows)), drafter, FixedLength(k));
        let mut request = Request::new([5, 1]).max_new_tokens(9);
        request.limits.min_new_tokens = 4;
        request.stop = Some(Box::new(Pair::default()));
        let done = decoder.generate(request).expect("decoding");
        assert_eq!((done.tokens.len(), done.finish), (4, FinishReason::Stop));
    }
}
