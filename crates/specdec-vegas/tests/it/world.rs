//! Models, rules that are written down, passes by hand.

use burn::prelude::*;
use specdec_core::{
    Completion, Decoder, DraftContext, DraftRow, Drafter, Event, FirstCome, FixedLength, KvCache,
    ModelSpec, Phase, Request, RowSpan, SeqId, TargetModel, sampling::Sampler,
};
use specdec_models::{MemoryTensors, ModelConfig, Transformer};
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_testkit::HashLm;
use specdec_testkit::weights::{Family, tiny};
use specdec_vegas::{Candidates, CheckedConfig, Score, Select, Vegas, VegasConfig, VegasDrafter};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub(crate) type Target = Arc<dyn TargetModel>;
pub(crate) type Log<T> = Arc<Mutex<Vec<T>>>;

pub(crate) fn device() -> Device {
    Device::flex()
}

/// Two layers with soft attention, 288 tokens.
pub(crate) fn transformer() -> Target {
    let tiny = tiny(Family::Llama, 5);
    let config = ModelConfig::from_json(&tiny.config).expect("a good config");
    let tensors: MemoryTensors = tiny.tensors.into_iter().collect();
    let model = Transformer::from_tensors(&config, &tensors, &device());
    Arc::new(model.expect("good tensors"))
}

pub(crate) fn prompt(len: usize, vocab: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * i * 7 + i * 3 + 1) % vocab)
        .collect()
}

/// Small chunks, so that rows cross their borders.
pub(crate) fn slots(spec: &ModelSpec) -> SlotCache {
    let options = SlotOptions {
        chunk: 5,
        ..SlotOptions::default()
    };
    SlotCache::with_options(spec, &options).expect("good options")
}

/// Nothing is kept but what weighs most.
pub(crate) fn bare(ratio: f64, min: usize) -> CheckedConfig {
    let config = VegasConfig {
        ratio,
        min,
        ..VegasConfig::paper()
    };
    config.check().expect("a good config")
}

/// What a rule was asked, and what it chose.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) seq: SeqId,
    pub(crate) count: usize,
    pub(crate) keys: usize,
    pub(crate) budget: usize,
    pub(crate) weights: Vec<f32>,
    pub(crate) score: Score,
    pub(crate) head: Option<usize>,
    pub(crate) chosen: Option<Vec<u32>>,
}

/// A rule that writes down what it is asked.
#[derive(Debug, Default)]
pub(crate) struct Recording<S> {
    inner: S,
    log: Log<Asked>,
}

impl<S> Recording<S> {
    pub(crate) fn new(inner: S) -> (Self, Log<Asked>) {
        let log = Log::default();
        let own = Arc::clone(&log);
        (Self { inner, log: own }, log)
    }
}

impl<S: Select> Select for Recording<S> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn needs_weights(&self) -> bool {
        self.inner.needs_weights()
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        let chosen = self.inner.select(from);
        self.log.lock().expect("no panic").push(Asked {
            seq: from.seq,
            count: from.count,
            keys: from.keys,
            budget: from.budget,
            weights: from.weights.to_vec(),
            score: from.score,
            head: from.head,
            chosen: chosen.clone(),
        });
        chosen
    }
}

/// A rule by layer.
#[derive(Debug)]
pub(crate) struct ByLayer(pub(crate) fn(usize) -> Option<Vec<u32>>);

impl Select for ByLayer {
    fn name(&self) -> &'static str {
        "by layer"
    }

    fn needs_weights(&self) -> bool {
        false
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        (self.0)(from.layer)
    }
}

pub(crate) fn span(seq: u64, start: usize, len: usize) -> RowSpan {
    let seq = SeqId(seq);
    RowSpan { seq, start, len }
}

/// A tensor `[T, heads, 4]` by token and head.
pub(crate) fn tensor(
    tokens: usize,
    heads: usize,
    of: impl Fn(usize, usize) -> [f32; 4],
) -> Tensor<3> {
    let values = (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h)));
    let values: Vec<f32> = values.flat_map(|(t, h)| of(t, h)).collect();
    Tensor::from_data(TensorData::new(values, [tokens, heads, 4]), &device())
}

/// A model's shape for passes by hand: head dimension 4, scale 1.
pub(crate) fn by_hand(layers: usize, heads: usize, kv_heads: usize) -> ModelSpec {
    let mut spec = ModelSpec::new(16, layers, 4, &device()).with_heads(heads, kv_heads, 4);
    spec.scale = Some(1.0);
    spec
}

/// One pass; `of` gives queries, keys and values of a layer. The attended values, per layer.
pub(crate) fn pass(
    cache: &mut dyn KvCache,
    rows: &[RowSpan],
    phase: Phase,
    layers: usize,
    of: impl Fn(usize) -> [Tensor<3>; 3],
) -> Vec<Vec<f32>> {
    let mut attend = cache.begin(rows, phase).expect("a legal pass");
    let layers = (0..layers).map(|layer| {
        let [q, k, v] = of(layer);
        let out = attend.attend(layer, q, k, v).expect("attention");
        out.into_data().try_into_vec_as::<f32>().expect("numbers")
    });
    layers.collect()
}

/// A pass whose numbers do not matter: all keys alike, values by position.
pub(crate) fn flat(
    cache: &mut dyn KvCache,
    rows: &[RowSpan],
    phase: Phase,
    spec: &ModelSpec,
) -> Vec<Vec<f32>> {
    let positions: Vec<usize> = rows
        .iter()
        .flat_map(|row| row.start..row.start + row.len)
        .collect();
    let tokens = positions.len();
    pass(cache, rows, phase, spec.layers, |_| {
        [
            tensor(tokens, spec.heads, |_, _| [0.0; 4]),
            tensor(tokens, spec.kv_heads, |_, _| [0.0; 4]),
            tensor(tokens, spec.kv_heads, |t, g| {
                [positions[t] as f32, g as f32, 1.0, 0.0]
            }),
        ]
    })
}

/// Commits a flat pass over a whole sequence.
pub(crate) fn fill(cache: &mut dyn KvCache, seq: u64, len: usize, spec: &ModelSpec) {
    let start = cache.len(SeqId(seq));
    flat(cache, &[span(seq, start, len)], Phase::Prefill, spec);
    cache.commit(&[len]).expect("a commit");
}

/// A decoder's events until it is idle, with something done after every step.
pub(crate) fn run(
    decoder: &mut Decoder,
    mut after: impl FnMut(&Decoder),
) -> BTreeMap<SeqId, Completion> {
    let mut done = BTreeMap::new();
    while !decoder.is_idle() {
        for event in decoder.step().expect("decoding") {
            match event {
                Event::Finished(completion) => {
                    done.insert(completion.seq, completion);
                }
                Event::Failed { error, .. } => panic!("a row failed: {error}"),
                _ => {}
            }
        }
        after(decoder);
    }
    done
}

/// The tokens of plain decoding.
pub(crate) fn plain(target: &Target, request: Request) -> Completion {
    let cache = slots(target.spec());
    specdec_testkit::oracle::plain_run(target, cache, [request])
        .expect("plain decoding")
        .remove(0)
}

/// A Vegas over slots.
pub(crate) fn vegas(target: &Target, config: CheckedConfig) -> Vegas<SlotCache> {
    Vegas::new(slots(target.spec()), target.spec(), config)
}

/// A model with hard attention.
pub(crate) fn hash(vocab: usize, context: usize) -> Target {
    Arc::new(HashLm::new(vocab, &device()).with_context(context))
}

/// One draft of `k` tokens for each content, greedy.
pub(crate) fn drafts(
    target: &Target,
    cache: &mut dyn KvCache,
    tokens: &[Vec<u32>],
    k: usize,
) -> Vec<Vec<u32>> {
    let sampler = Sampler::greedy();
    let rows: Vec<DraftRow<'_>> = (0..)
        .zip(tokens)
        .map(|(seq, tokens)| DraftRow::new(SeqId(seq), tokens, 1, k, &sampler))
        .collect();
    let cx = DraftContext {
        rows: &rows,
        target: &**target,
        cache,
    };
    let draft = VegasDrafter::new().draft(cx).expect("a draft");
    draft.rows.into_iter().map(|row| row.tokens).collect()
}

/// Prefills a sequence.
pub(crate) fn prefilled(target: &Target, cache: &mut dyn KvCache, seq: u64, tokens: &[u32]) {
    let spec = target.spec();
    let block = specdec_core::Block::single(SeqId(seq), 0, tokens, &spec.device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("a pass");
    target
        .forward(&block, &mut *attend, &[])
        .expect("a forward");
    drop(attend);
    cache.commit(&[tokens.len()]).expect("a commit");
}

/// A decoder with drafts of `k` tokens.
pub(crate) fn decoder(target: &Target, cache: impl KvCache + 'static, k: usize) -> Decoder {
    Decoder::builder(Arc::clone(target))
        .cache(cache)
        .drafter(VegasDrafter::new())
        .controller(FixedLength(k))
        .scheduler(FirstCome { max_rows: 8 })
        .prefill_chunk(64)
        .build()
        .expect("the parts fit")
}
