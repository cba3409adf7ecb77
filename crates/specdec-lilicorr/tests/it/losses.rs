//! Golden values of the head's objective.

#![allow(
    clippy::excessive_precision,
    reason = "the numbers stand here as they were published"
)]

use crate::golden::{case, config as golden_config, filled};
use crate::world::{close, device};
use burn::prelude::*;
use specdec_lilicorr::train::{HeadRows, LossWeights, head_terms};

/// The losses of the golden case.
#[test]
fn golden_losses() {
    let lattices = case(&filled(&golden_config(Some(8), 3, 4)), 3, [1.0, 0.0]).lattices;
    let labels = [[2u32, 12, 9], [5, 15, 12]];
    let target = |b: usize, s: usize, v: u32| {
        8.0 * ((23 * v as usize + 41 * s + 67 * b) % 37) as f32 / 37.0 - 4.0
    };
    let (mut scores, mut gold, mut logits) = (Vec::new(), Vec::new(), Vec::new());
    for (b, lattice) in lattices.iter().enumerate() {
        let mut previous = 0;
        for (s, label) in labels[b].iter().enumerate() {
            let Some(at) = lattice.ids[s].iter().position(|id| id == label) else {
                break;
            };
            scores.extend_from_slice(lattice.row(s, previous));
            logits.extend(lattice.ids[s].iter().map(|&id| target(b, s, id)));
            gold.push(at as i64);
            previous = at;
        }
    }
    let n = gold.len();
    assert_eq!(n, 4);
    let tensor = |v: Vec<f32>| Tensor::<2>::from_data(TensorData::new(v, [n, 3]), &device());
    let rows = HeadRows {
        scores: tensor(scores),
        gold: Tensor::<1, Int>::from_data(TensorData::new(gold, [n]), &device()).unsqueeze_dim(1),
        alive: Tensor::ones([n, 1], &device()),
        target: tensor(logits),
    };
    let terms = head_terms(&rows, 2.0, 1.0);
    let numbers = |t: Tensor<2>| t.into_data().try_into_vec_as::<f32>().expect("f32");
    let mean = |v: &[f32]| v.iter().sum::<f32>() / v.len() as f32;
    let ce = numbers(terms.cross_entropy);
    let hinge = numbers(terms.margin);
    let penalty = numbers(terms.penalty);
    close(
        &ce,
        &[1.795967, 0.090882, 1.761710, 0.279515],
        2e-5,
        "cross-entropy",
    );
    close(&hinge, &[3.460736, 0.0, 3.296608, 0.664430], 2e-5, "hinge");
    close(
        &penalty,
        &[0.0, 0.026171, 3.512916, 1.340135],
        2e-5,
        "penalty",
    );
    let (ce, hinge, penalty) = (mean(&ce), mean(&hinge), mean(&penalty));
    let of = |w: LossWeights| {
        w.cross_entropy as f32 * ce + w.margin as f32 * hinge + w.penalty as f32 * penalty
    };
    let got = [of(LossWeights::BASE), of(LossWeights::MARGIN)];
    close(&got, &[0.550456, 0.659634], 2e-5, "both variants");
}
