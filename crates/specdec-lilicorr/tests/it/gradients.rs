//! What reaches what in training: which states a block sees, and which parameters a term moves.

use crate::training::{config, options, store_in, texts, tiny};
use specdec_lilicorr::train::{LossWeights, StoredText, TrainOptions, Trainer, evaluate};
use specdec_lilicorr::{DraftConfig, DraftModel, Weights};
use std::path::Path;

/// A text with room for exactly one block, whose taps are changed by `change`.
fn one_block(folder: &Path, change: impl Fn(usize, &mut f32)) -> f32 {
    let text = texts().read(1).expect("there");
    let (len, width) = (text.prompt_len + 5, 2 * 128);
    let mut taps = text.taps[..len * width].to_vec();
    for (position, row) in taps.chunks_mut(width).enumerate() {
        row.iter_mut().for_each(|v| change(position, v));
    }
    let mut store = store_in(folder, &config());
    let cut = StoredText {
        tokens: text.tokens[..len].to_vec(),
        prompt_len: text.prompt_len,
        taps,
        hidden: text.hidden[..len * 128].to_vec(),
    };
    store.push(&cut).expect("written");
    let model = DraftModel::with_deviation(&config(), 3, 0.1, &crate::world::device());
    let model = model.expect("good");
    let found = evaluate(&model, &*tiny(), &store, 8, 1).expect("measured");
    assert_eq!(found.metrics.blocks, 1);
    found.metrics.drafter
}

/// T13: the anchor's own states and all later ones are invisible, to the bit; those of the position
/// before it are seen.
#[test]
fn t13_a_block_sees_nothing_from_its_anchor_on() {
    let anchor = texts().read(1).expect("there").prompt_len;
    let run = |from: usize| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        one_block(folder.path(), |position, v| {
            if position >= from {
                *v = 3.0 - *v * 2.0;
            }
        })
    };
    let plain = run(usize::MAX);
    assert_eq!(run(anchor), plain);
    assert_ne!(run(anchor - 1), plain);
}

/// So many candidates that the text is among them before anything is learnt.
fn wide() -> DraftConfig {
    let mut config = config();
    config.head.as_mut().expect("a head").candidates = 64;
    config
}

/// The weights after one step without a limit to the gradient.
fn after_one_step(weights: LossWeights) -> Weights {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = TrainOptions {
        weights,
        clip: 1e12,
        anchors: 24,
        ..options(100)
    };
    let mut run = Trainer::new(&wide(), &*tiny(), &texts(), folder.path(), options).expect("good");
    let metrics = run.step().expect("a step");
    assert!(metrics.alive > 0, "nothing for the head to learn from");
    run.model().weights().expect("readable")
}

/// Drafter and head are trained together: terms of the head move the drafter's own maps; and without
/// weights the head does not move at all.
#[test]
fn terms_of_the_head_reach_the_drafter() {
    let none = LossWeights {
        cross_entropy: 0.0,
        penalty: 0.0,
        ..LossWeights::BASE
    };
    let much = LossWeights {
        cross_entropy: 100.0,
        penalty: 100.0,
        ..LossWeights::BASE
    };
    let (without, with) = (after_one_step(none), after_one_step(much));
    let start = DraftModel::with_deviation(
        &wide(),
        options(1).seed,
        options(1).deviation,
        &crate::world::device(),
    )
    .expect("good");
    let start_weights = start.weights().expect("readable");
    for (name, _) in start.parameters() {
        let of = |w: &Weights| w.get(&name).expect("there").1.to_vec();
        let (before, a, b) = (of(&start_weights), of(&without), of(&with));
        if name.starts_with("lilicorr.") {
            assert_eq!(before, a, "{name} moved without a term");
            assert_ne!(before, b, "{name} did not move");
        } else {
            // The first step of AdamW is the sign of the gradient.
            let turned = before
                .iter()
                .zip(a.iter().zip(&b))
                .filter(|(s, (a, b))| (**a > **s) != (**b > **s));
            let share = turned.count() as f64 / before.len() as f64;
            let reached = [
                "fc.weight",
                "hidden_norm.weight",
                "layers.0.mlp.up_proj.weight",
            ];
            assert!(
                share > 0.02 || !reached.contains(&name.as_str()),
                "{name}: {share}"
            );
        }
    }
}
