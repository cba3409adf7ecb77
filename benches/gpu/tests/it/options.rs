//! How tokens are chosen: from logits of the exact model, so that each choice is the CPU's.

use crate::Check;
use crate::world::{VOCAB, finish, hash_lm, prompts, slots};
use burn::prelude::*;
use specdec_core::{
    Acceptance, Completion, Coupled, Decoder, Greedy, Rejection, Request, SamplingParams,
    TargetModel,
};
use specdec_testkit::oracle::{Trace, Traced};
use specdec_testkit::scripted::{Lengths, QForm, SamplingDrafter};
use std::sync::Arc;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("greedy", |device| as_on_the_cpu(device, Arc::new(Greedy))),
    ("coupled", |device| as_on_the_cpu(device, Arc::new(Coupled))),
    ("rejection", |device| {
        as_on_the_cpu(device, Arc::new(Rejection))
    }),
    (
        "nothing_to_choose_from_is_an_error",
        nothing_to_choose_from_is_an_error,
    ),
];

/// Plain, ruled and sampled rows side by side.
fn requests() -> Vec<Request> {
    let mut ruled = SamplingParams::greedy();
    ruled.repetition_penalty = 1.3;
    ruled.presence_penalty = 0.5;
    ruled.logit_bias = vec![(3, 2.0), (4, -2.0)];
    ruled.logprobs = Some(3);
    let mut narrow = SamplingParams::sampled(0.8);
    narrow.top_k = Some(4);
    narrow.top_p = Some(0.9);
    let mut banned = SamplingParams::sampled(1.3);
    banned.banned = vec![1, 2, 3];
    banned.min_p = Some(0.05);
    banned.logprobs = Some(2);
    let sampling = [
        SamplingParams::greedy(),
        ruled,
        SamplingParams::sampled(1.0),
        narrow,
        banned,
    ];
    let rows = prompts(VOCAB).into_iter().zip(sampling).enumerate();
    rows.map(|(i, (prompt, mut sampling))| {
        sampling.seed = Some(40 + i as u64);
        Request::new(prompt)
            .max_new_tokens(16)
            .sampling(sampling)
            .end_tokens([VOCAB as u32 - 1])
    })
    .collect()
}

/// The rows that an acceptance rule takes: `Greedy` refuses sampled ones.
fn requests_for(acceptance: &dyn Acceptance) -> impl Iterator<Item = Request> {
    let all = acceptance.name() != Greedy.name();
    requests()
        .into_iter()
        .filter(move |request| all || request.sampling.temperature == 0.0)
}

fn run(
    device: &Device,
    acceptance: Arc<dyn Acceptance>,
    form: Option<QForm>,
) -> (Vec<Completion>, Trace) {
    let model = hash_lm(device).with_spread(4.0);
    let controller = Traced::new(Lengths::new(|seq: specdec_core::SeqId, round| {
        (seq.0 as usize + round) % 5
    }));
    let trace = controller.trace();
    let mut builder = Decoder::builder(Arc::new(model.clone()))
        .cache(slots(model.spec()))
        .controller(controller)
        .acceptance_shared(Arc::clone(&acceptance))
        .prefill_chunk(16);
    if let Some(form) = form {
        builder = builder.drafter(SamplingDrafter::new(form, 9, |tokens| {
            let favourite = tokens.iter().sum::<u32>() as usize % VOCAB;
            (0..VOCAB)
                .map(|t| if t == favourite { 0.43 } else { 0.03 })
                .collect()
        }));
    }
    let decoder = builder.build().expect("the parts fit");
    (finish(decoder, requests_for(&*acceptance)), trace)
}

/// The same tokens, log-probabilities and rounds, whether drafts are drawn, chosen or not made.
fn as_on_the_cpu(device: &Device, acceptance: Arc<dyn Acceptance>) {
    let forms = [
        None,
        Some(QForm::Dense),
        Some(QForm::Sparse),
        Some(QForm::Greedy),
    ];
    for form in forms {
        let (want, rounds) = run(&Device::flex(), Arc::clone(&acceptance), form);
        let (got, got_rounds) = run(device, Arc::clone(&acceptance), form);
        for (want, got) in want.iter().zip(&got) {
            assert_eq!(
                (&want.tokens, want.finish),
                (&got.tokens, got.finish),
                "{form:?}, {}",
                want.seq
            );
            assert_eq!(want.logprobs, got.logprobs, "{form:?}, {}", want.seq);
        }
        assert_eq!(rounds.all(), got_rounds.all(), "{form:?}");
    }
}

/// Every token suppressed: an error of the row, on every backend.
fn nothing_to_choose_from_is_an_error(device: &Device) {
    let model = hash_lm(device);
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(slots(model.spec()))
        .suppress(0..VOCAB as u32)
        .build()
        .expect("the parts fit");
    let error = decoder
        .generate(Request::new([1, 2]).max_new_tokens(3))
        .expect_err("no token is left");
    assert!(error.to_string().contains("position 2"), "{error}");
}
