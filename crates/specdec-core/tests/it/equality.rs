//! Any pool, draft lengths, drafter, controller and scheduler: the output is the plain one.

use crate::world::{device, share};
use proptest::prelude::*;
use specdec_core::sampling::argmax;
use specdec_core::{
    Completion, Decoder, Event, FinishReason, KvCache, Phase, Request, SamplingParams, SeqId,
    TargetModel, Token,
};
use specdec_testkit::oracle::{Continuations, difference, plain_run};
use specdec_testkit::scripted::{Mistakes, ScriptedDrafter};
use specdec_testkit::strategies::{RowPlan, Scenario, scenarios};
use specdec_testkit::{HashLm, VecCache};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a row must say, by plain integers, one token after the other.
fn expected(model: &HashLm, row: &RowPlan) -> (Vec<Token>, FinishReason) {
    let mut tokens = row.prompt.clone();
    loop {
        let emitted = tokens.len() - row.prompt.len();
        if emitted >= row.max_new || tokens.len() >= model.spec().context {
            return (tokens.split_off(row.prompt.len()), FinishReason::Length);
        }
        let mut logits = model.reference(&tokens);
        if emitted < row.min_new.min(row.max_new) {
            row.ends
                .iter()
                .for_each(|&end| logits[end as usize] = f32::NEG_INFINITY);
        }
        let token = argmax(&logits).expect("a token is left");
        tokens.push(token);
        if row.ends.contains(&token) {
            return (tokens.split_off(row.prompt.len()), FinishReason::EndToken);
        }
    }
}

/// Submits each row when it arrives and steps until all have ended, checking the step's invariant.
fn run(decoder: &mut Decoder, rows: &[(usize, Request)]) -> Vec<Completion> {
    let mut names: BTreeMap<SeqId, usize> = BTreeMap::new();
    let mut done: BTreeMap<usize, Completion> = BTreeMap::new();
    let mut streamed: BTreeMap<SeqId, Vec<Token>> = BTreeMap::new();
    let mut waiting: Vec<(usize, usize, Request)> = rows
        .iter()
        .enumerate()
        .map(|(i, (arrives, request))| (i, *arrives, again(request)))
        .collect();
    for step in 0.. {
        assert!(step < 2000, "no end in sight");
        let (now, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| w.1 <= step);
        waiting = later;
        for (i, _, request) in now {
            names.insert(decoder.submit(request).expect("a good request"), i);
        }
        if waiting.is_empty() && decoder.is_idle() {
            break;
        }
        for event in decoder.step().expect("decoding") {
            match event {
                Event::Tokens { seq, tokens } => {
                    streamed
                        .entry(seq)
                        .or_default()
                        .extend(tokens.iter().map(|t| t.token));
                }
                Event::Finished(completion) => {
                    let told = streamed.remove(&completion.seq).unwrap_or_default();
                    assert_eq!(told, completion.tokens, "events carry all tokens");
                    done.insert(names[&completion.seq], completion);
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        let live: Vec<SeqId> = decoder.live().collect();
        for seq in live {
            let tokens = decoder.tokens(seq).expect("a live sequence");
            let cached = decoder.cache().len(seq);
            let told = streamed.get(&seq).map_or(0, Vec::len);
            assert!(cached < tokens.len(), "the anchor is never cached");
            assert!(
                told == 0 || cached + 1 == tokens.len(),
                "all but the anchor is cached"
            );
        }
    }
    done.into_values().collect()
}

fn again(request: &Request) -> Request {
    let mut copy = Request::new(request.prompt.clone())
        .sampling(request.sampling.clone())
        .end_tokens(request.end_tokens.iter().copied())
        .speculation(request.speculation);
    copy.limits = request.limits;
    copy
}

fn decoder(scenario: &Scenario, model: &HashLm, drafter: ScriptedDrafter) -> Decoder {
    Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(model.spec()))
        .drafter(drafter)
        .controller(scenario.controller())
        .scheduler(scenario.scheduler())
        .prefill_chunk(scenario.prefill_chunk)
        .build()
        .expect("the parts fit")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn speculative_is_plain(scenario in scenarios()) {
        let model = scenario.target(&device());
        let mut speculative = decoder(&scenario, &model, scenario.drafter(&model));
        let rows: Vec<_> =
            scenario.rows.iter().map(|row| (row.arrives, row.request())).collect();
        let done = run(&mut speculative, &rows);
        prop_assert_eq!(done.len(), rows.len());
        for (row, done) in scenario.rows.iter().zip(&done) {
            let (tokens, finish) = expected(&model, row);
            prop_assert_eq!(&done.tokens, &tokens);
            prop_assert_eq!(done.finish, finish);
            prop_assert_eq!(done.stats.emitted, tokens.len() as u64);
            prop_assert!(done.stats.accepted <= done.stats.drafted);
        }
    }
}

/// Sampling with every option at once, from a seed.
fn options(vocab: usize) -> impl Strategy<Value = SamplingParams> {
    let some = |x| prop_oneof![Just(None), Just(Some(x))];
    (
        prop_oneof![Just(0.0f32), Just(0.6), Just(1.3)],
        (
            prop_oneof![Just(None), Just(Some(2usize))],
            some(0.8f32),
            some(0.1f32),
        ),
        prop_oneof![
            Just((1.0f32, 0.0f32, 0.0f32)),
            Just((1.3, 0.5, 0.25)),
            Just((0.8, -0.5, -0.1))
        ],
        prop::collection::vec((0..vocab as Token, -1.0f32..1.0), 0..2),
        any::<u64>(),
        prop_oneof![2 => Just(None), 1 => Just(Some(2usize))],
    )
        .prop_map(
            |(temperature, (top_k, top_p, min_p), penalties, bias, seed, logprobs)| {
                SamplingParams {
                    top_k,
                    top_p,
                    min_p,
                    repetition_penalty: penalties.0,
                    presence_penalty: penalties.1,
                    frequency_penalty: penalties.2,
                    logit_bias: bias,
                    seed: Some(seed),
                    logprobs,
                    ..SamplingParams::sampled(temperature)
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// The same with seeded sampling: a seed's text is a function of seed and target alone.
    #[test]
    fn speculative_is_plain_with_every_option(
        (scenario, sampling) in scenarios().prop_flat_map(|s| {
            let vocab = s.vocab;
            (Just(s), prop::collection::vec(options(vocab), 5))
        })
    ) {
        let model = scenario.target(&device()).with_spread(4.0);
        let target = share(model.clone());
        let rows: Vec<(usize, Request)> = scenario
            .rows
            .iter()
            .zip(&sampling)
            .map(|(row, sampling)| (row.arrives, row.request().sampling(sampling.clone())))
            .collect();
        let requests = rows.iter().map(|(_, request)| again(request));
        let plain = plain_run(&target, VecCache::new(model.spec()), requests).expect("plain");
        let prompts = scenario.rows.iter().map(|row| row.prompt.as_slice());
        let drafter = ScriptedDrafter::new(
            Continuations::of_runs(prompts, &plain),
            scenario.vocab,
            Mistakes::Sometimes { right: scenario.right, seed: scenario.seed },
        );
        let done = run(&mut decoder(&scenario, &model, drafter), &rows);
        for (want, got) in plain.iter().zip(&done) {
            prop_assert_eq!(difference(want, got), None);
            // Log-probabilities too: which tokens were drafted is all that may differ.
            prop_assert_eq!(want.logprobs.len(), got.logprobs.len());
            for (a, b) in want.logprobs.iter().zip(&got.logprobs) {
                prop_assert_eq!((a.token, a.logprob, &a.top), (b.token, b.logprob, &b.top));
            }
        }
    }
}

/// E1: after every round the cache holds what a fresh one would, for keys and values alike.
#[test]
fn e1_after_every_round_the_cache_equals_a_fresh_one() {
    let model = HashLm::new(20, &device());
    let prompts: [&[Token]; 3] = [&[4], &[1, 2, 3, 4, 5], &[9, 9]];
    let known = Continuations::new(prompts.map(|p| (p, model.greedy(p, 30))));
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(model.spec()))
        .drafter(ScriptedDrafter::sometimes(known, 20, 0.6, 5))
        .build()
        .expect("the parts fit");
    for prompt in prompts {
        decoder
            .submit(Request::new(prompt).max_new_tokens(20))
            .expect("a good request");
    }
    let mut rounds = 0;
    while !decoder.is_idle() {
        decoder.step().expect("decoding");
        rounds += 1;
        for seq in decoder.live().collect::<Vec<_>>() {
            let tokens = decoder.tokens(seq).expect("a live sequence").to_vec();
            let n = tokens.len() - 1;
            assert_eq!(decoder.cache().len(seq), n);
            let mut fresh = VecCache::new(model.spec());
            let block = specdec_core::Block::single(seq, 0, &tokens[..n], &device());
            if n > 0 {
                let mut attend = fresh
                    .begin(block.rows(), Phase::Prefill)
                    .expect("a legal pass");
                model
                    .forward(&block, &mut *attend, &[])
                    .expect("a legal block");
                drop(attend);
                fresh.commit(&[n]).expect("a legal commit");
            }
            let want = fresh.export(seq, 0..n).expect("committed");
            let got = decoder.cache().export(seq, 0..n).expect("committed");
            for ((k, v), (fresh_k, fresh_v)) in got.layers.into_iter().zip(want.layers) {
                k.into_data().assert_eq(&fresh_k.into_data(), true);
                v.into_data().assert_eq(&fresh_v.into_data(), true);
            }
        }
    }
    assert!(rounds > 5, "{rounds} rounds are too few to see anything");
}
