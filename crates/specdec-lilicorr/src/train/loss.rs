//! Terms of the head's objective.

use burn::prelude::*;
use burn::tensor::activation::{log_softmax, relu, softmax};

/// Rows of scores with what is known of each, N of them with K candidates.
#[derive(Debug, Clone)]
pub struct HeadRows {
    /// The scores after the true candidate of the slot before, `[N, K]`.
    pub scores: Tensor<2>,
    /// Place of the true candidate, `[N, 1]`; anything where `alive` is 0.
    pub gold: Tensor<2, Int>,
    /// 1 where the slot's whole prefix, its own token included, is among the candidates, else 0,
    /// `[N, 1]`.
    pub alive: Tensor<2>,
    /// The target's raw logits of the candidates, `[N, K]`.
    pub target: Tensor<2>,
}

/// Terms of each row, `[N, 1]`; those of rows that are not alive mean nothing.
#[derive(Debug, Clone)]
pub struct HeadTerms {
    /// `-ln softmax(scores)[gold]`.
    pub cross_entropy: Tensor<2>,
    /// `max(0, margin - (scores[gold] - largest other score))`; 0 with one candidate.
    pub margin: Tensor<2>,
    /// `sum of softmax(scores) * max(0, target[gold] - target)`.
    pub penalty: Tensor<2>,
    /// `-sum of softmax(target / T) * ln softmax(scores)`.
    pub soft: Tensor<2>,
}

/// The terms of LiLiCorr (arXiv 2608.20530), and the soft cross-entropy at a temperature T.
pub fn head_terms(rows: &HeadRows, margin: f64, temperature: f64) -> HeadTerms {
    let HeadRows {
        scores,
        gold,
        target,
        ..
    } = rows;
    let [n, k] = scores.dims();
    let device = scores.device();
    let log_p = log_softmax(scores.clone(), 1);
    let right = scores.clone().gather(1, gold.clone());
    let hinge = if k == 1 {
        Tensor::zeros([n, 1], &device)
    } else {
        let places = Tensor::<1, Int>::arange(0..k as i64, &device).unsqueeze::<2>();
        let own = places.expand([n, k]).equal(gold.clone().expand([n, k]));
        let rival = scores.clone().mask_fill(own, -1e30).max_dim(1);
        relu(rival - right + margin)
    };
    let regret = relu(target.clone().gather(1, gold.clone()) - target.clone());
    let wanted = softmax(target.clone() / temperature, 1);
    HeadTerms {
        cross_entropy: log_p.clone().gather(1, gold.clone()).neg(),
        margin: hinge,
        penalty: (log_p.clone().exp() * regret).sum_dim(1),
        soft: (wanted * log_p).sum_dim(1).neg(),
    }
}
