//! The pitfalls of batch speculation, one row or a few, with their exact rounds (k, n, kept).

use crate::world::{
    Row, VOCAB, decoder, device, plain, play, play_with, row, script, script_drafter, share,
};
use specdec_core::{Decoder, FinishReason, FixedLength, Request, RequestError, TargetModel, Token};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::{Counted, Round, plan};
use specdec_testkit::scripted::{Lengths, Listed, ScriptedTarget};
use std::sync::Arc;

const END: Token = 2;

fn one(
    row: Row,
    k: usize,
    ends: &[Token],
) -> (Vec<Token>, FinishReason, Vec<(usize, usize, usize)>) {
    let (done, rounds) = play(&[row], FixedLength(k), ends).remove(0);
    (done.tokens, done.finish, rounds)
}

#[test]
fn eqspec_c01_all_rows_reject_at_once() {
    let rows = [row(5, 4, &[]).always_wrong(), row(6, 4, &[]).always_wrong()];
    for (done, rounds) in play(&rows, FixedLength(3), &[]) {
        assert_eq!(done.tokens, [10, 11, 12, 13]);
        assert_eq!(rounds, [(3, 0, 1), (2, 0, 1), (1, 0, 1), (0, 0, 1)]);
    }
}

#[test]
fn eqspec_c02_one_row_accepts_all_others_none() {
    let rows = [
        row(5, 8, &[]),
        row(6, 8, &[]).always_wrong(),
        row(7, 8, &[]).always_wrong(),
    ];
    let played = play(&rows, FixedLength(3), &[]);
    assert_eq!(played[0].1, [(3, 3, 4), (3, 3, 4)]);
    for (done, rounds) in &played[1..] {
        assert_eq!(done.tokens, (10..18).collect::<Vec<_>>());
        assert_eq!(rounds.len(), 8);
        assert!(rounds.iter().all(|r| (r.1, r.2) == (0, 1)));
    }
}

#[test]
fn eqspec_c03_all_rows_accept_all() {
    let rows = [row(5, 8, &[]), row(6, 8, &[])];
    for (done, rounds) in play(&rows, FixedLength(3), &[]) {
        assert_eq!(done.tokens, (10..18).collect::<Vec<_>>());
        assert_eq!(rounds, [(3, 3, 4), (3, 3, 4)]);
    }
}

#[test]
fn eqspec_c04_full_acceptance_then_rejection_at_once() {
    let rows = [row(5, 8, &[4]), row(6, 8, &[0, 5])];
    let played = play(&rows, FixedLength(3), &[]);
    assert_eq!(played[0].1, [(3, 3, 4), (3, 0, 1), (2, 2, 3)]);
    assert_eq!(played[1].1, [(3, 0, 1), (3, 3, 4), (2, 0, 1), (1, 1, 2)]);
    assert!(
        played
            .iter()
            .all(|(done, _)| done.tokens == (10..18).collect::<Vec<_>>())
    );
}

/// C5 and C39: an end among the accepted drafts ends the row there, and what lies behind it is not
/// counted.
#[test]
fn eqspec_c05_c39_end_inside_the_accepted_drafts() {
    let rows = [
        row(5, 8, &[]).wants(&[10, 11, END, 13, 14, 15, 16, 17]),
        row(6, 8, &[]),
    ];
    let mut played = play(&rows, FixedLength(4), &[END]);
    let (mate, _) = played.remove(1);
    assert_eq!(
        (mate.tokens, mate.finish),
        ((10..18).collect(), FinishReason::Length)
    );
    let (done, rounds) = played.remove(0);
    assert_eq!(
        (done.tokens, done.finish),
        (vec![10, 11, END], FinishReason::EndToken)
    );
    assert_eq!(rounds, [(4, 3, 3)]);
    let stats = done.stats;
    assert_eq!(
        (stats.rounds, stats.drafted, stats.accepted, stats.emitted),
        (1, 4, 3, 3)
    );
}

#[test]
fn eqspec_c06_end_as_the_correction() {
    let wants = [10, END, 12, 13, 14, 15];
    let (tokens, finish, rounds) = one(row(5, 8, &[1]).wants(&wants), 4, &[END]);
    assert_eq!((tokens, finish), (vec![10, END], FinishReason::EndToken));
    assert_eq!(rounds, [(4, 1, 2)]);
}

#[test]
fn eqspec_c07_end_as_the_bonus() {
    let wants = [10, 11, 12, END, 14];
    let (tokens, finish, rounds) = one(row(5, 8, &[]).wants(&wants), 3, &[END]);
    assert_eq!(
        (tokens, finish),
        (vec![10, 11, 12, END], FinishReason::EndToken)
    );
    assert_eq!(rounds, [(3, 3, 4)]);
}

/// C8 and B2: an end that only the drafter wants has no effect.
#[test]
fn eqspec_c08_b2_a_drafted_end_the_target_rejects() {
    let rows = [row(5, 5, &[])];
    let drafter = Listed::tokens([vec![10, END, 12], vec![END], vec![]]);
    let (done, rounds) = play_with(
        &share(script(&rows)),
        drafter,
        &rows,
        FixedLength(3),
        &[END],
    )
    .remove(0);
    assert_eq!(
        (done.tokens, done.finish),
        (vec![10, 11, 12, 13, 14], FinishReason::Length)
    );
    assert_eq!(rounds[..2], [(3, 1, 2), (1, 0, 1)]);
}

#[test]
fn eqspec_c09_end_token_in_the_prompt() {
    let (tokens, finish, _) = one(row(5, 4, &[]).prompt(&[5, END, 6]), 3, &[END]);
    assert_eq!(
        (tokens, finish),
        (vec![10, 11, 12, 13], FinishReason::Length)
    );
}

/// C10: there is no padding value; every id is an ordinary token, 0 and the last one too.
#[test]
fn eqspec_c10_ids_that_others_pad_with() {
    let last = VOCAB as Token - 1;
    let (tokens, ..) = one(
        row(0, 5, &[1])
            .prompt(&[0, 0])
            .wants(&[0, last, 0, 0, 7, 8]),
        3,
        &[],
    );
    assert_eq!(tokens, [0, last, 0, 0, 7]);
}

#[test]
fn eqspec_c11_several_end_tokens() {
    for wants in [[10, 7, 12, 13], [10, END, 12, 13]] {
        let (tokens, finish, _) = one(row(5, 4, &[]).wants(&wants), 3, &[END, 7]);
        assert_eq!(
            (tokens, finish),
            (wants[..2].to_vec(), FinishReason::EndToken)
        );
    }
}

#[test]
fn eqspec_c12_limit_inside_a_block() {
    let (tokens, finish, rounds) = one(row(5, 3, &[]), 4, &[]);
    assert_eq!((tokens, finish), (vec![10, 11, 12], FinishReason::Length));
    assert_eq!(rounds, [(2, 2, 3)]);
}

#[test]
fn eqspec_c13_limits_of_one_and_none() {
    let rows = [row(5, 1, &[])];
    let (done, rounds) = play(&rows, FixedLength(4), &[]).remove(0);
    assert_eq!((done.tokens, rounds), (vec![10], vec![(0, 0, 1)]));
    let target = Counted::new(script(&rows));
    let calls = target.calls();
    let mut decoder = decoder(&share(target), script_drafter(&rows), FixedLength(4));
    let done = decoder
        .generate(Request::new([5, 1]).max_new_tokens(0))
        .expect("an empty result");
    assert_eq!((done.tokens.len(), done.finish), (0, FinishReason::Length));
    assert_eq!(calls.passes(), 0);
}

#[test]
fn eqspec_c14_end_before_at_and_beyond_the_limit() {
    for (place, len, reason) in [
        (2, 3, FinishReason::EndToken),
        (4, 5, FinishReason::EndToken),
        (5, 5, FinishReason::Length),
    ] {
        let mut wants: Vec<Token> = (10..20).collect();
        wants[place] = END;
        let (tokens, finish, _) = one(row(5, 5, &[]).wants(&wants), 5, &[END]);
        assert_eq!((tokens.len(), finish), (len, reason), "end at {place}");
        assert_eq!(tokens, wants[..len]);
    }
}

#[test]
fn eqspec_c15_another_limit_for_every_row() {
    let rows = [row(5, 1, &[]), row(6, 3, &[]), row(7, 9, &[])];
    let played = play(&rows, FixedLength(4), &[]);
    let lens: Vec<_> = played.iter().map(|(done, _)| done.tokens.len()).collect();
    assert_eq!(lens, [1, 3, 9]);
    assert_eq!(
        played[2].1,
        [(4, 4, 5), (3, 3, 4)],
        "the longest row keeps its drafts"
    );
}

#[test]
fn eqspec_c17_a_prompt_of_one_token() {
    let (tokens, _, rounds) = one(row(5, 6, &[2]).prompt(&[5]), 3, &[]);
    assert_eq!(tokens, (10..16).collect::<Vec<_>>());
    assert_eq!(rounds, [(3, 2, 3), (2, 2, 3)]);
}

#[test]
fn eqspec_c23_no_drafts_and_drafts_longer_than_everything() {
    let (tokens, _, rounds) = one(row(5, 5, &[]), 0, &[]);
    assert_eq!((tokens, rounds), ((10..15).collect(), vec![(0, 0, 1); 5]));
    let (tokens, _, rounds) = one(row(5, 5, &[]), 64, &[]);
    assert_eq!((tokens, rounds), ((10..15).collect(), vec![(4, 4, 5)]));
}

#[test]
fn eqspec_c24_drafts_on_and_off() {
    let length = |round: usize| 3 * (round % 2);
    let wrong = [3, 8, 9];
    let (done, rounds) = play(
        &[row(5, 16, &wrong)],
        Lengths::new(move |_, round| length(round)),
        &[],
    )
    .remove(0);
    assert_eq!(done.tokens, (10..26).collect::<Vec<_>>());
    let want: Vec<_> = plan(16, length, |i| wrong.contains(&i))
        .iter()
        .map(|r: &Round| (r.k, r.n, r.kept))
        .collect();
    assert_eq!(rounds, want);
}

/// C25: an id the target does not have cuts the draft before it and never reaches the target.
#[test]
fn eqspec_c25_a_drafted_id_outside_the_vocabulary() {
    let rows = [row(5, 8, &[])];
    let outside = VOCAB as Token;
    let drafter = Listed::tokens([
        vec![10, outside, 12, 13],
        vec![outside],
        vec![13, u32::MAX],
        vec![],
    ]);
    let (done, rounds) =
        play_with(&share(script(&rows)), drafter, &rows, FixedLength(4), &[]).remove(0);
    assert_eq!(done.tokens, (10..18).collect::<Vec<_>>());
    assert_eq!(rounds[..3], [(1, 1, 2), (0, 0, 1), (1, 1, 2)]);
}

/// C28 and F2: columns beyond the vocabulary are never emitted, however large; nor are ids without
/// text.
#[test]
fn eqspec_c28_f2_padded_tables_and_ids_without_text() {
    let model = crate::world::hash_lm(20).with_padding(12);
    let want = model.greedy(&[3, 4], 30);
    let done = plain(
        &share(model.clone()),
        Request::new([3, 4]).max_new_tokens(30),
    );
    assert_eq!(done.tokens, want);
    // The ids the model likes best are suppressed: never emitted, never drafted.
    let liked = [want[0], want[1]];
    for drafted in [false, true] {
        let builder = Decoder::builder(Arc::new(model.clone()))
            .cache(VecCache::new(model.spec()))
            .suppress(liked);
        let builder = if drafted {
            builder.drafter(Listed::tokens(vec![vec![liked[0], 1, 2]; 40]))
        } else {
            builder
        };
        let done = builder
            .build()
            .expect("the parts fit")
            .generate(Request::new([3, 4]).max_new_tokens(30))
            .expect("decoding");
        assert_eq!(done.tokens.len(), 30);
        assert!(done.tokens.iter().all(|t| !liked.contains(t)));
        assert_eq!(done.stats.drafted, 0, "a suppressed id cuts the draft");
    }
}

#[test]
fn eqspec_c30_prompts_at_the_end_of_the_context() {
    let rows = [row(5, 10, &[])];
    let target = share(script(&rows).with_context(8));
    let run = |len: usize| {
        let mut prompt = vec![1; len];
        prompt[0] = 5;
        decoder(&target, script_drafter(&rows), FixedLength(4))
            .generate(Request::new(prompt).max_new_tokens(10))
    };
    let full = run(8).expect("an empty result");
    assert_eq!(
        (full.tokens.len(), full.finish, full.stats.rounds),
        (0, FinishReason::Length, 0)
    );
    let one = run(7).expect("one token");
    assert_eq!(
        (one.tokens.len(), one.finish, one.stats.drafted),
        (1, FinishReason::Length, 0)
    );
    let over = run(9).expect_err("too long");
    assert!(matches!(
        over,
        specdec_core::Error::Request(RequestError::PromptTooLong { len: 9, context: 8 })
    ));
}

#[test]
fn eqspec_c31_a_block_that_would_cross_the_end_of_the_context() {
    let rows = [row(5, 10, &[]).prompt(&[5, 1, 1, 1, 1])];
    let target = share(script(&rows).with_context(8));
    let (done, rounds) =
        play_with(&target, script_drafter(&rows), &rows, FixedLength(4), &[]).remove(0);
    assert_eq!(
        (done.tokens, done.finish),
        (vec![10, 11, 12], FinishReason::Length)
    );
    assert_eq!(rounds, [(2, 2, 3)]);
}

/// C36 and A2: of equal logits the lowest id wins, in plain decoding, inside blocks, on the device
/// and on the host.
#[test]
fn eqspec_c36_a2_exact_ties_take_the_lowest_id() {
    let target = ScriptedTarget::new(8, &device(), |seen| {
        // Three tokens share the best logit, at places that change.
        let low = seen.position % 5;
        (0..8)
            .map(|t| f32::from(u8::from(t == low || t == low + 1 || t == 7)))
            .collect()
    });
    let want: Vec<Token> = (1..13).map(|p| (p % 5) as Token).collect();
    let target = share(target);
    let request = || Request::new([5, 6]).max_new_tokens(12);
    assert_eq!(plain(&target, request()).tokens, want);
    let logprobs = |mut request: Request| {
        request.sampling.logprobs = Some(1);
        request
    };
    // Asking for log-probabilities takes the host's path.
    assert_eq!(plain(&target, logprobs(request())).tokens, want);
    for drafter in crate::world::drafters(&target, &[5, 6], &want) {
        for request in [request(), logprobs(request())] {
            let done = decoder(&target, drafter.clone(), FixedLength(4)).generate(request);
            assert_eq!(done.expect("decoding").tokens, want);
        }
    }
}

/// C40: behind the first mismatch nothing of the draft is emitted, even where it is right.
#[test]
fn eqspec_c40_the_bonus_is_the_targets() {
    let rows = [row(5, 4, &[]).wants(&[5, 6, 7, 8])];
    let drafter = Listed::tokens([vec![5, 9, 7], vec![]]);
    let (done, rounds) =
        play_with(&share(script(&rows)), drafter, &rows, FixedLength(3), &[]).remove(0);
    assert_eq!(done.tokens, [5, 6, 7, 8]);
    assert_eq!(rounds[0], (3, 1, 2));
}
