use crate::hard_attention::{HEAD_DIM, MAX_CONTEXT, keys, queries, values};
use crate::seeded::{digest, happens};
use burn::prelude::*;
use specdec_core::sampling::argmax;
use specdec_core::{Attend, Block, Forward, ModelSpec, Result, TargetModel, Token};

const LAYERS: usize = 7;
/// A prime below 2^11: states, and products of two of them, are exact in f32.
const PRIME: u32 = 2039;
/// What a layer sees that would look before the first position.
const NOTHING: u32 = 7;
/// Difference between the values of neighbouring key/value heads.
const HEAD_STEP: u32 = 3;

/// An exact language model through the real attention path.
///
/// Its state is an integer below 2039. Layer l at position p looks at position `p - 2^l` (at the
/// nearest one its window lets it see) and computes
/// `state = (31 state + 57 looked + l + 1) mod 2039`, so that seven layers fold the last 128 tokens
/// into one number; logits are a hash of it. Attention is so sharp that it returns one position's
/// state and nothing else: no rounding, whatever the kernel, block width or order of summation. A
/// stale entry, a wrong mask or position, or a forgotten rollback changes the tokens that follow.
///
/// The attention scale is 1 ([`ModelSpec::scale`]). [`Self::reference`] computes the same with plain
/// integers.
#[derive(Debug, Clone)]
pub struct HashLm {
    spec: ModelSpec,
    seed: u64,
    ties: Option<u32>,
    spread: f32,
    padded: usize,
    end: Option<(Token, u32)>,
    mistakes: Option<(f64, u64)>,
    tables: Tables,
}

/// Per token the factor and the summand of its hash.
#[derive(Debug, Clone)]
struct Tables {
    factor: Vec<u32>,
    summand: Vec<u32>,
}

impl HashLm {
    /// A model of `vocab` tokens (at least one, at most 2039), with one head, full attention and a
    /// context of 512 tokens.
    pub fn new(vocab: usize, device: &Device) -> Self {
        let vocab = vocab.clamp(1, PRIME as usize);
        let mut spec = ModelSpec::new(vocab, LAYERS, 4, device)
            .with_heads(1, 1, HEAD_DIM)
            .with_context(512);
        spec.scale = Some(1.0);
        let mut model = Self {
            spec,
            seed: 0,
            ties: None,
            spread: 32.0,
            padded: 0,
            end: None,
            mistakes: None,
            tables: Tables {
                factor: Vec::new(),
                summand: Vec::new(),
            },
        };
        model.seal();
        model
    }

    /// Other hashes: another language.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self.seal();
        self
    }

    /// Longest content; at most 1024, beyond which attention would no longer be exact.
    pub fn with_context(mut self, context: usize) -> Self {
        self.spec.context = context.min(MAX_CONTEXT);
        self
    }

    /// Grouped heads: `heads` query heads over `kv_heads` key/value heads (which is made to divide
    /// them). Every head carries another value, so a wrong grouping changes the tokens.
    pub fn with_heads(mut self, heads: usize, kv_heads: usize) -> Self {
        let kv_heads = kv_heads.max(1);
        let group = (heads / kv_heads).max(1);
        self.spec = self.spec.with_heads(group * kv_heads, kv_heads, HEAD_DIM);
        self.seal();
        self
    }

    /// A sliding window of this many tokens on every second layer, starting with the first, or on
    /// all of them.
    pub fn with_window(mut self, window: usize, all: bool) -> Self {
        self.spec.windows = (0..LAYERS)
            .map(|l| (all || l % 2 == 0).then_some(window.max(1)))
            .collect();
        self.seal();
        self
    }

    /// Logits take this many different values only, so that the best one is often shared.
    pub fn with_ties(mut self, levels: u32) -> Self {
        self.ties = Some(levels.max(1));
        self
    }

    /// Logits lie in `0..spread` (32 without this call); make it small for sampling.
    pub fn with_spread(mut self, spread: f32) -> Self {
        self.spread = spread;
        self
    }

    /// That many extra logit columns beyond the vocabulary, all larger than any real logit.
    pub fn with_padding(mut self, columns: usize) -> Self {
        self.padded = columns;
        self
    }

    /// `end` is the best token after about this share of all histories and the worst elsewhere.
    pub fn with_end(mut self, end: Token, hazard: f64) -> Self {
        self.end = Some((end, (hazard * f64::from(PRIME)).round() as u32));
        self
    }

    /// The same model, but wrong about the tokens at a share `rate` of all content indices, chosen
    /// by a hash: there it answers the next id. A draft model whose acceptance is known beforehand.
    pub fn with_mistakes(mut self, rate: f64, seed: u64) -> Self {
        self.mistakes = Some((rate, seed));
        self
    }

    /// Whether a model with these mistakes is wrong about the token at a content index.
    pub fn mistaken(rate: f64, seed: u64, index: usize) -> bool {
        happens(rate, [seed, index as u64])
    }

    fn seal(&mut self) {
        let number = |t: usize, which: u64| {
            let h = digest([self.seed, t as u64, which]);
            1 + (h % u64::from(PRIME - 1)) as u32
        };
        let vocab = self.spec.vocab;
        self.tables = Tables {
            factor: (0..vocab).map(|t| number(t, 1)).collect(),
            summand: (0..vocab).map(|t| number(t, 2)).collect(),
        };
        self.spec.fingerprint = digest([
            self.seed,
            vocab as u64,
            self.spec.heads as u64,
            self.spec.kv_heads as u64,
            self.spec.window(0).map_or(0, |w| w as u64),
            self.spec.window(1).map_or(0, |w| w as u64),
        ]);
    }

    /// The value head of each query head, and its weight.
    fn heads(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let group = self.spec.heads / self.spec.kv_heads;
        (0..self.spec.heads).map(move |h| ((h / group) as u32, h as u32 + 1))
    }

    /// State after each token, with plain integers.
    fn states(&self, tokens: &[Token]) -> Vec<u32> {
        let mut state: Vec<u32> = tokens.to_vec();
        for layer in 0..LAYERS {
            let back = 1 << layer;
            state = (0..tokens.len())
                .map(|p| {
                    let looked = if p < back {
                        NOTHING
                    } else {
                        let seen = self
                            .spec
                            .window(layer)
                            .map_or(0, |w| (p + 1).saturating_sub(w));
                        let s = state[seen.max(p - back)];
                        self.heads().map(|(g, w)| w * (s + HEAD_STEP * g)).sum()
                    };
                    (31 * state[p] + 57 * looked + layer as u32 + 1) % PRIME
                })
                .collect();
        }
        state
    }

    /// Logits `[V]` of the token that follows `tokens` (not empty), computed with plain integers.
    pub fn reference(&self, tokens: &[Token]) -> Vec<f32> {
        let state = self.states(tokens).last().copied().unwrap_or(0);
        let mut logits: Vec<f32> = (0..self.spec.vocab)
            .map(|t| {
                let h = (state * self.tables.factor[t] + self.tables.summand[t]) % PRIME;
                let h = (h * h + 17) % PRIME;
                self.ties.map_or(h, |n| h % n) as f32 * self.unit()
            })
            .collect();
        if let Some((end, threshold)) = self.end {
            let h = (state * 1151 + 613) % PRIME;
            let best = (h * h + 5) % PRIME < threshold;
            if let Some(l) = logits.get_mut(end as usize) {
                *l = if best { 2.0 * self.spread } else { -1.0 };
            }
        }
        if let Some((rate, seed)) = self.mistakes
            && Self::mistaken(rate, seed, tokens.len())
        {
            logits.rotate_right(1);
        }
        logits
    }

    /// The greedy continuation of a prompt by `n` tokens, cut at the end of the context, computed
    /// with plain integers; end tokens are ordinary tokens here.
    pub fn greedy(&self, prompt: &[Token], n: usize) -> Vec<Token> {
        let mut tokens = prompt.to_vec();
        for _ in 0..n.min(self.spec.context.saturating_sub(prompt.len())) {
            match argmax(&self.reference(&tokens)) {
                Some(token) => tokens.push(token),
                None => break,
            }
        }
        tokens.split_off(prompt.len())
    }

    /// One step of the hash.
    fn unit(&self) -> f32 {
        self.spread / self.ties.unwrap_or(2048) as f32
    }

    fn row(&self, values: impl Iterator<Item = f32>) -> Tensor<2> {
        let values: Vec<f32> = values.collect();
        let n = values.len();
        Tensor::from_data(TensorData::new(values, [1, n]), &self.spec.device)
    }
}

fn modulo<const D: usize>(x: Tensor<D>, by: u32) -> Tensor<D> {
    x.int().remainder_scalar(by as i32).float()
}

impl TargetModel for HashLm {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward> {
        let t = block.len();
        let device = &self.spec.device;
        let (heads, kv_heads) = (self.spec.heads, self.spec.kv_heads);
        let positions = block.position_tensor().float().reshape([t, 1]);
        let hidden = |state: &Tensor<2>| {
            let zeros = Tensor::zeros([t, 2], device);
            Tensor::cat(vec![state.clone(), positions.clone(), zeros], 1)
        };
        let weights = self.row(self.heads().map(|(_, w)| w as f32));
        let steps: Vec<f32> = (0..kv_heads)
            .map(|g| (g as u32 * HEAD_STEP) as f32)
            .collect();
        let steps = Tensor::<1>::from_data(TensorData::new(steps, [kv_heads]), device)
            .reshape([1, kv_heads, 1]);
        let first = Tensor::cat(
            vec![
                Tensor::ones([1, 1, 1], device),
                Tensor::zeros([1, 1, HEAD_DIM - 1], device),
            ],
            2,
        );
        // What each head adds to its values, `[1, Hkv, D]`.
        let offsets = steps * first;

        let mut state = self.embed(block.token_tensor()).slice([0..t, 0..1]);
        let mut tapped = Vec::new();
        for layer in 0..LAYERS {
            let back = (1 << layer) as f32;
            let target = (positions.clone() - back).clamp_min(0.0);
            let v = values(&state).repeat_dim(1, kv_heads) + offsets.clone();
            let out = attend.attend(
                layer,
                queries(&target, heads),
                keys(&positions, kv_heads),
                v,
            )?;
            let per_head = out
                .slice([0..t, 0..heads, 0..1])
                .reshape([t, heads])
                .round();
            let looked = (per_head * weights.clone())
                .sum_dim(1)
                .mask_fill(positions.clone().lower_elem(back), NOTHING as f32);
            state = modulo(state * 31.0 + looked * 57.0 + (layer + 1) as f32, PRIME);
            tapped.push(taps.contains(&layer).then(|| hidden(&state)));
        }
        Ok(Forward {
            hidden: hidden(&state),
            taps: taps
                .iter()
                .filter_map(|&i| tapped.get(i).cloned().flatten())
                .collect(),
        })
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let n = hidden.dims()[0];
        let vocab = self.spec.vocab;
        let state = hidden.clone().slice([0..n, 0..1]);
        let factor = self.row(self.tables.factor.iter().map(|&x| x as f32));
        let summand = self.row(self.tables.summand.iter().map(|&x| x as f32));
        let h = modulo(state.clone() * factor + summand, PRIME);
        let h = modulo(h.clone() * h + 17.0, PRIME);
        let h = self.ties.map_or(h.clone(), |levels| modulo(h, levels));
        let mut logits = h * self.unit();
        if let Some((end, threshold)) = self.end {
            let e = modulo(state * 1151.0 + 613.0, PRIME);
            let e = modulo(e.clone() * e + 5.0, PRIME);
            let best = e.clone().lower_elem(threshold as f32);
            let value = e
                .zeros_like()
                .add_scalar(-1.0)
                .mask_fill(best, 2.0 * self.spread);
            let column = self.row((0..vocab).map(|t| f32::from(u8::from(t == end as usize))));
            logits = logits * (column.clone() * -1.0 + 1.0) + value * column;
        }
        if let Some((rate, seed)) = self.mistakes {
            let wrong = self.row(
                (0..=self.spec.context + 1)
                    .map(|i| f32::from(u8::from(Self::mistaken(rate, seed, i)))),
            );
            let wrong = wrong.reshape([self.spec.context + 2]);
            let index = hidden.slice([0..n, 1..2]).reshape([n]).int() + 1;
            let wrong = wrong.select(0, index).greater_elem(0.5).reshape([n, 1]);
            let turned = Tensor::cat(
                vec![
                    logits.clone().slice([0..n, vocab - 1..vocab]),
                    logits.clone().slice([0..n, 0..vocab - 1]),
                ],
                1,
            );
            logits = logits.mask_where(wrong.expand([n, vocab]), turned);
        }
        if self.padded > 0 {
            let junk = Tensor::full([n, self.padded], 1e6, &self.spec.device);
            logits = Tensor::cat(vec![logits, junk], 1);
        }
        logits
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let n = tokens.dims()[0];
        let zeros = Tensor::zeros([n, 3], &self.spec.device);
        Tensor::cat(vec![tokens.float().reshape([n, 1]), zeros], 1)
    }
}
