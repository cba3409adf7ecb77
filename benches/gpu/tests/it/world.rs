//! Targets, caches and prompts on any device.

use burn::prelude::*;
use specdec_core::{Completion, Decoder, KvCache, ModelSpec, Request, SeqId, TargetModel, Token};
use specdec_models::{MemoryTensors, ModelConfig, Transformer};
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_testkit::HashLm;
use specdec_testkit::weights::{Family, tiny};
use std::sync::Arc;

pub(crate) type Target = Arc<dyn TargetModel>;

pub(crate) const VOCAB: usize = 20;

pub(crate) fn hash_lm(device: &Device) -> HashLm {
    HashLm::new(VOCAB, device)
}

/// Two layers, 288 tokens, weights from a seed.
pub(crate) fn transformer(family: Family, seed: u64, device: &Device) -> Target {
    let tiny = tiny(family, seed);
    let config = ModelConfig::from_json(&tiny.config).expect("a good config");
    let tensors: MemoryTensors = tiny.tensors.into_iter().collect();
    let model = Transformer::from_tensors(&config, &tensors, device);
    Arc::new(model.expect("good tensors"))
}

/// Small chunks, so that rows cross their borders and memory grows.
pub(crate) fn memory() -> SlotOptions {
    SlotOptions {
        chunk: 5,
        ..SlotOptions::default()
    }
}

pub(crate) fn slots(spec: &ModelSpec) -> SlotCache {
    SlotCache::with_options(spec, &memory()).expect("good options")
}

/// A prompt of this length, another one for each and for each vocabulary.
pub(crate) fn prompt(len: usize, vocab: usize) -> Vec<Token> {
    (0..len)
        .map(|i| ((i * i * 7 + i * 3 + len) % vocab) as Token)
        .collect()
}

/// Prompts of several lengths, one of which says the same again and again.
pub(crate) fn prompts(vocab: usize) -> Vec<Vec<Token>> {
    let mut all: Vec<_> = [3, 17, 1, 30].map(|len| prompt(len, vocab)).into();
    all.push(prompt(4, vocab).repeat(6));
    all
}

/// Decodes the requests to the end; results in order of their names.
pub(crate) fn finish(
    mut decoder: Decoder,
    requests: impl IntoIterator<Item = Request>,
) -> Vec<Completion> {
    for request in requests {
        decoder.submit(request).expect("a good request");
    }
    let mut done = decoder.run().expect("decoding");
    done.sort_by_key(|done| done.seq);
    done
}

/// The numbers of a tensor.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor
        .into_data()
        .try_into_vec_as::<f32>()
        .expect("numbers")
}

/// The same tensor on another device.
pub(crate) fn on<const D: usize>(tensor: &Tensor<D>, device: &Device) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), device)
}

/// Fails when two lists of numbers are further apart than `tolerance` times the largest of them.
pub(crate) fn close(want: &[f32], got: &[f32], tolerance: f32, what: &str) {
    assert_eq!(want.len(), got.len(), "{what}: how many");
    let size = want.iter().fold(1.0f32, |most, x| most.max(x.abs()));
    let worst = want
        .iter()
        .zip(got)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    let finite = got.iter().all(|x| x.is_finite());
    assert!(
        finite && worst <= tolerance * size,
        "{what}: {worst} apart, size {size}"
    );
}

/// What a cache holds of a sequence, all layers, keys then values.
pub(crate) fn held(cache: &dyn KvCache, seq: SeqId) -> Vec<Vec<f32>> {
    let segment = cache
        .export(seq, 0..cache.len(seq))
        .expect("committed entries");
    let parts = segment.layers.into_iter().flat_map(|(k, v)| [k, v]);
    parts.map(numbers).collect()
}
