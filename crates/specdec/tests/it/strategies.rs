//! Every batch strategy gives every row what it gets alone, on trained models.

use crate::tiny_pair::pair;
use specdec::ragged::Strategy;
use specdec::{DraftLength, Drafting, Generator, Options, Prompt};

pub(crate) fn prompts() -> Vec<(Prompt, Options)> {
    let asked = [
        "Tell me a story about a fox named Mia.",
        "Count from three to twelve.",
        "What does the owl eat?",
        "Make a list of five fruits.",
        "Who is Rosa?",
        "Say this three times: On Friday the cow found the red hat.",
        "Sing a song.",
    ];
    let options = |i: usize| {
        let options = Options::max_new_tokens(20 + 11 * (i % 4)).seed(i as u64);
        if i.is_multiple_of(2) {
            options
        } else {
            options.temperature(0.8)
        }
    };
    asked
        .iter()
        .enumerate()
        .map(|(i, text)| (Prompt::user(*text), options(i)))
        .collect()
}

#[test]
fn every_strategy_and_draft_length_gives_the_single_runs() {
    let mut alone = Generator::builder(&pair().0)
        .plain()
        .build()
        .expect("it fits");
    let wanted: Vec<Vec<u32>> = prompts()
        .into_iter()
        .map(|(prompt, options)| alone.generate(prompt, &options).expect("good").tokens)
        .collect();
    for strategy in Strategy::ALL {
        for model_drafts in [false, true] {
            for length in [DraftLength::Fixed(3), DraftLength::per_row(8)] {
                let what = format!("{strategy}, {length:?}, draft model: {model_drafts}");
                let drafting = match model_drafts {
                    true => Drafting::Model(pair().1.clone()),
                    false => Drafting::ngram(),
                };
                let mut generator = Generator::builder(&pair().0)
                    .drafting(drafting)
                    .draft_length(length)
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
                let align = generator.meters().align();
                assert_eq!(
                    align.moved_bytes > 0,
                    strategy != Strategy::Slots,
                    "{what}: {align:?}"
                );
                assert!(
                    generator.meters().batch().rows_per_round() > Some(1.0),
                    "{what}"
                );
            }
        }
    }
}
