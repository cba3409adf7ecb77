//! Draft lengths from measured costs, and stored prefixes, through the facade: the output stays.

use crate::strategies::prompts;
use crate::tiny_pair::pair;
use specdec::ragged::{SlotOptions, Strategy};
use specdec::rakv::{DiskOptions, Identity, PrefixStore, StoreOptions, StoredPrefixes};
use specdec::text::Message;
use specdec::vegas::VegasConfig;
use specdec::{Backend, DeviceChoice, DraftLength, Drafting, Generator, Model, Options, Prompt};
use std::path::Path;

fn model() -> &'static Model {
    &pair().0
}

fn plain() -> Vec<Vec<u32>> {
    let mut alone = Generator::builder(model())
        .plain()
        .build()
        .expect("it fits");
    prompts()
        .into_iter()
        .map(|(prompt, options)| alone.generate(prompt, &options).expect("good").tokens)
        .collect()
}

#[test]
fn adaptive_lengths_give_the_plain_output_and_say_why() {
    let wanted = plain();
    for strategy in Strategy::ALL {
        for drafting in [Drafting::ngram(), Drafting::Model(pair().1.clone())] {
            let what = format!("{drafting:?} with {strategy}");
            let mut generator = Generator::builder(model())
                .drafting(drafting)
                .draft_length(DraftLength::adaptive())
                .strategy(strategy)
                .max_rows(3)
                .build()
                .expect("it fits");
            let got = generator
                .generate_batch(prompts(), |_, _| {})
                .expect("steps succeed");
            for (i, (got, wanted)) in got.into_iter().zip(&wanted).enumerate() {
                assert_eq!(&got.expect("good").tokens, wanted, "{what}, prompt {i}");
            }
            let report = generator.adaptive().expect("it is adaptive").report();
            let planned: u64 = report.lengths.iter().map(|(_, steps)| steps).sum();
            assert!(planned > 0 && report.tokens > 0, "{what}: {report:?}");
        }
    }
    let plain = Generator::builder(model())
        .plain()
        .draft_length(DraftLength::adaptive())
        .build()
        .expect("nothing to choose");
    assert!(plain.adaptive().is_none());
}

/// Lengths adapt by default, also where memory is limited; where there is no room to measure in, drafts
/// have a fixed length, and only who asks for adaptive ones is refused.
#[test]
fn by_default_lengths_adapt_where_costs_can_be_measured() {
    let default = Generator::builder(model()).build().expect("it fits");
    assert!(default.adaptive().is_some());
    let little = SlotOptions {
        max_positions: Some(60),
        ..SlotOptions::default()
    };
    let mut limited = Generator::builder(model())
        .memory(little)
        .build()
        .expect("a limit is no hindrance");
    assert!(limited.adaptive().is_some());
    let options = Options::max_new_tokens(12);
    let prompt = Prompt::user("Count from one to nine.");
    let wanted = Generator::builder(model())
        .plain()
        .build()
        .and_then(|mut plain| plain.generate(prompt.clone(), &options))
        .expect("good");
    let got = limited.generate(prompt, &options).expect("good");
    assert_eq!(got.tokens, wanted.tokens);

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-pair/target");
    let short = Model::builder(folder)
        .device(DeviceChoice::Named(Backend::Flex, 0))
        .context(8)
        .open()
        .expect("it opens");
    let mut fixed = Generator::builder(&short).build().expect("it fits");
    assert!(fixed.adaptive().is_none());
    let options = Options::max_new_tokens(4);
    fixed.generate(vec![1, 2, 3], &options).expect("good");
    let asked = Generator::builder(&short).draft_length(DraftLength::adaptive());
    assert!(asked.build().is_err());
}

/// What drafting over a part of the context saves shows where the context is long: that is measured too, for as many
/// rows as there may be.
#[test]
fn costs_of_self_drafting_are_measured_at_a_long_context() {
    let build = |drafting| {
        let builder = Generator::builder(model()).drafting(drafting).max_rows(2);
        builder.build().expect("it fits")
    };
    let measured = |generator: &Generator| {
        let adaptive = generator.adaptive().expect("it is adaptive");
        let costs = adaptive.costs();
        let raw = costs.measurements();
        (raw.rows.clone(), raw.contexts.clone())
    };
    let mut vegas = build(Drafting::Vegas(VegasConfig::default()));
    let (rows, contexts) = measured(&vegas);
    assert_eq!(rows, [1, 2]);
    assert!(contexts.len() == 2 && contexts[1] > 128, "{contexts:?}");
    let (_, short) = measured(&build(Drafting::ngram()));
    assert!(short.iter().all(|c| *c <= 64), "{short:?}");
    let wanted = plain();
    let got = vegas.generate_batch(prompts(), |_, _| {}).expect("steps");
    for (got, wanted) in got.into_iter().zip(&wanted) {
        assert_eq!(&got.expect("good").tokens, wanted);
    }
}

/// E4, over turns of a chat and over processes (a second store on the same folder).
#[test]
fn e4_a_chat_is_prefilled_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = model().target().spec();
    let open = || {
        let options = StoreOptions {
            block: 8,
            disk: Some(DiskOptions::new(folder.path())),
            ..StoreOptions::default()
        };
        PrefixStore::open(Identity::of(spec).expect("a fingerprint"), options).expect("it opens")
    };
    let build = |store: Option<&PrefixStore>| {
        let builder = Generator::builder(model()).drafting(Drafting::Model(pair().1.clone()));
        match store {
            Some(store) => builder.prefixes(StoredPrefixes::new(store.clone(), &spec.device)),
            None => builder,
        }
        .build()
        .expect("it fits")
    };
    let turns = [
        "Who is Rosa?",
        "What does the owl eat?",
        "Count from three to twelve.",
    ];
    let chat = |generator: &mut Generator| {
        let mut messages = Vec::new();
        let mut told = Vec::new();
        for turn in turns {
            messages.push(Message::user(turn));
            let prompt = Prompt::Chat(messages.clone(), Box::default());
            let answer = generator
                .generate(prompt, &Options::max_new_tokens(24))
                .expect("good");
            messages.push(Message::assistant(answer.text.clone()));
            told.push((
                answer.tokens,
                answer.stats.reused as usize,
                answer.prompt_tokens.len(),
            ));
        }
        told
    };
    let tokens = |told: &[(Vec<u32>, usize, usize)]| -> Vec<Vec<u32>> {
        told.iter().map(|(tokens, ..)| tokens.clone()).collect()
    };
    let cold = chat(&mut build(None));
    let store = open();
    let warm = chat(&mut build(Some(&store)));
    assert_eq!(tokens(&cold), tokens(&warm));
    assert!(cold.iter().all(|(_, reused, _)| *reused == 0));
    // The first turn is nobody's continuation; the later ones are prefilled from where the last ended.
    assert_eq!(warm[0].1, 0);
    assert!(warm[1].1 >= 8 && warm[2].1 > warm[1].1, "{warm:?}");
    // The same again: everything in whole blocks is there, but the last token.
    let again = chat(&mut build(Some(&store)));
    assert_eq!(tokens(&cold), tokens(&again));
    for (_, reused, prompt) in &again {
        assert!(
            *reused + 9 > *prompt && reused < prompt,
            "{reused} of {prompt}"
        );
    }
    store.flush().expect("a writable folder");
    drop(store);
    let later = open();
    let other_process = chat(&mut build(Some(&later)));
    assert_eq!(tokens(&cold), tokens(&other_process));
    assert!(other_process[0].1 > 0, "{other_process:?}");
}
