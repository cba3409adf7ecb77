//! The pitfalls that need several rows of an exact model, and field cases D, F8 and I6, under every
//! strategy.

use crate::world::{
    Rounds, Setup, Target, check_round, decode_all, hash_lm, often_right, prompt, rounds, row,
    script, script_drafter, setups,
};
use specdec_core::{
    CancelToken, Completion, FinishReason, FixedLength, Request, SeqId, TargetModel, Token,
};
use specdec_ragged::{GroupByLength, Strategy};
use specdec_testkit::oracle::{Continuations, Counted, Traced};
use specdec_testkit::scripted::{Lengths, Mistakes, ScriptedDrafter};
use std::sync::Arc;

fn together(
    setup: Setup,
    prompts: &[Vec<Token>],
    max_new: impl Fn(usize) -> usize,
) -> (Vec<Completion>, Vec<Rounds>) {
    let controller = Traced::new(FixedLength(3));
    let trace = controller.trace();
    let target: Target = Arc::new(hash_lm(20));
    let mut decoder = setup.decoder(&target, often_right(prompts, 0.6), controller);
    let done = decode_all(&mut decoder, &target, prompts, max_new);
    let rounds = done.keys().map(|seq| rounds(&trace.of(*seq))).collect();
    (done.into_values().collect(), rounds)
}

fn tokens(done: &[Completion]) -> Vec<Vec<Token>> {
    done.iter().map(|d| d.tokens.clone()).collect()
}

/// C16, C18, D1: prompts of any length; each row equals its solo run, in tokens and in rounds.
#[test]
fn c16_c18_d1_rows_equal_their_solo_runs() {
    let prompts = [1, 3, 7, 2, 30].map(prompt);
    for setup in setups() {
        let (done, traces) = together(setup, &prompts, |_| 12);
        for (i, prompt) in prompts.iter().enumerate() {
            assert_eq!(
                done[i].tokens,
                hash_lm(20).greedy(prompt, 12),
                "{setup:?}, row {i}"
            );
            let (alone, alone_rounds) = together(setup, &prompts[i..=i], |_| 12);
            assert_eq!(alone[0].tokens, done[i].tokens);
            assert_eq!(alone_rounds[0], traces[i], "{setup:?}, row {i}");
        }
    }
}

/// C18: a row that has the cache to itself is never moved; rows of other lengths are.
#[test]
fn c18_nothing_moves_for_one_row() {
    for setup in setups() {
        let moved = |prompts: &[Vec<Token>]| {
            let target: Target = Arc::new(hash_lm(20));
            let drafter = often_right(prompts, 0.6);
            let (mut decoder, meters) = setup.measured(&target, drafter, FixedLength(3));
            decode_all(&mut decoder, &target, prompts, |_| 40);
            meters.align()
        };
        let alone = moved(&[prompt(6)]);
        assert_eq!(
            (alone.realignments, alone.padded_cells),
            (0, 0),
            "{setup:?}"
        );
        assert_eq!(alone.moved_bytes, 0);
        assert_eq!(alone.passes > 0, setup.is_aligned());
        let two = moved(&[prompt(6), prompt(9)]);
        assert_eq!(two.realignments > 0, setup.is_aligned(), "{setup:?}");
        assert_eq!(two.moved_bytes > 0, setup.is_aligned());
    }
}

#[test]
fn c19_duplicates_and_permutations() {
    let (a, b) = (prompt(4), prompt(6));
    for setup in setups() {
        let (done, _) = together(setup, &[a.clone(), a.clone(), b.clone()], |_| 10);
        assert_eq!(done[0].tokens, done[1].tokens, "{setup:?}");
        assert_ne!(done[0].tokens, done[2].tokens);
        let (turned, _) = together(setup, &[b.clone(), a.clone(), a.clone()], |_| 10);
        let mut want = tokens(&done);
        want.rotate_right(1);
        assert_eq!(tokens(&turned), want, "{setup:?}");
    }
}

/// C20: a finished row takes part in nothing; the last one goes on alone.
#[test]
fn c20_rows_finish_one_at_a_time() {
    let rows = [row(5, 2, &[]), row(6, 5, &[]), row(7, 9, &[])];
    for setup in setups().filter(|setup| setup.rows >= 3) {
        let target = Counted::new(script(&rows));
        let calls = target.calls();
        let target: Target = Arc::new(target);
        let mut decoder = setup.decoder(&target, script_drafter(&rows), FixedLength(1));
        for row in &rows {
            let request = Request::new(row.prompt.clone()).max_new_tokens(row.max_new);
            decoder.submit(request).expect("a good request");
        }
        let mut sizes = Vec::new();
        let mut before = 0;
        while !decoder.is_idle() {
            decoder.step().expect("decoding");
            sizes.push(calls.tokens() - before);
            before = calls.tokens();
        }
        assert_eq!(sizes, [3 + 6, 4, 1 + 2, 2, 1], "{setup:?}");
    }
}

#[test]
fn c22_a_row_that_joins_in_mid_flight() {
    let prompts = [prompt(5), prompt(2), prompt(9)];
    let model = hash_lm(20);
    for setup in setups() {
        let target: Target = Arc::new(model.clone());
        let drafter = often_right(&prompts, 0.6);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
        for prompt in &prompts[..2] {
            let request = Request::new(prompt.clone()).max_new_tokens(15);
            decoder.submit(request).expect("a good request");
        }
        for _ in 0..3 {
            decoder.step().expect("decoding");
            check_round(&decoder, &target);
        }
        let request = Request::new(prompts[2].clone()).max_new_tokens(15);
        decoder.submit(request).expect("a good request");
        for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
            assert_eq!(done.tokens, model.greedy(prompt, 15), "{setup:?}");
        }
    }
}

/// C37: prompts admitted by length, results in the order of requests.
#[test]
fn c37_results_come_in_the_order_of_requests() {
    let prompts = [9, 2, 7, 1, 12, 3, 5, 2, 8, 4].map(prompt);
    let model = hash_lm(20);
    let target: Target = Arc::new(model.clone());
    let setup = Setup {
        strategy: Strategy::ExSpec { window: 5 },
        rows: 3,
    };
    let cache = setup.strategy.cache(model.spec(), &Setup::memory());
    let mut decoder = setup.build(
        &target,
        cache.expect("good options"),
        GroupByLength::new(5, 3).admitting_by_length(),
        (often_right(&prompts, 0.6), FixedLength(3)),
    );
    for prompt in &prompts {
        let request = Request::new(prompt.clone()).max_new_tokens(13);
        decoder.submit(request).expect("a good request");
    }
    // The shortest prompts come first.
    decoder.step().expect("decoding");
    let started = |i: u64| decoder.cache().len(SeqId(i)) > 0 || decoder.tokens(SeqId(i)).is_none();
    assert!(!started(0) && !started(4), "the longest wait");
    let done = decoder.run().expect("decoding");
    for (i, (done, prompt)) in done.iter().zip(&prompts).enumerate() {
        assert_eq!(done.seq, SeqId(i as u64));
        assert_eq!(done.prompt_tokens, prompt.len());
        assert_eq!(done.tokens, model.greedy(prompt, 13), "prompt {i}");
    }
}

/// C41: position is content length after many rejections, not the number of cells ever written.
#[test]
fn c41_many_rejections() {
    let model = hash_lm(20);
    let target: Target = Arc::new(model.clone());
    for setup in setups() {
        let prompts = [prompt(4)];
        let drafter = often_right(&prompts, 0.0);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
        let done = decode_all(&mut decoder, &target, &prompts, |_| 24);
        let done = &done[&SeqId(0)];
        assert_eq!(done.tokens, model.greedy(&prompts[0], 24), "{setup:?}");
        assert_eq!((done.stats.rounds, done.stats.accepted), (24, 0));
    }
}

/// C42: fifty ragged rounds; the cache asserts that no padding is left over in any of them.
#[test]
fn c42_padding_does_not_pile_up() {
    let prompts = [3, 11, 6, 1].map(prompt);
    for setup in setups() {
        let target: Target = Arc::new(hash_lm(20));
        let drafter = often_right(&prompts, 0.5);
        let (mut decoder, meters) = setup.measured(&target, drafter, FixedLength(2));
        let done = decode_all(&mut decoder, &target, &prompts, |_| 60);
        assert!(done.values().any(|d| d.stats.rounds > 25), "{setup:?}");
        let (batch, align) = (meters.batch(), meters.align());
        if setup.is_aligned() {
            // Nobody is padded to more than the longest content.
            assert!(align.padded_cells < batch.rows * 2 * 71, "{align:?}");
        }
    }
}

/// D2: neighbours and order change neither tokens nor log-probabilities.
#[test]
fn d2_neighbours_and_order_change_nothing() {
    let all = [1, 30, 4, 17, 9].map(prompt);
    let model = hash_lm(20).with_spread(4.0);
    let target: Target = Arc::new(model);
    let request = |prompt: &Vec<Token>| {
        let mut request = Request::new(prompt.clone()).max_new_tokens(10);
        request.sampling = specdec_core::SamplingParams::sampled(0.9);
        request.sampling.seed = Some(4);
        request.sampling.logprobs = Some(3);
        request
    };
    let plain = |setup: Setup, order: &[usize]| {
        let known = Continuations::default();
        let drafter = ScriptedDrafter::oracle(known);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(0));
        for &i in order {
            decoder.submit(request(&all[i])).expect("a good request");
        }
        decoder.run().expect("decoding")
    };
    for setup in setups() {
        let alone: Vec<_> = (0..5).map(|i| plain(setup, &[i]).remove(0)).collect();
        let known = Continuations::of_runs(all.iter().map(Vec::as_slice), &alone);
        for order in [
            vec![4, 3, 2, 1, 0],
            vec![1, 0],
            vec![2, 2, 3],
            vec![3, 1, 4],
        ] {
            let drafter = ScriptedDrafter::sometimes(known.clone(), 20, 0.6, 2);
            let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
            for &i in &order {
                decoder.submit(request(&all[i])).expect("a good request");
            }
            for (done, &i) in decoder.run().expect("decoding").iter().zip(&order) {
                assert_eq!(
                    done.tokens, alone[i].tokens,
                    "{setup:?}, row {i} of {order:?}"
                );
                for (a, b) in done.logprobs.iter().zip(&alone[i].logprobs) {
                    assert_eq!((a.logprob, &a.top), (b.logprob, &b.top), "{setup:?}");
                }
            }
        }
    }
}

/// D3: drafts of any length, rows that end early, new ones in free places.
#[test]
fn d3_drafts_of_any_length_and_free_places() {
    let model = hash_lm(20);
    let all = [1, 30, 4, 17, 9, 3].map(prompt);
    let limits = [3, 14, 6, 20, 9, 1];
    for setup in setups() {
        let target: Target = Arc::new(model.clone());
        let lengths = Lengths::new(|seq: SeqId, round| (seq.0 as usize * 2 + round) % 5);
        let mut decoder = setup.decoder(&target, often_right(&all, 0.7), lengths);
        let done = decode_all(&mut decoder, &target, &all, |i| limits[i]);
        for ((done, prompt), limit) in done.values().zip(&all).zip(limits) {
            assert_eq!(done.tokens, model.greedy(prompt, limit), "{setup:?}");
        }
    }
}

/// F8: one verify pass a round, for any number of rows.
#[test]
fn f8_sixty_four_rows_of_an_oracle() {
    let model = hash_lm(20);
    let prompts: Vec<Vec<Token>> = (0..64).map(|i| vec![i % 20, i / 20]).collect();
    for setup in setups().filter(|setup| setup.rows == 8) {
        let setup = Setup { rows: 64, ..setup };
        let target = Counted::new(model.clone());
        let calls = target.calls();
        let target: Target = Arc::new(target);
        let known = prompts.iter().map(|p| (p.clone(), model.greedy(p, 12)));
        let drafter = ScriptedDrafter::new(Continuations::new(known), 20, Mistakes::Never);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
        for prompt in &prompts {
            let request = Request::new(prompt.clone()).max_new_tokens(12);
            decoder.submit(request).expect("a good request");
        }
        let done = decoder.run().expect("decoding");
        for (done, prompt) in done.iter().zip(&prompts) {
            assert_eq!(done.tokens, model.greedy(prompt, 12), "{setup:?}");
            assert_eq!(done.stats.rounds, 3);
        }
        // Prompts are prefilled eleven tokens a step, one each: six passes, of which some share a
        // step with a verify pass.
        assert!(calls.passes() <= 6 + 9, "{setup:?}: {}", calls.passes());
    }
}

/// E3, E6: many short generations, one after the other and together: memory is flat, all of it is
/// free at the end, and each equals that of a fresh decoder.
#[test]
fn e3_e6_many_generations_on_one_decoder() {
    let model = hash_lm(20);
    for setup in setups() {
        let target: Target = Arc::new(model.clone());
        let prompts: Vec<_> = [24, 3, 40, 1, 9].map(prompt).into();
        let drafter = often_right(&prompts, 0.6);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
        let mut warm = 0;
        for generation in 0..60 {
            for prompt in &prompts[..1 + generation % 5] {
                let request = Request::new(prompt.clone()).max_new_tokens(8);
                decoder.submit(request).expect("a good request");
            }
            if generation % 7 == 6 {
                decoder.step().expect("decoding");
                let live = decoder.live().next().expect("a row");
                decoder.cancel(live).expect("it is live");
            }
            for done in decoder.run().expect("decoding") {
                let prompt = prompts.iter().find(|p| p.len() == done.prompt_tokens);
                let want = model.greedy(prompt.expect("one of ours"), 8);
                assert_eq!(done.tokens, want, "{setup:?}");
            }
            let bytes = decoder.cache().memory_bytes();
            if generation < 20 {
                warm = warm.max(bytes);
            }
            assert!(
                bytes <= warm,
                "{setup:?}: {warm} bytes when warm, then {bytes}"
            );
        }
    }
}

/// I6: one row of four is cancelled; one is dropped by its reader.
#[test]
fn i6_a_row_is_cancelled() {
    let prompts = [6, 2, 9, 4].map(prompt);
    let model = hash_lm(20);
    for setup in setups() {
        let target: Target = Arc::new(model.clone());
        let drafter = often_right(&prompts, 0.6);
        let mut decoder = setup.decoder(&target, drafter, FixedLength(3));
        let cancel = CancelToken::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let mut request = Request::new(prompt.clone()).max_new_tokens(20);
            request.cancel = (i == 1).then(|| cancel.clone());
            decoder.submit(request).expect("a good request");
        }
        for _ in 0..3 {
            decoder.step().expect("decoding");
        }
        cancel.cancel();
        let dropped = Request::new(prompts[0].clone()).max_new_tokens(20);
        let read = decoder.stream(dropped).expect("a good request").take(1);
        assert_eq!(read.count(), 1);
        let done = decoder.run().expect("decoding");
        for (done, prompt) in done.iter().zip(&prompts) {
            let want = model.greedy(prompt, 20);
            if done.seq == SeqId(1) {
                assert_eq!(done.finish, FinishReason::Cancelled);
                assert!(done.tokens.len() < 20 && want.starts_with(&done.tokens));
            } else {
                assert_eq!(done.tokens, want, "{setup:?}");
            }
        }
        assert_eq!(done.len(), 4, "{setup:?}");
        let again = decoder.generate(Request::new(prompts[2].clone()).max_new_tokens(5));
        assert_eq!(
            again.expect("decoding").tokens,
            model.greedy(&prompts[2], 5)
        );
    }
}
