//! The objective of one batch, with gradients or without.

use crate::attention::many_blocks;
use crate::calibration::prefix;
use crate::candidates::top_candidates;
use crate::draft_model::DraftModel;
use crate::frozen::{ids, numbers};
use crate::head::{HeadInput, HeadScores};
use crate::lattice::Lattice;
use crate::named::Uniform;
use crate::positions::Angles;
use crate::train::batch::Batch;
use crate::train::error::Result;
use crate::train::loss::{HeadRows, head_terms};
use crate::train::metrics::StepMetrics;
use crate::train::options::TrainOptions;
use burn::prelude::*;
use burn::tensor::activation::log_softmax;

/// What is the target's: constants of the objective, on the plain device.
#[derive(Debug, Clone)]
pub(super) struct Constants {
    /// Input embeddings, `[V', D]`.
    pub(super) embed: Tensor<2>,
    /// Output map of the draft vocabulary, `[V, D]`.
    pub(super) output: Tensor<2>,
}

/// A loss with what was measured on the way.
pub(super) struct Objective {
    pub(super) loss: Tensor<1>,
    pub(super) metrics: StepMetrics,
    /// Score rows of alive slots, with the place of the truth.
    pub(super) rows: Vec<(Vec<f32>, usize)>,
}

/// A constant among the network's tensors, which may be tracked.
fn lifted<const D: usize>(tensor: Tensor<D>, like: &Device) -> Tensor<D> {
    if like.is_autodiff() {
        tensor.autodiff()
    } else {
        tensor
    }
}

pub(super) fn objective(
    model: &DraftModel,
    batch: &Batch,
    constants: &Constants,
    options: &TrainOptions,
    draws: &mut Uniform,
) -> Result<Objective> {
    let config = model.config();
    let device = model.device();
    let plain = device.clone().inner();
    let (shape, slots) = (batch.shape, config.slots());
    let at =
        |positions: Vec<usize>| Angles::new(positions, config.head_dim, config.rope_theta, &device);
    let features = model.fuse(lifted(batch.taps.clone(), &device));
    let context_at = at((0..shape.texts).flat_map(|_| 0..shape.tokens).collect());
    let block_at = at(batch.positions.clone());
    let tokens = ids(batch.tokens.iter().copied(), &plain);
    let embedded = lifted(constants.embed.clone().select(0, tokens), &device);
    let hidden = model.forward(embedded, &block_at, &mut |layer, block| {
        let context = model.context(layer, features.clone(), &context_at);
        let hide = lifted(batch.hide[&config.layers[layer]].clone(), &device);
        many_blocks(block, context, hide, shape)
    });
    let blocks = shape.texts * shape.blocks;
    let drafted = (0..blocks).flat_map(|n| (1..=slots).map(move |j| (n * (slots + 1) + j) as i64));
    let hidden = hidden.select(0, ids(drafted, &device));
    let output = lifted(constants.output.clone(), &device);
    let log_p = log_softmax(hidden.clone().matmul(output.transpose()), 1);

    // The drafter's own term.
    let weight = |i: usize| (-((i % slots) as f64) / options.gamma).exp();
    let weights: Vec<f32> = (0..batch.labels.len())
        .map(|i| batch.labels[i].map_or(0.0, |_| weight(i) as f32))
        .collect();
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let column = |values: Vec<f32>| {
        let n = values.len();
        Tensor::<2>::from_data(TensorData::new(values, [n, 1]), &device)
    };
    let labels = ids(batch.labels.iter().map(|l| l.unwrap_or(0) as i64), &device);
    let of_labels = log_p.clone().gather(1, labels.unsqueeze_dim(1));
    let drafter = (of_labels * column(weights)).sum().neg() / (total + 1e-6);

    let mut metrics = StepMetrics {
        blocks: batch.real.iter().filter(|r| **r).count(),
        ..StepMetrics::default()
    };
    let chosen: Vec<usize> = (0..blocks)
        .filter(|&n| batch.real[n] && draws.next() < options.head_share)
        .collect();
    let mut loss = drafter.clone();
    let mut rows = Vec::new();
    let mut terms = vec![drafter];
    if let (Some(head), false) = (&model.lilicorr, chosen.is_empty()) {
        let k = head.config().candidates;
        let (r, n) = (chosen.len(), chosen.len() * slots);
        let of_slots: Vec<i64> = chosen
            .iter()
            .flat_map(|&b| (0..slots).map(move |s| (b * slots + s) as i64))
            .collect();
        let of_slots = ids(of_slots.into_iter(), &device);
        let log_p = log_p.select(0, of_slots.clone());
        // Which candidates there are is no function to be learnt.
        let width = config.draft_vocab_len();
        let best: Vec<Vec<u32>> = numbers(log_p.clone().inner())?
            .chunks(width)
            .map(|row| top_candidates(row, k).ids)
            .collect();
        let flat = || best.iter().flatten().map(|&id| i64::from(id));
        let columns = ids(flat(), &device).reshape([n, k]);
        let target_ids = flat().map(|id| match &config.draft_vocab {
            Some(kept) => i64::from(kept[id as usize]),
            None => id,
        });
        let embeddings = constants.embed.clone().select(0, ids(target_ids, &plain));
        let anchors = ids(chosen.iter().map(|&b| batch.anchor_rows[b]), &device);
        let scores = head.forward(HeadInput {
            logprobs: log_p.gather(1, columns).reshape([r, slots, k]),
            embeddings: lifted(embeddings, &device),
            hidden: hidden.select(0, of_slots.clone()),
            anchor: features.select(0, anchors),
            valid: Tensor::ones([r, 1], &device),
        });
        // Where the truth is among the candidates, and how far from the anchor on.
        let truth: Vec<Option<usize>> = chosen
            .iter()
            .flat_map(|&b| &batch.labels[b * slots..(b + 1) * slots])
            .zip(&best)
            .map(|(label, ids)| ids.iter().position(|&id| Some(id as usize) == *label))
            .collect();
        let mut alive = vec![0.0f32; n];
        for (block, alive) in truth.chunks(slots).zip(alive.chunks_mut(slots)) {
            let reach = block.iter().take_while(|t| t.is_some()).count();
            alive[..reach].fill(1.0);
        }
        let gold: Vec<usize> = truth.iter().map(|t| t.unwrap_or(0)).collect();
        let taught = teacher_forced(&scores, &gold, [r, slots, k], &device);
        // The target's logits of the candidates.
        let output = constants.output.clone().select(0, ids(flat(), &plain));
        let states = batch.target_hidden.clone().select(0, of_slots.inner());
        let target = output
            .reshape([n, k, config.hidden])
            .matmul(states.unsqueeze_dim(2));
        let head_rows = HeadRows {
            scores: taught.clone(),
            gold: ids(gold.iter().map(|&g| g as i64), &device).unsqueeze_dim(1),
            alive: column(alive.clone()),
            target: lifted(target.reshape([n, k]), &device),
        };
        let w = &options.weights;
        let count = alive.iter().sum::<f32>().max(1.0);
        let each = head_terms(&head_rows, w.margin_size, w.soft_temperature);
        for (term, weight) in [
            (each.cross_entropy, w.cross_entropy),
            (each.margin, w.margin),
            (each.penalty, w.penalty),
            (each.soft, w.soft),
        ] {
            let mean = (term * head_rows.alive.clone()).sum() / count;
            loss = loss + mean.clone() * weight;
            terms.push(mean);
        }
        metrics.alive = alive.iter().filter(|a| **a > 0.0).count();
        prefixes(&mut metrics, &scores, &truth, [r, slots, k])?;
        let taught = numbers(taught.inner())?;
        let alive_rows = taught
            .chunks(k)
            .zip(&gold)
            .zip(&alive)
            .filter(|(_, a)| **a > 0.0);
        rows = alive_rows.map(|((row, &g), _)| (row.to_vec(), g)).collect();
    }
    terms.insert(0, loss.clone());
    let read = numbers(Tensor::cat(terms, 0).inner())?;
    let term = |i: usize| read.get(i).copied().unwrap_or(0.0);
    metrics.loss = term(0);
    metrics.drafter = term(1);
    metrics.cross_entropy = term(2);
    metrics.margin = term(3);
    metrics.penalty = term(4);
    metrics.soft = term(5);
    Ok(Objective {
        loss,
        metrics,
        rows,
    })
}

/// The row of scores of each slot after the true candidate of the slot before, `[R * S, K]`.
fn teacher_forced(
    scores: &HeadScores,
    gold: &[usize],
    [r, slots, k]: [usize; 3],
    device: &Device,
) -> Tensor<2> {
    let start = scores.start.clone().reshape([r, 1, k]);
    let Some(pairs) = &scores.pairs else {
        return start.reshape([r, k]);
    };
    let places = (0..r).flat_map(|b| {
        (0..slots - 1).map(move |s| ((b * (slots - 1) + s) * k + gold[b * slots + s]) as i64)
    });
    let rows = pairs
        .clone()
        .reshape([r * (slots - 1) * k, k])
        .select(0, ids(places, device))
        .reshape([r, slots - 1, k]);
    Tensor::cat(vec![start, rows], 1).reshape([r * slots, k])
}

/// How far each block is right, by three measures.
fn prefixes(
    metrics: &mut StepMetrics,
    scores: &HeadScores,
    truth: &[Option<usize>],
    [r, slots, k]: [usize; 3],
) -> Result<()> {
    let start = numbers(scores.start.clone().inner())?;
    let pairs = match &scores.pairs {
        Some(pairs) => numbers(pairs.clone().inner())?,
        None => Vec::new(),
    };
    let size = (slots - 1) * k * k;
    for b in 0..r {
        let lattice = Lattice {
            ids: vec![(0..k as u32).collect(); slots],
            logprobs: Vec::new(),
            start: start[b * k..(b + 1) * k].to_vec(),
            pairs: pairs[b * size..(b + 1) * size]
                .chunks(k * k)
                .map(|slot| slot.chunks(k).map(<[f32]>::to_vec).collect())
                .collect(),
        };
        // Places stand for tokens; one beyond all candidates for a token that is none.
        let truth: Vec<u32> = truth[b * slots..(b + 1) * slots]
            .iter()
            .map(|t| t.unwrap_or(k) as u32)
            .collect();
        let walk = lattice.greedy();
        let mean =
            |right: &dyn Fn(usize, u32) -> bool| prefix(&truth, slots, right) as f64 / r as f64;
        metrics.oracle_prefix += mean(&|_, t| (t as usize) < k);
        metrics.selected_prefix += mean(&|slot, t| walk[slot] == t as usize);
        metrics.top1_prefix += mean(&|_, t| t == 0);
    }
    Ok(())
}
