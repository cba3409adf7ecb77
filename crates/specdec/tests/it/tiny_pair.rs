//! The trained pair in `assets/tiny-pair`: drafts that are accepted as often as those of real
//! models, without a download.
#![allow(
    clippy::print_stderr,
    reason = "the rates are worth reading with --nocapture"
)]

use specdec::burn::prelude::*;
use specdec::core::{
    Attend, Block, FinishReason, Forward, ModelSpec, Speculation, Stats, TargetModel,
};
use specdec::draft::ModelDrafter;
use specdec::ragged::SlotCache;
use specdec::text::Message;
use specdec::{DraftLength, Drafting, Generated, Generator, Model, Options, Prompt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Share of greedy drafts of four tokens that must be accepted.
const FLOOR: f64 = 0.55;

const PROMPTS: [&str; 12] = [
    "Tell me a story about a fox named Mia.",
    "Tell me a story about an owl named Leo.",
    "Write a story about a rabbit named Ruby.",
    "Tell me about the bear.",
    "What does the owl eat?",
    "Who is Rosa?",
    "The red kite is in the barn. The blue cup is under the bed. Where is the blue cup?",
    "Count from three to twelve.",
    "How do you make soup?",
    "Make a list of five fruits.",
    "Say this three times: On Friday the cow found the red hat.",
    "Sing a song.",
];

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-pair")
}

/// Target and draft model.
pub(crate) fn pair() -> &'static (Model, Model) {
    static PAIR: OnceLock<(Model, Model)> = OnceLock::new();
    PAIR.get_or_init(|| {
        let open = |name| Model::open(folder().join(name)).expect("the pair is in the repository");
        (open("target"), open("draft"))
    })
}

fn generator(drafting: Drafting, k: usize) -> Generator {
    Generator::builder(&pair().0)
        .drafting(drafting)
        .draft_length(DraftLength::Fixed(k))
        .build()
        .expect("the parts fit")
}

fn answer(generator: &mut Generator, prompt: &Prompt, options: &Options) -> Generated {
    generator
        .generate(prompt.clone(), options)
        .expect("a good prompt")
}

/// The twelve questions, a conversation of two turns, and a text without a template.
fn prompts() -> Vec<Prompt> {
    let mut all: Vec<Prompt> = PROMPTS.into_iter().map(Prompt::user).collect();
    all.push(Prompt::from(vec![
        Message::user(
            "The green hat is on the roof. The black key is in the box. Where is the black key?",
        ),
        Message::assistant("The black key is in the box."),
        Message::user("And where is the green hat?"),
    ]));
    all.push(Prompt::from("Once upon a time"));
    all
}

fn rate(stats: &Stats) -> f64 {
    stats.acceptance_rate().expect("something was drafted")
}

/// Greedy answers are the same without drafts, with n-gram drafts and with the draft model's, at
/// several draft lengths; and the draft model is worth asking.
#[test]
fn drafts_change_no_token_and_most_are_accepted() {
    let options = Options::max_new_tokens(300);
    let mut plain = generator(Drafting::Off, 4);
    let wanted: Vec<Generated> = prompts()
        .iter()
        .map(|prompt| answer(&mut plain, prompt, &options))
        .collect();
    let ended = wanted
        .iter()
        .filter(|g| g.finish == FinishReason::EndToken)
        .count();
    assert!(
        ended + 2 >= wanted.len(),
        "{ended} of {} answers end",
        wanted.len()
    );
    assert_eq!(plain.stats().drafted, 0);
    for k in [1, 4, 7] {
        for drafting in [Drafting::ngram(), Drafting::Model(pair().1.clone())] {
            let name = format!("{drafting:?}");
            let mut fast = generator(drafting, k);
            for (prompt, wanted) in prompts().iter().zip(&wanted) {
                let got = answer(&mut fast, prompt, &options);
                assert_eq!(got.tokens, wanted.tokens, "{name} {k} {prompt:?}");
                assert_eq!(got.text, wanted.text, "{name} {k} {prompt:?}");
                assert_eq!(got.finish, wanted.finish, "{name} {k} {prompt:?}");
            }
            let stats = fast.stats();
            eprintln!(
                "{name}, drafts of {k}: {:.3} accepted, {:.2} tokens a pass",
                rate(stats),
                stats.acceptance_length().expect("rounds")
            );
            if k == 4 && name == "Model" {
                assert!(rate(stats) > FLOOR, "{}", rate(stats));
            }
            if k == 4 && name == "Ngram" {
                assert!(stats.accepted > 100, "{}", stats.accepted);
            }
        }
    }
}

/// What the target says makes sense. (Which place, or how often, it may get wrong: it is small.)
#[test]
fn answers_are_sensible() {
    let mut plain = generator(Drafting::Off, 4);
    let mut say = |prompt: &str| {
        let options = Options::max_new_tokens(300);
        answer(&mut plain, &Prompt::user(prompt), &options).text
    };
    assert_eq!(
        say("Count from three to nine."),
        "Three, four, five, six, seven, eight, nine."
    );
    assert!(say("What does the owl eat?").starts_with("The owl eats mice."));
    assert_eq!(
        say("What day comes after Monday?"),
        "After Monday comes Tuesday."
    );
    let list = "Here are five fruits:\n1. apples\n2. pears\n3. plums\n4. cherries\n5. grapes";
    assert_eq!(say("Make a list of five fruits."), list);
    let place =
        say("The red kite is in the barn. The blue cup is under the bed. Where is the blue cup?");
    assert!(place.starts_with("The blue cup is "), "{place}");
    let said = say("Say this three times: On Friday the cow found the red hat.");
    assert!(said.starts_with("On Friday the cow found the "), "{said}");
    let story = say("Tell me a story about a fox named Mia.");
    assert!(story.starts_with("Once upon a time there was a"), "{story}");
    assert!(story.contains("fox named Mia."), "{story}");
    assert!(story.ends_with(['.', '!']), "{story}");
}

/// Sampled with a seed: the same tokens plainly and with either drafter.
#[test]
fn sampled_answers_are_the_same_with_drafts() {
    let mut plain = generator(Drafting::Off, 4);
    let mut fast = [
        generator(Drafting::ngram(), 5),
        generator(Drafting::Model(pair().1.clone()), 5),
    ];
    let mut different = 0;
    for (i, prompt) in prompts().iter().enumerate() {
        let mut options = Options::max_new_tokens(200)
            .temperature(0.8)
            .seed(100 + i as u64);
        options.sampling.top_p = Some(0.95);
        let wanted = answer(&mut plain, prompt, &options);
        let greedy = answer(&mut plain, prompt, &Options::max_new_tokens(200));
        different += usize::from(wanted.tokens != greedy.tokens);
        for fast in &mut fast {
            let got = answer(fast, prompt, &options);
            assert_eq!(got.tokens, wanted.tokens, "{prompt:?}");
        }
    }
    assert!(
        different >= 3,
        "only {different} answers differ from the greedy ones"
    );
    // Coupled: the draft model shares the noise, so that it is accepted nearly as often.
    let shared = rate(fast[1].stats());
    eprintln!("sampled: {shared:.3} of the draft model's tokens are accepted");
    assert!(shared > FLOOR - 0.1, "{shared}");
}

/// A batch gives every prompt the answer it gets alone, greedy and sampled rows mixed.
#[test]
fn a_batch_answers_as_each_alone() {
    let options = |i: usize| match i % 3 {
        0 => Options::max_new_tokens(120),
        1 => Options::max_new_tokens(40).temperature(0.9).seed(i as u64),
        _ => Options::max_new_tokens(200).temperature(0.6).seed(7),
    };
    let mut plain = generator(Drafting::Off, 4);
    let alone: Vec<Vec<u32>> = prompts()
        .iter()
        .enumerate()
        .map(|(i, prompt)| answer(&mut plain, prompt, &options(i)).tokens)
        .collect();
    for (rows, drafting) in [
        (16, Drafting::Model(pair().1.clone())),
        (3, Drafting::Model(pair().1.clone())),
        (5, Drafting::ngram()),
    ] {
        let mut fast = Generator::builder(&pair().0)
            .drafting(drafting)
            .draft_length(DraftLength::Fixed(4))
            .max_rows(rows)
            .build()
            .expect("the parts fit");
        let batch = prompts().into_iter().enumerate().map(|(i, prompt)| {
            let mut options = options(i);
            if i % 5 == 4 {
                options.speculation = Speculation::Off;
            }
            (prompt, options)
        });
        let got: Vec<Vec<u32>> = fast
            .generate_batch(batch, |_, _| {})
            .expect("steps succeed")
            .into_iter()
            .map(|answer| answer.expect("a good prompt").tokens)
            .collect();
        assert_eq!(got, alone, "{rows} rows");
        assert!(fast.stats().accepted > 0);
    }
}

/// A draft model that reads the begin token at every eighth position, as one would whose cache
/// missed entries.
struct Holes(Arc<dyn TargetModel>);

impl TargetModel for Holes {
    fn spec(&self) -> &ModelSpec {
        self.0.spec()
    }

    fn forward(
        &self,
        block: &Block,
        attend: &mut dyn Attend,
        taps: &[usize],
    ) -> specdec::core::Result<Forward> {
        let mut holed = Block::new(block.device());
        for (row, range) in block.rows().iter().zip(block.ranges()) {
            let tokens: Vec<u32> = block.tokens()[range]
                .iter()
                .enumerate()
                .map(|(i, &t)| if (row.start + i) % 8 == 0 { 0 } else { t })
                .collect();
            holed.push(row.seq, row.start, &tokens);
        }
        self.0.forward(&holed, attend, taps)
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.0.logits(hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.0.embed(tokens)
    }
}

/// The floor tells a draft model with a whole memory from one with holes in it; and even that one
/// changes nothing.
#[test]
fn holes_in_the_drafters_memory_show_in_the_acceptance() {
    let draft = pair().1.target().clone();
    let cache = SlotCache::new(draft.spec()).expect("a cache");
    let drafter = ModelDrafter::new(Arc::new(Holes(draft)), cache);
    let mut holed = generator(Drafting::Custom(Box::new(drafter)), 4);
    let mut plain = generator(Drafting::Off, 4);
    let options = Options::max_new_tokens(300);
    for prompt in prompts() {
        let (got, wanted) = (
            answer(&mut holed, &prompt, &options),
            answer(&mut plain, &prompt, &options),
        );
        assert_eq!(got.tokens, wanted.tokens, "{prompt:?}");
    }
    eprintln!("with holes: {:.3} accepted", rate(holed.stats()));
    assert!(rate(holed.stats()) < FLOOR, "{}", rate(holed.stats()));
}

/// The pair is small enough to ship, and says whose it is.
#[test]
fn the_folder_is_small_and_has_a_card() {
    let mut bytes = 0;
    let mut folders = vec![folder()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let kind = entry.metadata().expect("metadata");
            if kind.is_dir() {
                folders.push(entry.path());
            }
            bytes += if kind.is_file() { kind.len() } else { 0 };
        }
    }
    assert!(bytes < 3_000_000, "{bytes} bytes");
    let card = std::fs::read_to_string(folder().join("README.md")).expect("a card");
    for what in ["Apache-2.0", "--example train_tiny_pair", "Data"] {
        assert!(card.contains(what), "the card does not say {what}");
    }
    let (target, draft) = pair();
    assert!(
        target.report().unused.is_empty(),
        "{:?}",
        target.report().unused
    );
    assert!(
        draft.report().unused.is_empty(),
        "{:?}",
        draft.report().unused
    );
}
