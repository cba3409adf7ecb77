//! Seeded sampling: the same distribution, the same text, every option at every place.

use crate::world::{
    Target, decoder, device, drafters, hash_lm, plain, plain_decoder, sampled, share,
};
use specdec_core::accept::{DraftedToken, Position};
use specdec_core::sampling::{Noise, Proposed, probabilities};
use specdec_core::{
    Acceptance, Coupled, Decoder, Error, FirstCome, FixedLength, Greedy, Rejection, Request,
    RequestError, SamplingParams, Token,
};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::unlikely;
use specdec_testkit::scripted::{QForm, SamplingDrafter, ScriptedTarget, Seen};
use std::sync::Arc;

const V: usize = 6;
const RUNS: usize = 4000;
const LEN: usize = 3;

/// Logits of a scripted language of six tokens; after token 2, token 5 is impossible.
fn language(seen: Seen) -> Vec<f32> {
    let place = (seen.position * 7 + seen.token as usize * 3) % 11;
    (0..V)
        .map(|t| match (seen.token, t) {
            (2, 5) => f32::NEG_INFINITY,
            _ => ((place + 5 * t) % 7) as f32 * 0.4,
        })
        .collect()
}

/// Another distribution, which likes the impossible.
fn draft_q(content: &[Token]) -> Vec<f32> {
    let last = content[content.len() - 1] as usize;
    let weights =
        (0..V).map(|t| 1.0 + ((last + 2 * t) % 4) as f32 + if t == 5 { 4.0 } else { 0.0 });
    let weights: Vec<f32> = weights.collect();
    let sum: f32 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Probabilities of every text of three tokens after the prompt `[0]`.
fn exact() -> Vec<f64> {
    let next = |position, token| {
        let (previous, first) = (0, 0);
        probabilities(&language(Seen {
            position,
            token,
            previous,
            first,
        }))
    };
    let mut all = Vec::new();
    for (a, pa) in next(0, 0).into_iter().enumerate() {
        for (b, pb) in next(1, a as Token).into_iter().enumerate() {
            for pc in next(2, b as Token) {
                all.push(pa * pb * pc);
            }
        }
    }
    all
}

fn frequencies(acceptance: impl Acceptance + 'static, form: Option<QForm>) -> (Vec<u64>, f64) {
    let target: Target = share(ScriptedTarget::new(V, &device(), language));
    let builder = Decoder::builder(Arc::clone(&target))
        .cache(VecCache::new(target.spec()))
        .controller(FixedLength(2))
        .scheduler(FirstCome { max_rows: RUNS })
        .acceptance(acceptance);
    let builder = match form {
        Some(form) => builder.drafter(SamplingDrafter::new(form, 77, draft_q)),
        None => builder,
    };
    let mut decoder = builder.build().expect("the parts fit");
    for seed in 0..RUNS {
        let request = Request::new([0])
            .max_new_tokens(LEN)
            .sampling(sampled(1.0, seed as u64));
        decoder.submit(request).expect("a good request");
    }
    let mut counts = vec![0; V.pow(LEN as u32)];
    for done in decoder.run().expect("decoding") {
        counts[done.tokens.iter().fold(0, |n, t| n * V + *t as usize)] += 1;
    }
    (counts, decoder.stats().acceptance_rate().unwrap_or(0.0))
}

#[test]
fn a5_frequencies_follow_the_target() {
    let p = exact();
    assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let forms = [
        None,
        Some(QForm::Dense),
        Some(QForm::Sparse),
        Some(QForm::Greedy),
    ];
    for form in forms {
        let (counts, accepted) = frequencies(Rejection, form);
        // `unlikely` names whatever came with probability 0.
        assert_eq!(unlikely(&counts, &p), None, "rejection, {form:?}");
        assert!(
            form.is_none() || (0.05..0.95).contains(&accepted),
            "{form:?}: {accepted}"
        );
    }
    for form in [None, Some(QForm::Dense), Some(QForm::Misstated)] {
        let (counts, _) = frequencies(Coupled, form);
        assert_eq!(unlikely(&counts, &p), None, "coupled, {form:?}");
    }
    // Negative control: drafts that were not drawn from the q they state.
    let (counts, _) = frequencies(Rejection, Some(QForm::Misstated));
    assert!(unlikely(&counts, &p).is_some());
}

#[test]
fn a7_a_seed_gives_the_same_text_anywhere() {
    let target = share(hash_lm(20).with_spread(3.0));
    let request = |seed| {
        Request::new([3, 1, 4])
            .max_new_tokens(20)
            .sampling(sampled(1.2, seed))
    };
    let alone = plain(&target, request(5)).tokens;
    let mut busy = plain_decoder(&target);
    for seed in 0..50 {
        let unrelated = Request::new([seed as Token % 20]).max_new_tokens(4);
        busy.generate(unrelated.sampling(sampled(1.0, seed)))
            .expect("decoding");
    }
    assert_eq!(busy.generate(request(5)).expect("decoding").tokens, alone);
    for drafter in drafters(&target, &[3, 1, 4], &alone) {
        let mut five = decoder(&target, drafter, FixedLength(3));
        for seed in [1, 2, 5, 3, 4] {
            five.submit(request(seed)).expect("a good request");
        }
        let done = five.run().expect("decoding");
        assert_eq!(done[2].tokens, alone);
        assert_eq!(done[2].seed, 5);
        assert_ne!(done[0].tokens, alone);
    }
    // Another sample of the same seed is another text.
    let mut second = request(5);
    second.sampling.sample = 1;
    assert_ne!(plain(&target, second).tokens, alone);
}

/// The number used at a place is a function of (seed, sample, content index) and the token alone.
#[test]
fn a7_the_noise_is_that_of_the_content_index() {
    let model = hash_lm(20).with_spread(3.0);
    let mut sampling = sampled(0.8, 17);
    sampling.sample = 2;
    let request = Request::new([3, 1, 4])
        .max_new_tokens(12)
        .sampling(sampling);
    let done = plain(&share(model.clone()), request);
    let noise = Noise::new(17, 2);
    let mut content = vec![3, 1, 4];
    for token in done.tokens {
        let warm: Vec<f32> = model.reference(&content).iter().map(|l| l / 0.8).collect();
        assert_eq!(Some(token), noise.at(content.len()).argmax(&warm));
        content.push(token);
    }
}

#[test]
fn a7_unseeded_runs_differ_and_tell_their_seed() {
    let target = share(hash_lm(20).with_spread(3.0));
    let request = |sampling| Request::new([3, 1]).max_new_tokens(12).sampling(sampling);
    let mut decoder = plain_decoder(&target);
    let runs: Vec<_> = (0..20)
        .map(|_| {
            decoder
                .generate(request(SamplingParams::sampled(2.0)))
                .expect("decoding")
        })
        .collect();
    assert!(runs.iter().any(|r| r.tokens != runs[0].tokens));
    let again = decoder
        .generate(request(sampled(2.0, runs[7].seed)))
        .expect("decoding");
    assert_eq!(again.tokens, runs[7].tokens);
}

/// Each option in turn acts at every place of a block as in plain decoding, and does what it says.
#[test]
fn a8_every_option_acts_at_every_place() {
    let model = hash_lm(20).with_spread(3.0);
    let target = share(model.clone());
    let greedy = model.greedy(&[3, 1], 24);
    let free = plain(
        &target,
        Request::new([3, 1])
            .max_new_tokens(24)
            .sampling(sampled(1.5, 3)),
    );
    let banned = free.tokens[0];
    let warm = || sampled(1.5, 3);
    type Check<'a> = Box<dyn Fn(&[Token]) -> bool + 'a>;
    let cases: Vec<(&str, SamplingParams, Check<'_>)> = vec![
        ("temperature", warm(), Box::new(|t| t != greedy)),
        (
            "top_k",
            SamplingParams {
                top_k: Some(1),
                ..warm()
            },
            Box::new(|t| t == greedy),
        ),
        (
            "top_p",
            SamplingParams {
                top_p: Some(1e-6),
                ..warm()
            },
            Box::new(|t| t == greedy),
        ),
        (
            "min_p",
            SamplingParams {
                min_p: Some(1.0),
                ..warm()
            },
            Box::new(|t| t == greedy),
        ),
        (
            "logit_bias",
            SamplingParams {
                logit_bias: vec![(banned, f32::NEG_INFINITY)],
                ..warm()
            },
            Box::new(|t| !t.contains(&banned)),
        ),
        (
            "logit_bias, greedy",
            SamplingParams {
                logit_bias: vec![(11, 100.0)],
                ..SamplingParams::greedy()
            },
            Box::new(|t| t.iter().all(|t| *t == 11)),
        ),
        (
            "allowed",
            SamplingParams {
                allowed: Some(vec![2, 9, 4]),
                ..warm()
            },
            Box::new(|t| t.iter().all(|t| [2, 9, 4].contains(t))),
        ),
        (
            "banned",
            SamplingParams {
                banned: greedy.clone(),
                ..SamplingParams::greedy()
            },
            Box::new(|t| t.iter().all(|t| !greedy.contains(t))),
        ),
    ];
    // A language whose greedy text used every token would leave nothing to choose.
    assert!((0..20).any(|t| !greedy.contains(&t)));
    for (name, sampling, right) in cases {
        let request = || {
            Request::new([3, 1])
                .max_new_tokens(24)
                .sampling(sampling.clone())
        };
        let want = plain(&target, request()).tokens;
        assert!(right(&want), "{name}: {want:?}");
        for drafter in drafters(&target, &[3, 1], &want) {
            let done = decoder(&target, drafter, FixedLength(4)).generate(request());
            assert_eq!(done.expect("decoding").tokens, want, "{name}");
        }
    }
}

#[test]
fn a8_what_cannot_be_honoured_is_refused_at_once() {
    let target = share(hash_lm(20));
    let mut greedy_only = Decoder::builder(Arc::clone(&target))
        .cache(VecCache::new(target.spec()))
        .acceptance(Greedy)
        .build()
        .expect("the parts fit");
    let refused = greedy_only.submit(Request::new([1]).sampling(SamplingParams::sampled(0.7)));
    assert!(matches!(
        refused,
        Err(Error::Request(RequestError::OptionRefused {
            option: "temperature",
            rule: "greedy"
        }))
    ));
    assert!(greedy_only.is_idle());
    greedy_only
        .submit(Request::new([1]))
        .expect("a greedy request");
}

/// A rule of somebody else's: the worst token.
#[derive(Debug)]
struct Worst;

impl Acceptance for Worst {
    fn name(&self) -> &'static str {
        "worst"
    }

    fn choose(&self, at: Position<'_>, _: Option<DraftedToken<'_>>) -> Option<Token> {
        let order = |a: &usize, b: &usize| at.logits[*a].total_cmp(&at.logits[*b]);
        (0..at.logits.len())
            .min_by(order)
            .map(|token| token as Token)
    }

    fn propose(&self, at: Position<'_>) -> Option<Proposed> {
        let token = self.choose(at, None)?;
        Some(Proposed { token, q: None })
    }
}

/// No shortcut for the best token goes around a rule that wants another one, alone or beside a row that needs logits.
#[test]
fn a_rule_is_asked_at_temperature_zero() {
    let target = share(hash_lm(20));
    let build = || {
        Decoder::builder(Arc::clone(&target))
            .cache(VecCache::new(target.spec()))
            .acceptance(Worst)
            .build()
            .expect("the parts fit")
    };
    let request = || Request::new([3, 1]).max_new_tokens(6);
    let with_logprobs = Request::new([3, 1])
        .max_new_tokens(6)
        .sampling(SamplingParams {
            logprobs: Some(1),
            ..SamplingParams::greedy()
        });
    let asked = build().generate(with_logprobs).expect("decoding").tokens;
    assert_eq!(build().generate(request()).expect("decoding").tokens, asked);
    assert_ne!(plain(&target, request()).tokens, asked);
}

/// C4: values out of their range are input errors that name the option.
#[test]
fn c4_values_out_of_range_are_refused_by_name() {
    let target = share(hash_lm(20));
    let mut decoder = plain_decoder(&target);
    let base = SamplingParams::greedy;
    let cases = [
        (
            "repetition_penalty",
            SamplingParams {
                repetition_penalty: 0.0,
                ..base()
            },
        ),
        (
            "repetition_penalty",
            SamplingParams {
                repetition_penalty: f32::NAN,
                ..base()
            },
        ),
        (
            "presence_penalty",
            SamplingParams {
                presence_penalty: 2.5,
                ..base()
            },
        ),
        (
            "frequency_penalty",
            SamplingParams {
                frequency_penalty: -9.0,
                ..base()
            },
        ),
        (
            "temperature",
            SamplingParams {
                temperature: -1.0,
                ..base()
            },
        ),
        (
            "temperature",
            SamplingParams {
                temperature: f32::INFINITY,
                ..base()
            },
        ),
        (
            "top_k",
            SamplingParams {
                top_k: Some(0),
                ..base()
            },
        ),
        (
            "top_p",
            SamplingParams {
                top_p: Some(0.0),
                ..base()
            },
        ),
        (
            "top_p",
            SamplingParams {
                top_p: Some(1.5),
                ..base()
            },
        ),
        (
            "min_p",
            SamplingParams {
                min_p: Some(-0.1),
                ..base()
            },
        ),
        (
            "logprobs",
            SamplingParams {
                logprobs: Some(21),
                ..base()
            },
        ),
        (
            "logit_bias",
            SamplingParams {
                logit_bias: vec![(1, f32::NAN)],
                ..base()
            },
        ),
        (
            "logit_bias",
            SamplingParams {
                logit_bias: vec![(20, 1.0)],
                ..base()
            },
        ),
        (
            "allowed",
            SamplingParams {
                allowed: Some(vec![]),
                ..base()
            },
        ),
        (
            "allowed",
            SamplingParams {
                allowed: Some(vec![20]),
                ..base()
            },
        ),
        (
            "banned",
            SamplingParams {
                banned: vec![99],
                ..base()
            },
        ),
    ];
    for (name, sampling) in cases {
        match decoder.submit(Request::new([1]).sampling(sampling)) {
            Err(Error::Request(
                RequestError::OptionValue { option, .. } | RequestError::OptionToken { option, .. },
            )) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(decoder.is_idle());
}
