//! Penalties, constraints and log-probabilities: functions of the history, the same in a block.

use crate::world::{decoder, drafters, hash_lm, plain, sampled, share};
use specdec_core::sampling::{argmax, probabilities};
use specdec_core::{FixedLength, History, LogitRule, Request, SamplingParams, Token};
use specdec_testkit::HashLm;
use specdec_testkit::scripted::Listed;
use std::collections::HashMap;
use std::sync::Arc;

/// Penalised greedy text by plain integers and floats, from the definitions.
fn penalised(model: &HashLm, prompt: &[Token], n: usize, p: &SamplingParams) -> Vec<Token> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        let mut logits = model.reference(&tokens);
        let mut counts: HashMap<Token, f32> = HashMap::new();
        for t in &tokens[prompt.len()..] {
            *counts.entry(*t).or_default() += 1.0;
        }
        for (t, l) in logits.iter_mut().enumerate() {
            let t = t as Token;
            if tokens.contains(&t) {
                *l = if *l > 0.0 {
                    *l / p.repetition_penalty
                } else {
                    *l * p.repetition_penalty
                };
            }
            if let Some(count) = counts.get(&t) {
                *l -= p.presence_penalty + p.frequency_penalty * count;
            }
        }
        tokens.push(argmax(&logits).expect("finite logits"));
    }
    tokens.split_off(prompt.len())
}

/// C1 and C2: a place of a block sees the prompt, the output and the drafts before it, nothing else;
/// a round in which every draft is rejected counts one token.
#[test]
fn c1_c2_penalties_see_what_lies_before_and_nothing_else() {
    // A small spread, so that penalties decide.
    let model = hash_lm(12).with_spread(3.0);
    let target = share(model.clone());
    let prompt = [3, 1, 3];
    let base = SamplingParams::greedy;
    let cases = [
        SamplingParams {
            repetition_penalty: 1.5,
            ..base()
        },
        SamplingParams {
            repetition_penalty: 0.7,
            ..base()
        },
        SamplingParams {
            presence_penalty: 1.0,
            ..base()
        },
        SamplingParams {
            frequency_penalty: 0.6,
            ..base()
        },
        SamplingParams {
            frequency_penalty: -0.4,
            presence_penalty: 0.5,
            ..base()
        },
        SamplingParams {
            repetition_penalty: 1.2,
            frequency_penalty: 1.0,
            ..base()
        },
    ];
    let free = model.greedy(&prompt, 24);
    for sampling in cases {
        let want = penalised(&model, &prompt, 24, &sampling);
        assert_ne!(want, free, "the penalty acts: {sampling:?}");
        let request = || {
            Request::new(prompt)
                .max_new_tokens(24)
                .sampling(sampling.clone())
        };
        assert_eq!(plain(&target, request()).tokens, want, "{sampling:?}");
        for drafter in drafters(&target, &prompt, &want) {
            let done = decoder(&target, drafter, FixedLength(5)).generate(request());
            assert_eq!(done.expect("decoding").tokens, want, "{sampling:?}");
        }
    }
}

/// Three to five digits (ids below 10), then the end (id 10) and nothing but it.
#[derive(Debug)]
struct Digits;

impl LogitRule for Digits {
    fn apply(&self, history: History<'_>, logits: &mut [f32]) {
        let digits = history.output().len();
        for (t, l) in logits.iter_mut().enumerate() {
            let may = if t < 10 {
                digits < 5
            } else {
                t == 10 && digits >= 3
            };
            if !may {
                *l = f32::NEG_INFINITY;
            }
        }
    }
}

/// Nothing but ids of 10 and above once the marker (id 4) is out.
#[derive(Debug)]
struct AfterMarker;

impl LogitRule for AfterMarker {
    fn apply(&self, history: History<'_>, logits: &mut [f32]) {
        if history.output().contains(&4) {
            logits[..10].fill(f32::NEG_INFINITY);
        }
    }
}

#[test]
fn c5_a_constraint_with_drafts_that_break_it() {
    let target = share(hash_lm(20).with_spread(3.0));
    for (greedy, seed) in [(true, 0), (false, 1), (false, 2), (false, 3)] {
        let request = || {
            let mut request = Request::new([3, 1]).max_new_tokens(20).end_tokens([10]);
            request.rules = vec![Arc::new(Digits)];
            request.sampling = if greedy {
                SamplingParams::greedy()
            } else {
                sampled(1.5, seed)
            };
            request
        };
        let want = plain(&target, request()).tokens;
        let (end, digits) = want.split_last().expect("an end");
        assert!(*end == 10 && (3..=5).contains(&digits.len()) && digits.iter().all(|d| *d < 10));
        // Forbidden tokens, and tokens after the end.
        let mut rude = drafters(
            &target,
            &[3, 1],
            &[want.clone(), vec![10, 15, 3, 10]].concat(),
        );
        rude.extend(drafters(&target, &[3, 1], &want));
        for drafter in rude {
            let done = decoder(&target, drafter, FixedLength(8)).generate(request());
            assert_eq!(done.expect("decoding").tokens, want);
        }
        let listed = Listed::tokens(vec![vec![19, 10, 10, 3], vec![want[1], 17], vec![10, 10]]);
        let done = decoder(&target, listed, FixedLength(4)).generate(request());
        assert_eq!(done.expect("decoding").tokens, want);
    }
}

#[test]
fn c5_a_constraint_that_wakes_inside_a_block() {
    let target = share(hash_lm(20).with_spread(3.0));
    let mut woke = 0;
    for seed in 0..6 {
        let request = || {
            let mut request = Request::new([seed as Token, 1]).max_new_tokens(24);
            request.rules = vec![Arc::new(AfterMarker)];
            request.sampling(sampled(1.5, seed))
        };
        let want = plain(&target, request()).tokens;
        if let Some(at) = want.iter().position(|t| *t == 4) {
            assert!(want[at + 1..].iter().all(|t| *t >= 10));
            woke += usize::from(at + 1 < want.len());
        }
        for drafter in drafters(&target, &[seed as Token, 1], &want) {
            let done = decoder(&target, drafter, FixedLength(6)).generate(request());
            assert_eq!(done.expect("decoding").tokens, want, "seed {seed}");
        }
    }
    assert!(woke >= 2, "the marker came in {woke} of 6 texts only");
}

#[test]
fn c6_log_probabilities_are_the_targets() {
    let model = hash_lm(20).with_spread(4.0);
    let target = share(model.clone());
    let request = || {
        let sampling = SamplingParams {
            logprobs: Some(5),
            ..sampled(0.8, 9)
        };
        Request::new([3, 1]).max_new_tokens(40).sampling(sampling)
    };
    let want = plain(&target, request());
    assert_eq!(want.logprobs.len(), 40);
    let mut content = vec![3, 1];
    for entry in &want.logprobs {
        let p = probabilities(&model.reference(&content));
        let log = |t: Token| p[t as usize].ln() as f32;
        assert!((entry.logprob.expect("asked for") - log(entry.token)).abs() < 1e-4);
        assert_eq!(entry.top.len(), 5);
        assert!(entry.top.windows(2).all(|w| w[0].logprob >= w[1].logprob));
        assert!(
            entry
                .top
                .iter()
                .all(|t| (t.logprob - log(t.token)).abs() < 1e-4)
        );
        let fifth = entry.top[4].logprob;
        let better = p.iter().filter(|p| p.ln() as f32 > fifth + 1e-4).count();
        assert!(better <= 4, "the top five are the best five");
        content.push(entry.token);
    }
    for drafter in drafters(&target, &[3, 1], &want.tokens) {
        let done = decoder(&target, drafter, FixedLength(5))
            .generate(request())
            .expect("decoding");
        assert_eq!(done.tokens, want.tokens);
        assert_eq!(done.logprobs.len(), 40, "one entry a token");
        for (a, b) in want.logprobs.iter().zip(&done.logprobs) {
            assert_eq!((a.token, a.logprob, &a.top), (b.token, b.logprob, &b.top));
        }
    }
    // None asked for, none given.
    let quiet = plain(&target, Request::new([3, 1]).max_new_tokens(3));
    assert!(quiet.logprobs.is_empty());
}
