//! A slow DFlash in loops over f64, one block at a time with its whole context.

use specdec_core::Token;
use specdec_lilicorr::{DraftConfig, DraftModel, LayerKind, Weights};

type Rows = Vec<Vec<f64>>;

/// A network's tensors, to be computed with row by row.
pub(crate) struct Reference {
    config: DraftConfig,
    weights: Weights,
}

impl Reference {
    pub(crate) fn new(model: &DraftModel) -> Self {
        Self {
            config: model.config().clone(),
            weights: model.weights().expect("readable"),
        }
    }

    fn vector(&self, name: &str) -> Vec<f64> {
        let (_, values) = self.weights.get(name).expect("a tensor of that name");
        values.iter().map(|&v| f64::from(v)).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.vector(name);
        weight
            .chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum())
            .collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.vector(name);
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + self.config.rms_eps).sqrt();
        x.iter().zip(&weight).map(|(x, w)| x / root * w).collect()
    }

    /// Each head normalised by `norm` and turned to its position.
    fn turned(&self, x: &[f64], norm: &str, position: usize) -> Vec<f64> {
        let dim = self.config.head_dim;
        x.chunks(dim)
            .flat_map(|head| {
                let head = self.norm(norm, head);
                let half = dim / 2;
                let angle = |i: usize| {
                    position as f64 * self.config.rope_theta.powf(-2.0 * i as f64 / dim as f64)
                };
                (0..dim)
                    .map(|i| {
                        let (s, c) = angle(i % half).sin_cos();
                        if i < half {
                            head[i] * c - head[i + half] * s
                        } else {
                            head[i] * c + head[i - half] * s
                        }
                    })
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Features of positions from their taps, `[T][taps * D]`.
    pub(crate) fn fuse(&self, taps: &[Vec<f32>]) -> Rows {
        taps.iter()
            .map(|row| {
                let row: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
                self.norm("hidden_norm.weight", &self.linear("fc.weight", &row))
            })
            .collect()
    }

    /// Final hidden states of a block whose anchor stands at position `features.len()`.
    pub(crate) fn block(&self, features: &Rows, embedded: &[Vec<f32>]) -> Rows {
        let c = &self.config;
        let anchor = features.len();
        let mut x: Rows = embedded
            .iter()
            .map(|row| row.iter().map(|&v| f64::from(v)).collect())
            .collect();
        for (l, kind) in c.layers.iter().enumerate() {
            let name = |part: &str| format!("layers.{l}.{part}.weight");
            let normed: Rows = x
                .iter()
                .map(|row| self.norm(&name("input_layernorm"), row))
                .collect();
            let all: Vec<(usize, &Vec<f64>)> = features
                .iter()
                .enumerate()
                .chain(normed.iter().enumerate().map(|(j, row)| (anchor + j, row)))
                .collect();
            let keys: Rows = all
                .iter()
                .map(|(p, row)| {
                    let k = self.linear(&name("self_attn.k_proj"), row);
                    self.turned(&k, &name("self_attn.k_norm"), *p)
                })
                .collect();
            let values: Rows = all
                .iter()
                .map(|(_, row)| self.linear(&name("self_attn.v_proj"), row))
                .collect();
            for (j, row) in normed.iter().enumerate() {
                let q = self.linear(&name("self_attn.q_proj"), row);
                let q = self.turned(&q, &name("self_attn.q_norm"), anchor + j);
                let sees = |at: usize| match kind {
                    LayerKind::Sliding(w) if at < anchor => anchor + j - at < *w,
                    _ => true,
                };
                let seen = self.attend(&q, &keys, &values, sees);
                let out = self.linear(&name("self_attn.o_proj"), &seen);
                x[j].iter_mut().zip(out).for_each(|(x, o)| *x += o);
            }
            for row in &mut x {
                let normed = self.norm(&name("post_attention_layernorm"), row);
                let gate = self.linear(&name("mlp.gate_proj"), &normed);
                let up = self.linear(&name("mlp.up_proj"), &normed);
                let wide: Vec<f64> = gate
                    .iter()
                    .zip(&up)
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                let out = self.linear(&name("mlp.down_proj"), &wide);
                row.iter_mut().zip(out).for_each(|(x, o)| *x += o);
            }
        }
        x.iter().map(|row| self.norm("norm.weight", row)).collect()
    }

    fn attend(
        &self,
        q: &[f64],
        keys: &Rows,
        values: &Rows,
        sees: impl Fn(usize) -> bool,
    ) -> Vec<f64> {
        let c = &self.config;
        let (dim, group) = (c.head_dim, c.heads / c.kv_heads);
        let part = |row: &[f64], head: usize| row[head * dim..][..dim].to_vec();
        (0..c.heads)
            .flat_map(|head| {
                let q = part(q, head);
                let weights: Vec<f64> = keys
                    .iter()
                    .enumerate()
                    .map(|(at, k)| {
                        let k = part(k, head / group);
                        let score: f64 = q.iter().zip(&k).map(|(a, b)| a * b).sum();
                        if sees(at) {
                            (score / (dim as f64).sqrt()).exp()
                        } else {
                            0.0
                        }
                    })
                    .collect();
                let sum: f64 = weights.iter().sum();
                let mut out = vec![0.0; dim];
                for (w, v) in weights.iter().zip(values) {
                    let v = part(v, head / group);
                    out.iter_mut().zip(v).for_each(|(o, v)| *o += w / sum * v);
                }
                out
            })
            .collect()
    }
}

/// Anchor and masks.
pub(crate) fn block_tokens(config: &DraftConfig, anchor: Token) -> Vec<Token> {
    let mut tokens = vec![config.mask_token; config.block_size];
    tokens[0] = anchor;
    tokens
}
