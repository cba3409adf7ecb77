//! Rotary positions.

use burn::prelude::*;

/// Cosine and sine of the angles of positions, `[T, D/2]` each, computed in f64.
#[derive(Debug, Clone)]
pub(crate) struct Angles {
    pub(crate) cos: Tensor<2>,
    pub(crate) sin: Tensor<2>,
}

impl Angles {
    pub(crate) fn new(
        positions: impl IntoIterator<Item = usize>,
        head_dim: usize,
        theta: f64,
        device: &Device,
    ) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f64> = (0..half)
            .map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64))
            .collect();
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for frequency in &frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        let rows = cos.len() / half.max(1);
        let tensor = |values| Tensor::from_data(TensorData::new(values, [rows, half]), device);
        Self {
            cos: tensor(cos),
            sin: tensor(sin),
        }
    }
}
