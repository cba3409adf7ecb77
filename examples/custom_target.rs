//! A model of your own gets speculation by calling `attend` once per layer. No caches, no masks and
//! no batches in it.
//!
//! `cargo run --release --example custom_target`

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::gelu;
use specdec::core::{Attend, Block, Decoder, Forward, ModelSpec, Request, TargetModel};
use specdec::draft::NgramDrafter;
use specdec::ragged::SlotCache;
use std::sync::Arc;

const HEADS: usize = 4;

#[derive(Module, Debug)]
struct Layer {
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Weights {
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    head: Linear,
}

struct MyModel {
    spec: ModelSpec,
    weights: Weights,
}

impl MyModel {
    fn new(vocab: usize, hidden: usize, layers: usize, device: &Device) -> Self {
        device.seed(1);
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let layer = |_| Layer {
            qkv: linear(hidden, 3 * hidden),
            out: linear(hidden, hidden),
            up: linear(hidden, 4 * hidden),
            down: linear(4 * hidden, hidden),
        };
        let weights = Weights {
            tokens: EmbeddingConfig::new(vocab, hidden).init(device),
            positions: EmbeddingConfig::new(256, hidden).init(device),
            layers: (0..layers).map(layer).collect(),
            head: linear(hidden, vocab),
        };
        let spec = ModelSpec::new(vocab, layers, hidden, device)
            .with_heads(HEADS, HEADS, hidden / HEADS)
            .with_context(256);
        Self { spec, weights }
    }
}

impl TargetModel for MyModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(
        &self,
        block: &Block,
        attend: &mut dyn Attend,
        _: &[usize],
    ) -> specdec::core::Result<Forward> {
        let at = self
            .weights
            .positions
            .forward(block.position_tensor().unsqueeze());
        let mut x = self.embed(block.token_tensor()) + at.squeeze_dim(0) * 0.1;
        for (i, layer) in self.weights.layers.iter().enumerate() {
            let [t, hidden] = x.dims();
            let heads = |x: Tensor<2>| x.reshape([t, HEADS, hidden / HEADS]);
            let [q, k, v] = layer
                .qkv
                .forward(x.clone())
                .chunk(3, 1)
                .try_into()
                .expect("3 chunks");
            let seen = attend.attend(i, heads(q), heads(k), heads(v))?;
            x = x + layer.out.forward(seen.reshape([t, hidden]));
            x = x.clone() + layer.down.forward(gelu(layer.up.forward(x)));
        }
        Ok(Forward {
            hidden: x,
            taps: Vec::new(),
        })
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.weights.head.forward(hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.weights
            .tokens
            .forward(tokens.unsqueeze())
            .squeeze_dim(0)
    }
}

fn main() -> Result<()> {
    let model = Arc::new(MyModel::new(97, 64, 2, &Device::flex()));
    let cache = || SlotCache::new(model.spec());
    let mut plain = Decoder::builder(model.clone()).cache(cache()?).build()?;
    let mut fast = Decoder::builder(model.clone())
        .cache(cache()?)
        .drafter(NgramDrafter::default())
        .build()?;
    let request = || Request::new([3, 1, 4, 1, 5, 9, 2, 6]).max_new_tokens(120);
    let (a, b) = (plain.generate(request())?, fast.generate(request())?);
    println!(
        "plain: {} passes, speculative: {} passes",
        a.stats.rounds, b.stats.rounds
    );
    ensure!(a.tokens == b.tokens, "the outputs differ");
    println!("the same {} tokens", b.tokens.len());
    Ok(())
}
