//! Cancelling, bad input, failing parts, threads.

use crate::world::{Target, decoder, device, finish, hash_lm, plain_decoder, sampled, seq, share};
use specdec_core::{
    CancelToken, Decoder, Error, Event, FinishReason, FixedLength, Request, RequestError, RowDraft,
    Stream, TargetModel, Token,
};
use specdec_testkit::oracle::{Continuations, Counted};
use specdec_testkit::scripted::{
    FailingDrafter, FlakyTarget, Listed, ScriptedDrafter, ScriptedTarget,
};
use std::sync::Arc;

fn known(prompts: &[Vec<Token>]) -> Continuations {
    let model = hash_lm(20);
    Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 60))))
}

fn four() -> Vec<Vec<Token>> {
    (1..5u32)
        .map(|n| (0..n).map(|i| (3 * i + n) % 20).collect())
        .collect()
}

#[test]
fn i6_dropping_a_stream_cancels_and_nothing_else() {
    let model = hash_lm(20);
    let target = Counted::new(model.clone());
    let calls = target.calls();
    let drafter = ScriptedDrafter::sometimes(known(&four()), 20, 0.7, 1);
    let mut decoder = decoder(&share(target), drafter, FixedLength(3));
    let mut stream = decoder
        .stream(Request::new(four()[2].clone()).max_new_tokens(50))
        .expect("a good request");
    let name = stream.seq();
    for _ in 0..3 {
        let event = stream.next().expect("more to come").expect("decoding");
        assert!(matches!(event, Event::Tokens { .. }));
    }
    let before = calls.passes();
    drop(stream);
    assert_eq!(calls.passes(), before, "no more work");
    assert!(decoder.is_idle());
    assert_eq!(decoder.cache().len(name), 0);
    assert_eq!(decoder.cache().memory_bytes(), 0);
    assert!(decoder.step().expect("no work").is_empty());
    assert_eq!(calls.passes(), before);
    let done = decoder.generate(Request::new(four()[1].clone()).max_new_tokens(9));
    assert_eq!(
        done.expect("the engine is usable").tokens,
        model.greedy(&four()[1], 9)
    );
}

/// A stream that is read to its end, or dropped, leaves the other rows' events to be read.
#[test]
fn i6_other_rows_of_a_streaming_decoder_lose_nothing() {
    let model = hash_lm(20);
    for read in [2, 100] {
        let drafter = ScriptedDrafter::sometimes(known(&four()), 20, 0.7, 1);
        let mut decoder = decoder(&share(model.clone()), drafter, FixedLength(3));
        let other = decoder.submit(Request::new(four()[3].clone()).max_new_tokens(30));
        let other = other.expect("a good request");
        let stream = decoder.stream(Request::new(four()[0].clone()).max_new_tokens(20));
        let taken = stream
            .expect("a good request")
            .take(read)
            .filter(Result::is_ok)
            .count();
        assert!(taken >= 2);
        let mut told = Vec::new();
        let mut completion = None;
        while !decoder.is_idle() {
            for event in decoder.step().expect("decoding") {
                match event {
                    Event::Tokens { seq, tokens } if seq == other => {
                        told.extend(tokens.iter().map(|t| t.token));
                    }
                    Event::Finished(done) if done.seq == other => completion = Some(done),
                    event => assert_ne!(event.seq(), other),
                }
            }
        }
        assert_eq!(told, model.greedy(&four()[3], 30), "after {read} events");
        assert_eq!(completion.expect("an end").tokens, told);
    }
}

#[test]
fn i6_one_row_of_four_is_cancelled() {
    let model = hash_lm(20);
    for by_token in [true, false] {
        let drafter = ScriptedDrafter::sometimes(known(&four()), 20, 0.7, 1);
        let mut decoder = decoder(&share(model.clone()), drafter, FixedLength(3));
        let cancel = CancelToken::new();
        for (i, prompt) in four().into_iter().enumerate() {
            let mut request = Request::new(prompt).max_new_tokens(25);
            request.cancel = (i == 2).then(|| cancel.clone());
            decoder.submit(request).expect("a good request");
        }
        for _ in 0..2 {
            decoder.step().expect("decoding");
        }
        let so_far = decoder.tokens(seq(2)).expect("a live sequence")[3..].to_vec();
        assert!(!so_far.is_empty());
        let early = if by_token {
            cancel.cancel();
            None
        } else {
            Some(decoder.cancel(seq(2)).expect("a live sequence"))
        };
        let mut done = finish(&mut decoder);
        let cancelled = early.unwrap_or_else(|| done.remove(2));
        assert_eq!(cancelled.finish, FinishReason::Cancelled);
        assert_eq!(cancelled.tokens, so_far, "it keeps its tokens");
        assert_eq!(done.len(), 3);
        for done in &done {
            let prompt = &four()[done.seq.0 as usize];
            assert_eq!(done.tokens, model.greedy(prompt, 25));
        }
        assert!(matches!(
            decoder.cancel(seq(2)),
            Err(Error::UnknownSequence(_))
        ));
    }
}

#[test]
fn i6_cancelled_before_the_first_step() {
    let mut decoder = plain_decoder(&share(hash_lm(20)));
    let cancel = CancelToken::new();
    let mut request = Request::new([1, 2]);
    request.cancel = Some(cancel.clone());
    cancel.cancel();
    let done = decoder.generate(request).expect("an empty result");
    assert_eq!(
        (done.tokens.len(), done.finish),
        (0, FinishReason::Cancelled)
    );
}

#[test]
fn i7_bad_prompts_are_refused_and_hurt_nobody() {
    let model = hash_lm(20).with_context(12);
    let target = share(model.clone());
    type Is = fn(&RequestError) -> bool;
    let bad: [(Vec<Token>, Is); 3] = [
        (vec![], |e| matches!(e, RequestError::EmptyPrompt)),
        (vec![1; 13], |e| {
            matches!(
                e,
                RequestError::PromptTooLong {
                    len: 13,
                    context: 12
                }
            )
        }),
        (vec![1, 2, 20], |e| {
            matches!(
                e,
                RequestError::PromptToken {
                    index: 2,
                    token: 20,
                    vocab: 20
                }
            )
        }),
    ];
    for (prompt, is) in &bad {
        let mut alone = plain_decoder(&target);
        match alone.generate(Request::new(prompt.clone())) {
            Err(Error::Request(e)) => assert!(is(&e), "{e}"),
            other => panic!("{prompt:?}: {other:?}"),
        }
        assert!(alone.is_idle());
    }
    // Among good ones.
    let good = [vec![3], vec![4, 5]];
    let drafter = ScriptedDrafter::sometimes(known(&good), 20, 0.5, 1);
    let mut decoder = decoder(&target, drafter, FixedLength(3));
    let mut good = good.into_iter();
    for (prompt, _) in &bad {
        if let Some(good) = good.next() {
            decoder
                .submit(Request::new(good).max_new_tokens(8))
                .expect("a good request");
        }
        decoder
            .submit(Request::new(prompt.clone()))
            .expect_err("a bad request");
    }
    decoder
        .submit(Request::new(vec![7; 12]).max_new_tokens(8))
        .expect("exactly the context");
    let done = finish(&mut decoder);
    assert_eq!(done[0].tokens, model.greedy(&[3], 8));
    assert_eq!(done[1].tokens, model.greedy(&[4, 5], 8));
    assert_eq!(
        (done[2].tokens.len(), done[2].finish),
        (0, FinishReason::Length)
    );
    // Ids of options and limits that contradict each other.
    let ends = decoder.submit(Request::new([1]).end_tokens([20]));
    assert!(matches!(
        ends,
        Err(Error::Request(RequestError::OptionToken {
            option: "end_tokens",
            token: 20,
            ..
        }))
    ));
    let mut contrary = Request::new([1]).max_new_tokens(2);
    contrary.limits.min_new_tokens = 3;
    assert!(matches!(
        decoder.submit(contrary),
        Err(Error::Request(RequestError::OptionValue {
            option: "min_new_tokens",
            ..
        }))
    ));
}

/// A target that has nothing to say after token 3 (every logit is minus infinity or NaN).
fn speechless() -> ScriptedTarget {
    ScriptedTarget::new(8, &device(), |seen| {
        (0..8)
            .map(|t| match seen.token {
                3 if t % 2 == 0 => f32::NAN,
                3 => f32::NEG_INFINITY,
                token => f32::from(u8::from(t == (token as usize + 1) % 8)),
            })
            .collect()
    })
}

/// A row without a candidate fails alone, keeps its tokens, and does so beside any neighbour.
#[test]
fn i7_a_row_without_a_candidate_fails_alone() {
    let target: Target = share(speechless());
    for neighbour_samples in [false, true] {
        for draft in [vec![], vec![2, 3], vec![2, 3, 4, 5]] {
            let drafter = Listed::new([vec![RowDraft::deterministic(draft.clone())]]);
            let mut decoder = decoder(&target, drafter, FixedLength(4));
            let lost = decoder
                .submit(Request::new([1]).max_new_tokens(9))
                .expect("a good request");
            let mut other = Request::new([4]).max_new_tokens(6);
            if neighbour_samples {
                other = other.sampling(sampled(0.01, 1));
            }
            decoder.submit(other).expect("a good request");
            let (mut failed, mut finished) = (None, None);
            while !decoder.is_idle() {
                for event in decoder.step().expect("decoding") {
                    match event {
                        Event::Failed { error, completion } => failed = Some((error, completion)),
                        Event::Finished(done) => finished = Some(done),
                        _ => {}
                    }
                }
            }
            let (error, completion) = failed.expect("it cannot go on");
            assert!(
                matches!(error, Error::NoCandidate { seq, position: 3 } if seq == lost),
                "{error}"
            );
            assert_eq!(
                (completion.tokens, completion.finish),
                (vec![2, 3], FinishReason::Failed)
            );
            assert_eq!(finished.expect("an end").tokens, [5, 6, 7, 0, 1, 2]);
        }
    }
}

/// Running to the end loses neither the neighbours of a row that fails nor the row's own tokens.
#[test]
fn i7_run_keeps_the_results_of_all_rows() {
    let target: Target = share(speechless());
    let mut decoder = plain_decoder(&target);
    for prompt in [4, 1, 4] {
        let request = Request::new([prompt]).max_new_tokens(6);
        decoder.submit(request).expect("a good request");
    }
    let done = decoder.run().expect("steps succeed");
    let ends: Vec<_> = done.iter().map(|d| (d.tokens.clone(), d.finish)).collect();
    let whole = (vec![5, 6, 7, 0, 1, 2], FinishReason::Length);
    assert_eq!(
        ends,
        [whole.clone(), (vec![2, 3], FinishReason::Failed), whole]
    );
    let why = done[1].failure.as_deref().expect("a reason");
    assert!(why.contains("position 3"), "{why}");
    assert_eq!(done[0].failure, None);
}

/// NaN is never chosen, whatever the neighbours ask for.
#[test]
fn i7_nan_is_never_chosen() {
    let target: Target = share(ScriptedTarget::new(8, &device(), |seen| {
        let mut logits = vec![f32::NAN; 8];
        logits[(seen.token as usize + 1) % 8] = 1.0;
        logits[(seen.token as usize + 2) % 8] = 0.5;
        logits
    }));
    for sampled_neighbour in [false, true] {
        let mut decoder = plain_decoder(&target);
        decoder
            .submit(Request::new([1]).max_new_tokens(5))
            .expect("a good request");
        if sampled_neighbour {
            let other = Request::new([4])
                .max_new_tokens(5)
                .sampling(sampled(0.01, 1));
            decoder.submit(other).expect("a good request");
        }
        assert_eq!(finish(&mut decoder)[0].tokens, [2, 3, 4, 5, 6]);
    }
}

/// A failed step can be tried again, and the text is the same.
#[test]
fn a_failed_step_can_be_tried_again() {
    let model = hash_lm(20);
    let flaky = FlakyTarget::new(model.clone(), [0, 2, 5, 6]);
    let inner = ScriptedDrafter::sometimes(known(&four()), 20, 0.7, 1);
    let drafter = FailingDrafter::at_drafts(inner, [1, 4]).and_observations([3, 6]);
    let mut decoder = decoder(&share(flaky), drafter, FixedLength(3));
    for prompt in four() {
        decoder
            .submit(Request::new(prompt).max_new_tokens(20))
            .expect("a good request");
    }
    let (mut failures, mut done) = (0, Vec::new());
    while !decoder.is_idle() {
        match decoder.step() {
            Ok(events) => done.extend(events.into_iter().filter_map(|event| match event {
                Event::Finished(completion) => Some(completion),
                _ => None,
            })),
            Err(Error::Target(_) | Error::Drafter(_)) => failures += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(failures, 8);
    done.sort_by_key(|d| d.seq);
    for (done, prompt) in done.iter().zip(four()) {
        assert_eq!(done.tokens, model.greedy(&prompt, 20));
    }
}

/// A drafter that answers for the wrong number of rows is named.
#[test]
fn a_broken_contract_names_the_part() {
    struct Short;
    impl specdec_core::Drafter for Short {
        fn name(&self) -> &'static str {
            "short"
        }
        fn draft(
            &mut self,
            _: specdec_core::DraftContext<'_>,
        ) -> specdec_core::Result<specdec_core::Draft> {
            Ok(specdec_core::Draft::default())
        }
    }
    let mut decoder = decoder(&share(hash_lm(20)), Short, FixedLength(2));
    match decoder.generate(Request::new([1, 2]).max_new_tokens(5)) {
        Err(Error::Contract {
            part: "short",
            what,
        }) => assert!(what.contains("0 drafts"), "{what}"),
        other => panic!("{other:?}"),
    }
}

fn send<T: Send>() {}
fn send_and_sync<T: Send + Sync>() {}

/// I2: checked when this compiles.
#[test]
fn i2_parts_may_cross_threads() {
    send::<Decoder>();
    send::<Stream<'static>>();
    send::<Event>();
    send::<Request>();
    send_and_sync::<Error>();
    send_and_sync::<CancelToken>();
    send_and_sync::<Arc<dyn TargetModel>>();
    send_and_sync::<specdec_core::Completion>();
}

/// I2: one set of weights, four threads, ten generations each.
#[test]
fn i2_threads_share_a_target() {
    let target: Target = share(hash_lm(20));
    let threads: Vec<_> = (0..4u32)
        .map(|thread| {
            let target = Arc::clone(&target);
            std::thread::spawn(move || {
                let mut decoder = plain_decoder(&target);
                (0..10)
                    .map(|i| {
                        let request = Request::new([thread, i % 20]).max_new_tokens(6);
                        decoder.generate(request).expect("decoding").tokens
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    for (thread, joined) in threads.into_iter().enumerate() {
        for (i, tokens) in joined.join().expect("no panic").into_iter().enumerate() {
            assert_eq!(
                tokens,
                hash_lm(20).greedy(&[thread as Token, i as Token % 20], 6)
            );
        }
    }
}
