//! Rows at their own pace.

use crate::world::{Target, decoder, finish, hash_lm, plain, rounds, share};
use specdec_core::{Decoder, FirstCome, FixedLength, Request, SamplingParams, Token};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::{Continuations, Counted, Traced};
use specdec_testkit::scripted::{Lengths, Mistakes, ScriptedDrafter};
use std::sync::Arc;

fn prompts() -> Vec<Vec<Token>> {
    [1usize, 30, 4, 17, 9]
        .iter()
        .map(|&n| (0..n).map(|i| ((i * i * 3 + n) % 20) as Token).collect())
        .collect()
}

/// A drafter of another quality for every prompt: oracle first, adversary last.
fn graded(prompts: &[Vec<Token>]) -> ScriptedDrafter {
    let model = hash_lm(20);
    let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 60))));
    let all = self::prompts();
    prompts.iter().fold(
        ScriptedDrafter::new(known, 20, Mistakes::Never),
        |drafter, prompt| {
            let grade = all.iter().position(|p| p == prompt).unwrap_or(0);
            let right = 1.0 - 0.25 * grade as f64;
            drafter.with_prompt(prompt.clone(), Mistakes::Sometimes { right, seed: 1 })
        },
    )
}

#[test]
fn d1_each_row_equals_its_single_run_in_tokens_and_rounds() {
    let model = hash_lm(20);
    let target = share(model.clone());
    let run = |prompts: &[Vec<Token>]| {
        let controller = Traced::new(FixedLength(4));
        let trace = controller.trace();
        let mut decoder = decoder(&target, graded(prompts), controller);
        for prompt in prompts {
            let request = Request::new(prompt.clone()).max_new_tokens(25);
            decoder.submit(request).expect("a good request");
        }
        let done = finish(&mut decoder);
        let rounds: Vec<_> = done.iter().map(|d| rounds(&trace.of(d.seq))).collect();
        (done, rounds)
    };
    let all = prompts();
    let (done, traces) = run(&all);
    for (i, prompt) in all.iter().enumerate() {
        assert_eq!(done[i].tokens, model.greedy(prompt, 25), "row {i}");
        let (alone, alone_rounds) = run(&all[i..=i]);
        assert_eq!(alone[0].tokens, done[i].tokens);
        assert_eq!(alone_rounds[0], traces[i], "row {i}");
    }
    // The oracle's row did not wait for the adversary's.
    assert_eq!((traces[0].len(), traces[4].len()), (5, 25));
}

#[test]
fn d2_neighbours_and_order_change_nothing() {
    let target = share(hash_lm(20).with_spread(4.0));
    let all = prompts();
    let request = |prompt: &Vec<Token>| {
        let sampling = SamplingParams {
            logprobs: Some(3),
            ..crate::world::sampled(0.9, 4)
        };
        Request::new(prompt.clone())
            .max_new_tokens(10)
            .sampling(sampling)
    };
    let alone: Vec<_> = all.iter().map(|p| plain(&target, request(p))).collect();
    let known = Continuations::of_runs(all.iter().map(Vec::as_slice), &alone);
    for order in [
        vec![0, 1, 2, 3, 4],
        vec![4, 3, 2, 1, 0],
        vec![1, 0],
        vec![2, 2, 3],
        vec![3, 1, 4],
    ] {
        let drafter = ScriptedDrafter::sometimes(known.clone(), 20, 0.6, 2);
        let mut decoder = decoder(&target, drafter, FixedLength(3));
        for &i in &order {
            decoder.submit(request(&all[i])).expect("a good request");
        }
        for (done, &i) in finish(&mut decoder).iter().zip(&order) {
            assert_eq!(done.tokens, alone[i].tokens, "row {i} of {order:?}");
            for (a, b) in done.logprobs.iter().zip(&alone[i].logprobs) {
                // Bit for bit: the toy target does not round.
                assert_eq!(
                    (a.logprob, &a.top),
                    (b.logprob, &b.top),
                    "row {i} of {order:?}"
                );
            }
        }
    }
}

#[test]
fn d3_drafts_of_any_length_early_ends_and_free_places() {
    let model = hash_lm(20);
    let all = prompts();
    let limits = [3, 14, 6, 20, 9];
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(specdec_core::TargetModel::spec(&model)))
        .drafter(graded(&all))
        .controller(Lengths::new(|seq, round| (seq.0 as usize * 2 + round) % 5))
        .scheduler(FirstCome { max_rows: 2 })
        .build()
        .expect("the parts fit");
    for (prompt, limit) in all.iter().zip(limits) {
        let request = Request::new(prompt.clone()).max_new_tokens(limit);
        decoder.submit(request).expect("a good request");
    }
    for ((done, prompt), limit) in finish(&mut decoder).iter().zip(&all).zip(limits) {
        assert_eq!(done.tokens, model.greedy(prompt, limit));
    }
    assert_eq!(decoder.cache().memory_bytes(), 0);
}

/// F8: an oracle needs no more passes than its drafts are long, for any number of rows.
#[test]
fn f8_passes_of_an_oracle() {
    let model = hash_lm(20);
    for (k, n) in [(1, 10), (3, 16), (4, 21), (7, 5)] {
        let target = Counted::new(model.clone());
        let calls = target.calls();
        let known = Continuations::new([(vec![3, 4, 5], model.greedy(&[3, 4, 5], 40))]);
        let mut decoder = decoder(
            &share(target),
            ScriptedDrafter::oracle(known),
            FixedLength(k),
        );
        decoder
            .generate(Request::new([3, 4, 5]).max_new_tokens(n))
            .expect("decoding");
        assert!(
            calls.passes() <= n.div_ceil(k + 1) + 1,
            "k {k}, n {n}: {}",
            calls.passes()
        );
    }
    let target = Counted::new(model.clone());
    let calls = target.calls();
    let prompts: Vec<Vec<Token>> = (0..64).map(|i| vec![i % 20, i / 20]).collect();
    let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 12))));
    let target: Target = share(target);
    let mut decoder = Decoder::builder(Arc::clone(&target))
        .cache(VecCache::new(target.spec()))
        .drafter(ScriptedDrafter::oracle(known))
        .controller(FixedLength(3))
        .scheduler(FirstCome { max_rows: 64 })
        .build()
        .expect("the parts fit");
    for prompt in &prompts {
        let request = Request::new(prompt.clone()).max_new_tokens(12);
        decoder.submit(request).expect("a good request");
    }
    for (done, prompt) in finish(&mut decoder).iter().zip(&prompts) {
        assert_eq!(done.tokens, model.greedy(prompt, 12));
    }
    assert_eq!(
        calls.passes(),
        1 + 3,
        "one prefill, one verify pass a round for all rows"
    );
}
