//! Rotary positions: the angles of a block's tokens.

use crate::{ModelConfig, RopeScaling};
use burn::prelude::*;
use std::f64::consts::PI;

/// The rotary frequencies of a model, and the angles they give at any position.
///
/// Angles are computed in f64 for exactly the positions of a block and rounded once, to f32: there
/// is no table to outgrow, and a position's angles never depend on the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    inverse: Vec<f64>,
    attention_factor: f64,
}

impl Rope {
    /// The frequencies of `config` for a context of `context` tokens. The context matters for
    /// [`RopeScaling::DynamicNtk`] only.
    pub fn new(config: &ModelConfig, context: usize) -> Self {
        let dim = config.rope_dim;
        let theta = match config.rope_scaling {
            RopeScaling::DynamicNtk {
                factor,
                original_context,
            } if context > original_context && dim > 2 => {
                let stretch = factor * context as f64 / original_context as f64 - (factor - 1.0);
                config.rope_theta * stretch.powf(dim as f64 / (dim as f64 - 2.0))
            }
            _ => config.rope_theta,
        };
        let plain = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64));
        let inverse = plain
            .enumerate()
            .map(|(i, f)| stretched(i, f, theta, config))
            .collect();
        let attention_factor = match config.rope_scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            } => attention_factor,
            _ => 1.0,
        };
        Self {
            inverse,
            attention_factor,
        }
    }

    /// The angle between two neighbouring positions, for each pair of dimensions, in radians.
    pub fn frequencies(&self) -> &[f64] {
        &self.inverse
    }

    /// What cosine and sine are multiplied by (YaRN; 1 otherwise).
    pub fn attention_factor(&self) -> f64 {
        self.attention_factor
    }

    /// Cosine and sine of the positions' angles, `[T, pairs]` each.
    pub fn angles(&self, positions: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
        let shape = [positions.len(), self.inverse.len()];
        let mut cos = Vec::with_capacity(shape[0] * shape[1]);
        let mut sin = Vec::with_capacity(shape[0] * shape[1]);
        for &position in positions {
            for &frequency in &self.inverse {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push((c * self.attention_factor) as f32);
                sin.push((s * self.attention_factor) as f32);
            }
        }
        let tensor = |values| Tensor::from_data(TensorData::new(values, shape), device);
        (tensor(cos), tensor(sin))
    }
}

/// The frequency of pair `i`, `plain` before scaling.
fn stretched(i: usize, plain: f64, theta: f64, config: &ModelConfig) -> f64 {
    match &config.rope_scaling {
        RopeScaling::None | RopeScaling::DynamicNtk { .. } => plain,
        RopeScaling::Linear { factor } => plain / factor,
        RopeScaling::PerFrequency { divisors } => {
            plain / divisors.get(i).copied().map_or(1.0, f64::from)
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            // Full waves that fit the original context; below `low` divided, above `high` kept.
            let turns = *original_context as f64 * plain / (2.0 * PI);
            let keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
            let keep = keep.clamp(0.0, 1.0);
            (1.0 - keep) * plain / factor + keep * plain
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } => {
            let dim = config.rope_dim as f64;
            // The dimension that turns `beta` times over the original context.
            let bound = |beta: f64| {
                dim * (*original_context as f64 / (beta * 2.0 * PI)).ln() / (2.0 * theta.ln())
            };
            let (mut low, mut high) = (bound(*beta_fast), bound(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, high) = (low.max(0.0), high.min(dim - 1.0));
            let width = if high == low { 0.001 } else { high - low };
            let divide = ((i as f64 - low) / width).clamp(0.0, 1.0);
            divide * plain / factor + (1.0 - divide) * plain
        }
    }
}
