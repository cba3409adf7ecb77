//! The pitfalls of batch speculation with their exact rounds (k, n, kept), under every strategy.
//! C27, drafters of another vocabulary, is decided when a decoder is built, whatever its strategy.

use crate::world::{
    Row, Target, VOCAB, device, often_right, prompt, row, script, script_drafter, setups,
};
use specdec_core::{Error, FinishReason, FixedLength, Request, RequestError, StopRule, Token};
use specdec_testkit::oracle::{Counted, plan};
use specdec_testkit::scripted::{Lengths, Listed, ScriptedTarget};
use std::sync::Arc;

const END: Token = 2;

/// 10, 11, 12, ...
fn count(n: usize) -> Vec<Token> {
    (10..10 + n as Token).collect()
}

#[test]
fn c01_all_rows_reject_at_once() {
    let rows = [row(5, 4, &[]).always_wrong(), row(6, 4, &[]).always_wrong()];
    for setup in setups() {
        for (done, rounds) in setup.play(&rows, FixedLength(3), &[]) {
            assert_eq!(done.tokens, count(4), "{setup:?}");
            assert_eq!(rounds, [(3, 0, 1), (2, 0, 1), (1, 0, 1), (0, 0, 1)]);
        }
    }
}

#[test]
fn c02_one_row_accepts_all_others_none() {
    let rows = [
        row(5, 8, &[]),
        row(6, 8, &[]).always_wrong(),
        row(7, 8, &[]).always_wrong(),
    ];
    for setup in setups() {
        let played = setup.play(&rows, FixedLength(3), &[]);
        assert_eq!(played[0].1, [(3, 3, 4), (3, 3, 4)], "{setup:?}");
        for (done, rounds) in &played[1..] {
            assert_eq!(done.tokens, count(8), "{setup:?}");
            assert_eq!(rounds.len(), 8);
            assert!(rounds.iter().all(|r| (r.1, r.2) == (0, 1)));
        }
    }
}

#[test]
fn c03_c04_full_acceptance_and_rejection_after_it() {
    let rows = [row(5, 8, &[]), row(6, 8, &[4]), row(7, 8, &[0, 5])];
    for setup in setups() {
        let played = setup.play(&rows, FixedLength(3), &[]);
        assert_eq!(played[0].1, [(3, 3, 4), (3, 3, 4)], "{setup:?}");
        assert_eq!(played[1].1, [(3, 3, 4), (3, 0, 1), (2, 2, 3)]);
        assert_eq!(played[2].1, [(3, 0, 1), (3, 3, 4), (2, 0, 1), (1, 1, 2)]);
        assert!(played.iter().all(|(done, _)| done.tokens == count(8)));
    }
}

/// C5, C39: an end among the accepted drafts, and what lies behind it is not counted.
#[test]
fn c05_c39_end_inside_the_accepted_drafts() {
    let rows = [
        row(5, 8, &[]).wants(&[10, 11, END, 13, 14, 15, 16, 17]),
        row(6, 8, &[]),
    ];
    for setup in setups() {
        let mut played = setup.play(&rows, FixedLength(4), &[END]);
        let (mate, _) = played.remove(1);
        assert_eq!((mate.tokens, mate.finish), (count(8), FinishReason::Length));
        let (done, rounds) = played.remove(0);
        assert_eq!(done.tokens, [10, 11, END], "{setup:?}");
        assert_eq!(done.finish, FinishReason::EndToken);
        assert_eq!(rounds, [(4, 3, 3)]);
        let stats = done.stats;
        assert_eq!((stats.drafted, stats.accepted, stats.emitted), (4, 3, 3));
    }
}

#[test]
fn c06_c07_c11_end_as_the_correction_as_the_bonus_and_of_several() {
    type Case = (
        Vec<Token>,
        Vec<usize>,
        usize,
        Vec<Token>,
        usize,
        (usize, usize, usize),
    );
    let cases: [Case; 4] = [
        (
            vec![10, END, 12, 13, 14],
            vec![1],
            4,
            vec![END],
            2,
            (4, 1, 2),
        ),
        (
            vec![10, 11, 12, END, 14],
            vec![],
            3,
            vec![END],
            4,
            (3, 3, 4),
        ),
        (vec![10, 7, 12, 13], vec![], 3, vec![END, 7], 2, (3, 2, 2)),
        (vec![10, END, 12, 13], vec![], 3, vec![END, 7], 2, (3, 2, 2)),
    ];
    for setup in setups() {
        for (wants, wrong, k, ends, len, round) in &cases {
            let (tokens, finish, rounds) = setup.one(row(5, 8, wrong).wants(wants), *k, ends);
            assert_eq!(tokens, wants[..*len], "{setup:?}");
            assert_eq!(finish, FinishReason::EndToken);
            assert_eq!(rounds, [*round]);
        }
    }
}

#[test]
fn c08_a_drafted_end_the_target_rejects() {
    let rows = [row(5, 5, &[])];
    for setup in setups() {
        let drafter = Listed::tokens([vec![10, END, 12], vec![END], vec![]]);
        let target: Target = Arc::new(script(&rows));
        let played = setup.play_with(&target, drafter, &rows, (FixedLength(3), &[END]));
        assert_eq!(played[0].0.tokens, count(5), "{setup:?}");
        assert_eq!(played[0].0.finish, FinishReason::Length);
        assert_eq!(played[0].1[..2], [(3, 1, 2), (1, 0, 1)]);
    }
}

/// C9, C10: end and padding ids of others are ordinary tokens in prompts, and in output.
#[test]
fn c09_c10_no_id_is_special_in_content() {
    let last = VOCAB as Token - 1;
    for setup in setups() {
        let (tokens, finish, _) = setup.one(row(5, 4, &[]).prompt(&[5, END, 6]), 3, &[END]);
        assert_eq!((tokens, finish), (count(4), FinishReason::Length));
        let wants = [0, last, 0, 0, 7, 8];
        let padded = row(0, 5, &[1]).prompt(&[0, 0]).wants(&wants);
        let longer = row(5, 8, &[]).prompt(&[5, 0, 0, last, last, 0]);
        let played = setup.play(&[padded, longer], FixedLength(3), &[]);
        assert_eq!(played[0].0.tokens, wants[..5], "{setup:?}");
        assert_eq!(played[1].0.tokens, count(8), "{setup:?}");
    }
}

#[test]
fn c12_c13_limits_inside_a_block_of_one_and_of_none() {
    for setup in setups() {
        let (tokens, finish, rounds) = setup.one(row(5, 3, &[]), 4, &[]);
        assert_eq!((tokens, finish), (count(3), FinishReason::Length));
        assert_eq!(rounds, [(2, 2, 3)], "{setup:?}");
        let (tokens, _, rounds) = setup.one(row(5, 1, &[]), 4, &[]);
        assert_eq!((tokens, rounds), (count(1), vec![(0, 0, 1)]));
        let rows = [row(5, 1, &[])];
        let counted = Counted::new(script(&rows));
        let calls = counted.calls();
        let target: Target = Arc::new(counted);
        let mut decoder = setup.decoder(&target, script_drafter(&rows), FixedLength(4));
        let none = Request::new([5, 1]).max_new_tokens(0);
        let done = decoder.generate(none).expect("an empty result");
        assert_eq!((done.tokens.len(), done.finish), (0, FinishReason::Length));
        assert_eq!(calls.passes(), 0);
    }
}

#[test]
fn c14_end_before_at_and_beyond_the_limit() {
    let cases = [
        (2, 3, FinishReason::EndToken),
        (4, 5, FinishReason::EndToken),
        (5, 5, FinishReason::Length),
    ];
    for setup in setups() {
        for (place, len, reason) in cases {
            let mut wants = count(10);
            wants[place] = END;
            let (tokens, finish, _) = setup.one(row(5, 5, &[]).wants(&wants), 5, &[END]);
            assert_eq!((tokens.len(), finish), (len, reason), "{setup:?}");
            assert_eq!(tokens, wants[..len]);
        }
    }
}

#[test]
fn c15_another_limit_for_every_row() {
    let rows = [row(5, 1, &[]), row(6, 3, &[]), row(7, 9, &[])];
    for setup in setups() {
        let played = setup.play(&rows, FixedLength(4), &[]);
        let lens: Vec<_> = played.iter().map(|(done, _)| done.tokens.len()).collect();
        assert_eq!(lens, [1, 3, 9], "{setup:?}");
        assert_eq!(
            played[2].1,
            [(4, 4, 5), (3, 3, 4)],
            "the longest keeps its drafts"
        );
    }
}

#[test]
fn c17_a_prompt_of_one_token() {
    for setup in setups() {
        let rows = [
            row(5, 6, &[2]).prompt(&[5]),
            row(6, 6, &[]).prompt(&[6, 1, 1, 1, 1, 1, 1]),
        ];
        let played = setup.play(&rows, FixedLength(3), &[]);
        assert_eq!(played[0].0.tokens, count(6), "{setup:?}");
        assert_eq!(played[0].1, [(3, 2, 3), (2, 2, 3)]);
        assert_eq!(played[1].0.tokens, count(6), "{setup:?}");
    }
}

#[test]
fn c23_no_drafts_and_drafts_longer_than_everything() {
    for setup in setups() {
        let (tokens, _, rounds) = setup.one(row(5, 5, &[]), 0, &[]);
        assert_eq!((tokens, rounds), (count(5), vec![(0, 0, 1); 5]));
        let (tokens, _, rounds) = setup.one(row(5, 5, &[]), 64, &[]);
        assert_eq!((tokens, rounds), (count(5), vec![(4, 4, 5)]), "{setup:?}");
    }
}

#[test]
fn c24_drafts_on_and_off() {
    let length = |round: usize| 3 * (round % 2);
    let wrong = [3, 8, 9];
    let want: Vec<_> = plan(16, length, |i| wrong.contains(&i))
        .iter()
        .map(|r| (r.k, r.n, r.kept))
        .collect();
    for setup in setups() {
        let rows = [row(5, 16, &wrong), row(6, 12, &[1])];
        let lengths = Lengths::new(move |_, round| length(round));
        let played = setup.play(&rows, lengths, &[]);
        assert_eq!(played[0].0.tokens, count(16), "{setup:?}");
        assert_eq!(played[0].1, want, "{setup:?}");
        assert_eq!(played[1].0.tokens, count(12), "{setup:?}");
    }
}

#[test]
fn c25_a_drafted_id_outside_the_vocabulary() {
    let rows = [row(5, 8, &[])];
    let outside = VOCAB as Token;
    for setup in setups() {
        let drafter = Listed::tokens([
            vec![10, outside, 12, 13],
            vec![outside],
            vec![13, u32::MAX],
            vec![],
        ]);
        let target: Target = Arc::new(script(&rows));
        let played = setup.play_with(&target, drafter, &rows, (FixedLength(4), &[]));
        assert_eq!(played[0].0.tokens, count(8), "{setup:?}");
        assert_eq!(played[0].1[..3], [(1, 1, 2), (0, 0, 1), (1, 1, 2)]);
    }
}

#[test]
fn c28_columns_beyond_the_vocabulary() {
    let model = crate::world::hash_lm(20).with_padding(12);
    for setup in setups() {
        let target: Target = Arc::new(model.clone());
        let prompts = [prompt(3), prompt(8)];
        let drafter = often_right(&prompts, 0.7);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
        for prompt in &prompts {
            let request = Request::new(prompt.clone()).max_new_tokens(20);
            decoder.submit(request).expect("a good request");
        }
        for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
            assert_eq!(done.tokens, model.greedy(prompt, 20), "{setup:?}");
        }
    }
}

/// C29: a bad prompt is refused, and its mates do not notice.
#[test]
fn c29_an_empty_prompt_among_good_ones() {
    for setup in setups() {
        let rows = [row(5, 6, &[1]), row(6, 9, &[])];
        let target: Target = Arc::new(script(&rows));
        let mut decoder = setup.decoder(&target, script_drafter(&rows), FixedLength(3));
        for row in &rows {
            let request = Request::new(row.prompt.clone()).max_new_tokens(row.max_new);
            decoder.submit(request).expect("a good request");
            let refused = decoder.submit(Request::new([])).expect_err("no token");
            assert!(matches!(refused, Error::Request(RequestError::EmptyPrompt)));
        }
        let done = decoder.run().expect("decoding");
        let tokens: Vec<_> = done.iter().map(|d| d.tokens.clone()).collect();
        assert_eq!(tokens, [count(6), count(9)], "{setup:?}");
    }
}

#[test]
fn c30_c31_the_end_of_the_context() {
    let rows = [row(5, 10, &[]), row(6, 10, &[])];
    for setup in setups() {
        let run = |len: usize| {
            let mut rows = rows.clone();
            rows[0].prompt.resize(len, 1);
            let target: Target = Arc::new(script(&rows).with_context(8));
            let mut decoder = setup.decoder(&target, script_drafter(&rows), FixedLength(4));
            let request = Request::new(rows[1].prompt.clone()).max_new_tokens(10);
            decoder.submit(request).expect("a mate");
            decoder.generate(Request::new(rows[0].prompt.clone()).max_new_tokens(10))
        };
        let full = run(8).expect("an empty result");
        assert_eq!((full.tokens.len(), full.stats.rounds), (0, 0), "{setup:?}");
        let one = run(7).expect("one token");
        assert_eq!((one.tokens.len(), one.stats.drafted), (1, 0), "{setup:?}");
        assert!(matches!(
            run(9),
            Err(Error::Request(RequestError::PromptTooLong {
                len: 9,
                context: 8
            }))
        ));
        let near = [row(5, 10, &[]).prompt(&[5, 1, 1, 1, 1])];
        let target: Target = Arc::new(script(&near).with_context(8));
        let played = setup.play_with(&target, script_drafter(&near), &near, (FixedLength(4), &[]));
        assert_eq!(played[0].0.finish, FinishReason::Length);
        assert_eq!(played[0].1, [(2, 2, 3)], "{setup:?}");
    }
}

#[test]
fn c36_exact_ties_take_the_lowest_id() {
    let target = ScriptedTarget::new(8, &device(), |seen| {
        let low = seen.position % 5;
        (0..8)
            .map(|t| f32::from(u8::from(t == low || t == low + 1 || t == 7)))
            .collect()
    });
    let want = |from: usize| (from..from + 12).map(|p| (p % 5) as Token);
    for setup in setups() {
        let rows: Vec<Row> = [2, 5]
            .map(|len| {
                let wants: Vec<Token> = want(len - 1).collect();
                let mut prompt = vec![1; len];
                prompt[0] = len as Token;
                row(0, 12, &[3, 4]).prompt(&prompt).wants(&wants)
            })
            .into();
        let target: Target = Arc::new(target.clone());
        let played = setup.play_with(&target, script_drafter(&rows), &rows, (FixedLength(4), &[]));
        for ((done, _), row) in played.iter().zip(&rows) {
            assert_eq!(done.tokens, row.wants, "{setup:?}");
        }
    }
}

#[test]
fn c40_the_bonus_is_the_targets() {
    let rows = [row(5, 4, &[]).wants(&[5, 6, 7, 8])];
    for setup in setups() {
        let drafter = Listed::tokens([vec![5, 9, 7], vec![]]);
        let target: Target = Arc::new(script(&rows));
        let played = setup.play_with(&target, drafter, &rows, (FixedLength(3), &[]));
        assert_eq!(played[0].0.tokens, [5, 6, 7, 8], "{setup:?}");
        assert_eq!(played[0].1[0], (3, 1, 2));
    }
}

/// Ends at 12, 13, whichever blocks they come in.
#[derive(Debug, Default)]
struct Pair(Vec<Token>);

impl StopRule for Pair {
    fn hits(&mut self, token: Token) -> bool {
        self.0.push(token);
        self.0.ends_with(&[12, 13])
    }
}

#[test]
fn c43_a_stop_across_the_edge_of_a_block() {
    for setup in setups() {
        for k in 0..6 {
            let rows = [row(5, 9, &[]), row(6, 9, &[1])];
            let target: Target = Arc::new(script(&rows));
            let mut decoder = setup.decoder(&target, script_drafter(&rows), FixedLength(k));
            for row in &rows {
                let mut request = Request::new(row.prompt.clone()).max_new_tokens(9);
                request.stop = Some(Box::<Pair>::default());
                decoder.submit(request).expect("a good request");
            }
            for done in decoder.run().expect("decoding") {
                assert_eq!(done.tokens, count(4), "{setup:?}, drafts of {k}");
                assert_eq!(done.finish, FinishReason::Stop);
            }
        }
    }
}

/// C21: all rows end in one round; no row at all; fewer rows than places.
#[test]
fn c21_nothing_to_do() {
    for setup in setups() {
        let rows: [Row; 2] = [row(5, 4, &[]), row(6, 4, &[])];
        let played = setup.play(&rows, FixedLength(3), &[]);
        assert!(
            played.iter().all(|(_, rounds)| rounds.len() == 1),
            "{setup:?}"
        );
        assert!(setup.play(&[], FixedLength(3), &[]).is_empty());
        let target: Target = Arc::new(script(&rows));
        let mut decoder = setup.decoder(&target, script_drafter(&rows), FixedLength(3));
        assert!(decoder.is_idle() && decoder.step().expect("no work").is_empty());
        // N below B, and a decoder that is used again.
        let done = decoder.generate(Request::new([6, 1]).max_new_tokens(4));
        assert_eq!(done.expect("decoding").tokens, count(4));
    }
}
