//! The trained pair of the repository, through the facade: text in, text out.

use crate::Check;
use crate::margin::{plain_until, same};
use burn::prelude::*;
use specdec::ragged::Strategy;
use specdec::vegas::VegasConfig;
use specdec::{Backend, DeviceChoice, DraftLength, Drafting, Generator, Model, Options, Prompt};
use specdec_core::Completion;
use std::path::Path;
use std::sync::OnceLock;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("answers_are_those_of_the_cpu", answers_are_those_of_the_cpu),
    ("ngram", |_| drafts_change_nothing(Drafting::ngram(), 1)),
    ("draft_model", |_| {
        drafts_change_nothing(Drafting::Model(pair().1.clone()), 20)
    }),
    ("vegas", |_| {
        drafts_change_nothing(Drafting::Vegas(VegasConfig::default()), 20)
    }),
    ("batches_change_nothing", batches_change_nothing),
];

const PROMPTS: [&str; 3] = [
    "What day comes after Monday?",
    "What does the owl eat?",
    "Make a list of five fruits.",
];

const NEW: usize = 48;

fn open(name: &str, device: DeviceChoice) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-pair");
    let model = Model::builder(folder.join(name)).device(device).open();
    model.expect("the pair is in the repository")
}

/// Target and draft model on the device under test.
fn pair() -> &'static (Model, Model) {
    static PAIR: OnceLock<(Model, Model)> = OnceLock::new();
    PAIR.get_or_init(|| {
        let chosen = specdec_gpu::choice().expect("it was found before");
        (open("target", chosen), open("draft", chosen))
    })
}

/// The answers of plain decoding on the device.
fn plain() -> &'static Vec<Completion> {
    static PLAIN: OnceLock<Vec<Completion>> = OnceLock::new();
    PLAIN.get_or_init(|| {
        let model = &pair().0;
        let answer = |prompt| {
            let ids = model.encode(&Prompt::user(prompt)).expect("text");
            plain_until(model.target(), &ids, NEW, model.end_tokens())
        };
        PROMPTS.into_iter().map(answer).collect()
    })
}

fn answers_are_those_of_the_cpu(_: &Device) {
    let cpu = open("target", DeviceChoice::Named(Backend::Flex, 0));
    for (want, prompt) in plain().iter().zip(PROMPTS) {
        let mut generator = Generator::builder(&cpu)
            .plain()
            .build()
            .expect("the parts fit");
        let got = generator.generate(Prompt::user(prompt), &Options::max_new_tokens(NEW));
        same(want, &got.expect("an answer").tokens, prompt);
    }
}

/// The same answers, with at least so many drafts accepted on the way.
fn drafts_change_nothing(drafting: Drafting, accepted: u64) {
    let what = format!("{drafting:?}");
    let builder = Generator::builder(&pair().0).drafting(drafting);
    let mut generator = builder
        .draft_length(DraftLength::Fixed(4))
        .build()
        .expect("the parts fit");
    for (want, prompt) in plain().iter().zip(PROMPTS) {
        let got = generator.generate(Prompt::user(prompt), &Options::max_new_tokens(NEW));
        same(want, &got.expect("an answer").tokens, &what);
    }
    assert!(
        generator.stats().accepted >= accepted,
        "{what}: {:?}",
        generator.stats()
    );
}

fn batches_change_nothing(_: &Device) {
    for strategy in [
        Strategy::Slots,
        Strategy::EqSpec,
        Strategy::ExSpec { window: 3 },
    ] {
        let builder = Generator::builder(&pair().0).strategy(strategy).max_rows(3);
        let builder = builder.drafting(Drafting::Model(pair().1.clone()));
        let mut generator = builder.build().expect("the parts fit");
        let batch = PROMPTS.map(|prompt| (Prompt::user(prompt), Options::max_new_tokens(NEW)));
        let got = generator
            .generate_batch(batch, |_, _| {})
            .expect("steps succeed");
        for (want, got) in plain().iter().zip(got) {
            same(want, &got.expect("an answer").tokens, &strategy.to_string());
        }
    }
}
