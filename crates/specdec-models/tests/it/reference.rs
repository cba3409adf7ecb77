//! The whole model by its formulas in f64, one token after the other: nothing shared with the crate.

use crate::tiny::Tiny;

/// Logits of every token of a sequence. `frequencies` are the rotary frequencies.
pub(crate) fn logits(tiny: &Tiny, frequencies: &[f64], tokens: &[u32]) -> Vec<Vec<f64>> {
    let c = &tiny.config;
    let mut memory = vec![(Vec::<Vec<f64>>::new(), Vec::<Vec<f64>>::new()); c.layers];
    let mut all = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let table = tiny.get("model.embed_tokens.weight");
        let mut x: Vec<f64> = table[token as usize * c.hidden..][..c.hidden]
            .iter()
            .map(|&v| v.into())
            .collect();
        for (layer, (keys, vals)) in memory.iter_mut().enumerate() {
            let name = |stem: &str| format!("model.layers.{layer}.{stem}");
            let h = norm(&x, tiny.get(&name("input_layernorm.weight")), c.rms_eps);
            let mut q = tiny.linear(&name("self_attn.q_proj"), &h);
            let mut k = tiny.linear(&name("self_attn.k_proj"), &h);
            if c.qk_norm {
                for (heads, stem) in [(&mut q, "q_norm"), (&mut k, "k_norm")] {
                    let weight = tiny.get(&name(&format!("self_attn.{stem}.weight")));
                    for head in heads.chunks_mut(c.head_dim) {
                        let normed = norm(head, weight, c.rms_eps);
                        head.copy_from_slice(&normed);
                    }
                }
            }
            for heads in [&mut q, &mut k] {
                for head in heads.chunks_mut(c.head_dim) {
                    rotate(head, position as f64, frequencies);
                }
            }
            keys.push(k);
            vals.push(tiny.linear(&name("self_attn.v_proj"), &h));
            let window = c.windows.get(layer).copied().flatten();
            let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
            let mut seen = vec![0.0; c.heads * c.head_dim];
            for head in 0..c.heads {
                let from = head / (c.heads / c.kv_heads) * c.head_dim;
                let query = &q[head * c.head_dim..][..c.head_dim];
                let score = |key: &Vec<f64>| {
                    let sum: f64 = query.iter().zip(&key[from..]).map(|(a, b)| a * b).sum();
                    (sum / (c.head_dim as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = keys[first..].iter().map(score).collect();
                let total: f64 = weights.iter().sum();
                for (weight, value) in weights.iter().zip(&vals[first..]) {
                    for d in 0..c.head_dim {
                        seen[head * c.head_dim + d] += weight / total * value[from + d];
                    }
                }
            }
            add(&mut x, &tiny.linear(&name("self_attn.o_proj"), &seen));
            let h = norm(
                &x,
                tiny.get(&name("post_attention_layernorm.weight")),
                c.rms_eps,
            );
            let gate = tiny.linear(&name("mlp.gate_proj"), &h);
            let up = tiny.linear(&name("mlp.up_proj"), &h);
            let wide: Vec<f64> = gate
                .iter()
                .zip(&up)
                .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                .collect();
            add(&mut x, &tiny.linear(&name("mlp.down_proj"), &wide));
        }
        let last = norm(&x, tiny.get("model.norm.weight"), c.rms_eps);
        let output = if c.tied {
            "model.embed_tokens"
        } else {
            "lm_head"
        };
        all.push(tiny.linear(output, &last));
    }
    all
}

/// theta^(-2i/d).
pub(crate) fn plain_frequencies(tiny: &Tiny) -> Vec<f64> {
    let d = tiny.config.rope_dim;
    (0..d / 2)
        .map(|i| 1.0 / tiny.config.rope_theta.powf(2.0 * i as f64 / d as f64))
        .collect()
}

impl Tiny {
    fn get(&self, name: &str) -> &[f32] {
        &self.tensors[name].1
    }

    fn linear(&self, stem: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{stem}.weight"));
        let bias = self.tensors.get(&format!("{stem}.bias"));
        weight
            .chunks(x.len())
            .enumerate()
            .map(|(row, weights)| {
                let sum: f64 = weights.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
                sum + bias.map_or(0.0, |(_, b)| f64::from(b[row]))
            })
            .collect()
    }
}

fn norm(x: &[f64], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let root = (mean + eps).sqrt();
    x.iter()
        .zip(weight)
        .map(|(v, &w)| v / root * f64::from(w))
        .collect()
}

fn rotate(head: &mut [f64], position: f64, frequencies: &[f64]) {
    let half = frequencies.len();
    for (i, f) in frequencies.iter().enumerate() {
        let (sin, cos) = (position * f).sin_cos();
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

fn add(x: &mut [f64], y: &[f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// The greatest difference between some rows of logits.
pub(crate) fn distance(got: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let rows = got.iter().zip(expected);
    rows.flat_map(|(got, expected)| {
        assert_eq!(got.len(), expected.len());
        got.iter()
            .zip(expected)
            .map(|(&g, e)| (f64::from(g) - e).abs())
    })
    // A NaN must not pass for close.
    .fold(0.0, |most, d| if d <= most { most } else { d })
}
