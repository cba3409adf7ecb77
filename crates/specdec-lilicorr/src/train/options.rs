use crate::train::error::{Result, TrainError};
use std::time::Duration;

/// Weights of the head's terms beside the drafter's own cross-entropy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossWeights {
    /// Cross-entropy of the true candidate after the true one before it.
    pub cross_entropy: f64,
    /// Hinge between the true candidate and its best rival.
    pub margin: f64,
    /// The margin the hinge asks for, in units of scores.
    pub margin_size: f64,
    /// Expected regret, in the target's logits, of the head's own choice.
    pub penalty: f64,
    /// Cross-entropy with the target's own chances of the candidates instead of the one that was
    /// drawn: beyond the paper. It learns faster at first and suits sampling.
    pub soft: f64,
    /// The temperature of those chances; positive.
    pub soft_temperature: f64,
}

impl LossWeights {
    /// The paper's first variant: cross-entropy and penalty, a quarter each.
    pub const BASE: Self = Self {
        cross_entropy: 0.25,
        margin: 0.0,
        margin_size: 2.0,
        penalty: 0.25,
        soft: 0.0,
        soft_temperature: 1.0,
    };
    /// The paper's second variant: half of the cross-entropy goes to a margin of 2.
    pub const MARGIN: Self = Self {
        cross_entropy: 0.125,
        margin: 0.125,
        ..Self::BASE
    };
    /// Soft cross-entropy alone.
    pub const SOFT: Self = Self {
        cross_entropy: 0.0,
        penalty: 0.0,
        soft: 0.25,
        ..Self::BASE
    };
}

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainOptions {
    /// Steps in all.
    pub steps: usize,
    /// Texts of a step.
    pub texts: usize,
    /// Most blocks of a text and step.
    pub anchors: usize,
    /// Highest learning rate; up in the first 4 % of the steps, then down a cosine to a tenth.
    pub rate: f64,
    /// AdamW's decay rates of the two moments.
    pub betas: (f64, f64),
    /// The gradient's norm over all parameters is cut to this.
    pub clip: f64,
    /// Weight of slot k (from 1): `exp(-(k - 1) / gamma)`; about half of the block size.
    pub gamma: f64,
    /// Terms of the head.
    pub weights: LossWeights,
    /// Share of the blocks that the head's terms see, in 0..=1: the head is the dearest part of small
    /// networks.
    pub head_share: f64,
    /// Deviation of the starting weights.
    pub deviation: f64,
    /// Seed of starting weights, order of texts and anchors.
    pub seed: u64,
    /// How often the whole state is saved.
    pub save_every: Duration,
}

impl TrainOptions {
    /// The papers' settings for blocks of `block_size` rows, with few texts and blocks a step, for
    /// narrow networks on a CPU.
    pub fn new(steps: usize, block_size: usize) -> Self {
        Self {
            steps,
            texts: 8,
            anchors: 32,
            rate: 2e-3,
            betas: (0.9, 0.95),
            clip: 1.0,
            gamma: block_size as f64 / 2.0,
            weights: LossWeights::BASE,
            head_share: 1.0,
            deviation: 0.05,
            seed: 1,
            save_every: Duration::from_secs(30),
        }
    }

    /// The learning rate of a step.
    pub fn rate_at(&self, step: usize) -> f64 {
        let warm = (self.steps / 25).max(1);
        if step < warm {
            return self.rate * (step + 1) as f64 / warm as f64;
        }
        let done = (step - warm) as f64 / self.steps.saturating_sub(warm).max(1) as f64;
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos());
        self.rate * (0.1 + 0.9 * cosine)
    }

    pub(super) fn check(&self) -> Result<()> {
        let w = &self.weights;
        let terms = [w.cross_entropy, w.margin, w.margin_size, w.penalty, w.soft];
        let rules = [
            ("texts", self.texts as f64, self.texts > 0, "1 or more"),
            (
                "anchors",
                self.anchors as f64,
                self.anchors > 0,
                "1 or more",
            ),
            (
                "rate",
                self.rate,
                self.rate.is_finite() && self.rate > 0.0,
                "a positive number",
            ),
            ("gamma", self.gamma, self.gamma > 0.0, "a positive number"),
            ("clip", self.clip, self.clip > 0.0, "a positive number"),
            (
                "betas.0",
                self.betas.0,
                (0.0..1.0).contains(&self.betas.0),
                "0 to below 1",
            ),
            (
                "betas.1",
                self.betas.1,
                (0.0..1.0).contains(&self.betas.1),
                "0 to below 1",
            ),
            (
                "head_share",
                self.head_share,
                (0.0..=1.0).contains(&self.head_share),
                "0 to 1",
            ),
            (
                "soft_temperature",
                w.soft_temperature,
                w.soft_temperature > 0.0,
                "a positive number",
            ),
            (
                "weights",
                terms.iter().copied().fold(0.0, f64::min),
                terms.iter().all(|t| t.is_finite() && *t >= 0.0),
                "numbers of 0 or more",
            ),
        ];
        match rules.into_iter().find(|(_, _, right, _)| !right) {
            None => Ok(()),
            Some((setting, value, _, allowed)) => Err(TrainError::Setting {
                setting,
                value: value.to_string(),
                allowed,
            }),
        }
    }
}
