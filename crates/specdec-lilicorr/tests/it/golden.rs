//! Values of the head that were computed independently, from weights that a formula gives.

#![allow(
    clippy::excessive_precision,
    reason = "the numbers stand here as they were published"
)]

use crate::world::{close, device};
use burn::prelude::*;
use specdec_core::Token;
use specdec_lilicorr::{
    Calibration, DraftConfig, DraftModel, HeadConfig, HeadInput, Lattice, LayerKind, Weights,
    top_candidates,
};

/// `((((37 i + 101 b) mod 97) / 97) - 0.5) * 0.4`, b the sum of the name's bytes; 1 more for norms.
pub(crate) fn fill(name: &str, n: usize) -> Vec<f32> {
    let sum: usize = name.bytes().map(usize::from).sum();
    let shift = if name.ends_with("norm.weight") {
        1.0
    } else {
        0.0
    };
    (0..n)
        .map(|i| ((((37 * i + 101 * sum) % 97) as f64 / 97.0 - 0.5) * 0.4 + shift) as f32)
        .collect()
}

const D: usize = 12;
const VOCAB: usize = 16;

pub(crate) fn config(hidden: Option<usize>, candidates: usize, block_size: usize) -> DraftConfig {
    DraftConfig {
        hidden: D,
        layers: vec![LayerKind::Full],
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        intermediate: 8,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        vocab: VOCAB,
        target_layers: 4,
        taps: vec![1],
        mask_token: 15,
        block_size,
        draft_vocab: None,
        head: Some(HeadConfig {
            candidates,
            hidden,
            factor: 4,
            layers: 1,
            heads: 2,
            mlp_ratio: 2.0,
            logit_scale: 8.0,
            vector_eps: 1e-4,
        }),
    }
}

pub(crate) fn filled(config: &DraftConfig) -> DraftModel {
    let names = DraftModel::new(config, 0, &device())
        .expect("good")
        .parameters();
    let mut weights = Weights::new();
    for (name, shape) in names {
        let values = fill(name.trim_start_matches("lilicorr."), shape.iter().product());
        weights.insert(name, shape, values);
    }
    DraftModel::from_weights(config, weights, &device()).expect("the tensors fit")
}

fn scaled(name: &str, n: usize) -> Vec<f32> {
    fill(name, n).iter().map(|v| 5.0 * v).collect()
}

fn tensor<const N: usize>(values: Vec<f32>, shape: [usize; N]) -> Tensor<N> {
    Tensor::from_data(TensorData::new(values, shape), &device())
}

fn numbers<const N: usize>(tensor: Tensor<N>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().expect("f32")
}

fn draft_logits(b: usize, s: usize) -> Vec<f32> {
    let value = |v: usize| 6.0 * ((29 * v + 53 * s + 71 * b) % 31) as f32 / 31.0 - 3.0;
    (0..VOCAB).map(value).collect()
}

pub(crate) struct Case {
    pub(crate) lattices: Vec<Lattice>,
}

/// The two lattices of the golden case, with `slots` slots.
pub(crate) fn case(model: &DraftModel, slots: usize, valid: [f32; 2]) -> Case {
    let head = model.head().expect("a head");
    let k = head.config().candidates;
    let embed = scaled("embed", VOCAB * D);
    let (mut ids, mut logprobs, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for b in 0..2 {
        let slots: Vec<_> = (0..slots)
            .map(|s| top_candidates(&draft_logits(b, s), k))
            .collect();
        for id in slots.iter().flat_map(|c| &c.ids) {
            rows.extend_from_slice(&embed[*id as usize * D..][..D]);
        }
        ids.push(
            slots
                .iter()
                .map(|c| c.ids.clone())
                .collect::<Vec<Vec<Token>>>(),
        );
        logprobs.push(slots.into_iter().map(|c| c.logprobs).collect::<Vec<_>>());
    }
    let flat = |l: &[Vec<Vec<f32>>]| l.iter().flatten().flatten().copied().collect::<Vec<_>>();
    let hidden: Vec<f32> = scaled("hidden", 2 * 3 * D)
        .chunks(3 * D)
        .flat_map(|block| block[..slots * D].to_vec())
        .collect();
    let scores = head.forward(HeadInput {
        logprobs: tensor(flat(&logprobs), [2, slots, k]),
        embeddings: tensor(rows, [2 * slots * k, D]),
        hidden: tensor(hidden, [2 * slots, D]),
        anchor: tensor(scaled("anchor", 2 * D), [2, D]),
        valid: tensor(valid.to_vec(), [2, 1]),
    });
    let start = numbers(scores.start);
    let pairs = scores.pairs.map(numbers).unwrap_or_default();
    let lattices = (0..2).map(|b| Lattice {
        ids: ids[b].clone(),
        logprobs: logprobs[b].clone(),
        start: start[b * k..][..k].to_vec(),
        pairs: pairs[b * (slots - 1) * k * k..][..(slots - 1) * k * k]
            .chunks(k * k)
            .map(|m| m.chunks(k).map(<[f32]>::to_vec).collect())
            .collect(),
    });
    Case {
        lattices: lattices.collect(),
    }
}

const LOGPROBS: [[[f32; 3]; 3]; 2] = [
    [
        [-1.134555, -1.521652, -1.908749],
        [-1.178417, -1.565514, -1.952611],
        [-1.140460, -1.527556, -1.914653],
    ],
    [
        [-1.136936, -1.524033, -1.911130],
        [-1.134555, -1.521652, -1.908749],
        [-1.178417, -1.565514, -1.952611],
    ],
];
const START: [[f32; 3]; 2] = [
    [-6.786763, -6.452918, -4.992181],
    [-3.695741, -6.517859, -5.031312],
];
const PAIRS: [[[[f32; 3]; 3]; 2]; 2] = [
    [
        [
            [1.084830, -2.882736, -1.121373],
            [1.661341, -2.998442, -0.795902],
            [-0.072652, 0.239600, -0.134115],
        ],
        [
            [2.189525, 3.332971, 2.036362],
            [-2.007414, -3.398312, -4.983705],
            [0.125196, 0.125468, -1.602629],
        ],
    ],
    [
        [
            [-0.777717, -1.347436, -0.549718],
            [-2.310946, -2.053340, -1.443871],
            [-2.204035, -2.088870, -1.429940],
        ],
        [
            [-4.446451, -5.474916, -5.276098],
            [-3.872877, -5.747273, -4.928990],
            [-3.275011, -3.740526, -3.886793],
        ],
    ],
];

/// Golden values; with them T38 (log-probabilities over the whole vocabulary), T43 (no log-probability
/// is added to scores) and T44 (the matrix is not transposed).
#[test]
fn t38_t43_t44_the_head_gives_the_golden_scores() {
    let case = case(&filled(&config(Some(8), 3, 4)), 3, [1.0, 0.0]);
    let ids = [
        [[1, 2, 3], [12, 13, 14], [7, 8, 9]],
        [[5, 6, 7], [1, 2, 3], [12, 13, 14]],
    ];
    let mut worst = 0f32;
    for (b, lattice) in case.lattices.iter().enumerate() {
        assert_eq!(lattice.ids, ids[b]);
        for (s, logprobs) in lattice.logprobs.iter().enumerate() {
            worst = worst.max(close(logprobs, &LOGPROBS[b][s], 2e-5, "log-probabilities"));
            assert!(logprobs.iter().map(|l| l.exp()).sum::<f32>() < 1.0);
        }
        worst = worst.max(close(&lattice.start, &START[b], 2e-5, "start"));
        for (s, slot) in lattice.pairs.iter().enumerate() {
            for (i, row) in slot.iter().enumerate() {
                worst = worst.max(close(row, &PAIRS[b][s][i], 2e-5, "pairs"));
            }
        }
    }
    assert!(worst <= 2e-5, "largest difference {worst}");
}

#[test]
fn golden_paths() {
    let case = case(&filled(&config(Some(8), 3, 4)), 3, [1.0, 0.0]);
    let plain = Calibration {
        sharpness: 1.0,
        coverage: vec![1.0; 3],
    };
    let want = [
        (
            [2, 1, 0],
            [3, 13, 7],
            [1, 0, 1],
            -1.458606,
            [2, 1, 0],
            1.238063,
        ),
        (
            [0, 2, 0],
            [5, 3, 12],
            [0, 2, 0],
            -7.520470,
            [0, 2, 0],
            1.247843,
        ),
    ];
    for (lattice, (walk, tokens, sum_path, sum, expected, value)) in case.lattices.iter().zip(want)
    {
        assert_eq!(lattice.greedy(), walk);
        assert_eq!(lattice.tokens(&walk), tokens);
        let (path, best) = largest_sum(lattice);
        assert_eq!(path, sum_path);
        assert!((best - sum).abs() < 1e-4, "{best}");
        let (path, length) = lattice.longest_expected(&plain);
        assert_eq!(path, expected);
        assert!((length - value).abs() < 2e-5, "{length}");
    }
}

/// The path with the largest sum of scores, by trying all.
fn largest_sum(lattice: &Lattice) -> (Vec<usize>, f32) {
    let k = lattice.start.len();
    let all = (0..k.pow(lattice.len() as u32)).map(|n| {
        let path: Vec<usize> = (0..lattice.len())
            .map(|s| n / k.pow(s as u32) % k)
            .collect();
        let sum = (0..lattice.len())
            .map(|s| lattice.row(s, if s == 0 { 0 } else { path[s - 1] })[path[s]])
            .sum();
        (path, sum)
    });
    all.fold((Vec::new(), f32::NEG_INFINITY), |b, p| {
        if p.1 > b.1 { p } else { b }
    })
}

/// T7: an anchor without a position before it gives zeros after the biased projection, whatever lies
/// in its place.
#[test]
fn t7_an_invalid_anchor_leaves_no_trace() {
    let model = filled(&config(Some(8), 3, 4));
    let both = case(&model, 3, [1.0, 0.0]).lattices;
    let none = case(&model, 3, [0.0, 0.0]).lattices;
    assert_eq!(both[1], none[1]);
    assert_ne!(both[0].start, none[0].start);
    // The first block's anchor differs from the second's and is hidden in both runs.
    let names = model.weights().expect("readable");
    let (shape, bias) = names.get("lilicorr.context_proj.bias").expect("there");
    assert!(
        bias.iter().any(|b| *b != 0.0),
        "a bias of {shape:?} to be hidden"
    );
}

/// T45: one candidate, and one slot.
#[test]
fn t45_one_candidate_and_one_slot() {
    let one = case(&filled(&config(Some(8), 1, 4)), 3, [1.0, 1.0]).lattices;
    for lattice in &one {
        assert_eq!(lattice.greedy(), [0, 0, 0]);
        let scores = lattice
            .pairs
            .iter()
            .flatten()
            .flatten()
            .chain(&lattice.start);
        assert!(scores.into_iter().all(|s| s.is_finite()));
    }
    let short = case(&filled(&config(Some(8), 3, 2)), 1, [1.0, 1.0]).lattices;
    assert!(
        short
            .iter()
            .all(|l| l.pairs.is_empty() && l.start.len() == 3)
    );
}

/// T47: a shorter draft has its own lattice; it is not the longer one's beginning.
#[test]
fn t47_a_shorter_block_is_not_a_cut_one() {
    let model = filled(&config(Some(8), 3, 4));
    let long = &case(&model, 3, [1.0, 0.0]).lattices[0];
    let short = &case(&model, 2, [1.0, 0.0]).lattices[0];
    assert_eq!(short.ids, long.ids[..2]);
    assert_ne!(short.start, long.start);
    assert_eq!(short.pairs.len(), 1);
}

/// T37: a head as wide as the drafter has no projection of tokens.
#[test]
fn t37_a_head_of_the_drafters_width() {
    let config = config(None, 3, 4);
    let model = filled(&config);
    assert!(
        model
            .parameters()
            .iter()
            .all(|(name, _)| !name.contains("token_proj"))
    );
    let scores = &case(&model, 3, [1.0, 1.0]).lattices[0].start;
    assert!(scores.iter().all(|s| s.abs() <= 8.0));
}

/// Equal logits: the lower id first; NaN last; the norm counts all of them.
#[test]
fn candidates_of_equal_logits() {
    let found = top_candidates(&[1.0, 3.0, f32::NAN, 3.0, 2.0, 3.0], 4);
    assert_eq!(found.ids, [1, 3, 5, 4]);
    let sum = 3.0 * 3f64.exp() + 2f64.exp() + 1f64.exp();
    assert!((f64::from(found.logprobs[3]) - (2.0 - sum.ln())).abs() < 1e-6);
    let odd = top_candidates(&[f32::NAN; 3], 2);
    assert!(odd.logprobs.iter().all(|l| l.is_finite()));
}
