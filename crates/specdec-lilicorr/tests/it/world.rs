//! Small targets, small drafters and decoders over them.

use burn::prelude::*;
use specdec_core::{
    Block, Decoder, DraftContext, DraftRow, Drafter, FixedLength, KvCache, Observation,
    ObservedRow, Phase, Request, RowDraft, SeqId, TargetModel, Token, sampling::Sampler,
};
use specdec_lilicorr::{DraftConfig, DraftModel, HeadConfig, LayerKind};
use specdec_models::{MemoryTensors, ModelConfig, Transformer};
use specdec_testkit::VecCache;
use specdec_testkit::weights::{Family, tiny};
use std::sync::Arc;

pub(crate) type Target = Arc<dyn TargetModel>;

pub(crate) fn device() -> Device {
    Device::flex()
}

/// A transformer of two layers, hidden width 64 and 288 tokens, with random weights.
pub(crate) fn target(seed: u64) -> Transformer {
    let model = tiny(Family::Qwen3, seed);
    let config = ModelConfig::from_json(&model.config).expect("a good configuration");
    let tensors: MemoryTensors = model.tensors.into_iter().collect();
    Transformer::from_tensors(&config, &tensors, &device()).expect("the tensors fit")
}

/// A small drafter for a target, taps of all its layers.
pub(crate) fn config(target: &dyn TargetModel) -> DraftConfig {
    let spec = target.spec();
    DraftConfig {
        hidden: spec.hidden,
        layers: vec![LayerKind::Full, LayerKind::Full],
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        intermediate: 40,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        vocab: spec.vocab,
        target_layers: spec.layers,
        taps: vec![0, spec.layers - 1],
        mask_token: spec.vocab as Token - 1,
        block_size: 6,
        draft_vocab: None,
        head: Some(HeadConfig {
            candidates: 4,
            layers: 1,
            heads: 2,
            ..HeadConfig::new(16, 12)
        }),
    }
}

pub(crate) fn model(config: &DraftConfig, seed: u64) -> DraftModel {
    DraftModel::with_deviation(config, seed, 0.2, &device()).expect("a good configuration")
}

pub(crate) fn prompt(len: usize, vocab: usize, salt: u64) -> Vec<Token> {
    (0..len as u64)
        .map(|i| ((i * i * 31 + i * 17 + salt * 101 + 5) % (vocab as u64 - 1)) as Token)
        .collect()
}

/// A decoder with drafts of `k` tokens and prompts prefilled in chunks.
pub(crate) fn decoder(
    target: &Target,
    drafter: impl Drafter + 'static,
    k: usize,
    chunk: usize,
) -> Decoder {
    Decoder::builder(Arc::clone(target))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter)
        .controller(FixedLength(k))
        .prefill_chunk(chunk)
        .build()
        .expect("the parts fit")
}

pub(crate) fn request(prompt: &[Token], new: usize) -> Request {
    Request::new(prompt.to_vec()).max_new_tokens(new)
}

/// A target with its cache, run by hand, and the drafter told of what is committed.
pub(crate) struct Stepper {
    pub(crate) target: Target,
    cache: VecCache,
}

impl Stepper {
    pub(crate) fn new(target: &Target) -> Self {
        Self {
            target: Arc::clone(target),
            cache: VecCache::new(target.spec()),
        }
    }

    pub(crate) fn cached(&self, seq: SeqId) -> usize {
        self.cache.len(seq)
    }

    /// One pass over rows of (sequence, content after the pass, rejected drafts): commits the
    /// content up to its last token, which becomes the anchor, and tells the drafter.
    pub(crate) fn pass(
        &mut self,
        drafter: &mut dyn Drafter,
        rows: &[(SeqId, &[Token], &[Token])],
        phase: Phase,
    ) {
        let mut block = Block::new(&self.target.spec().device);
        let mut starts = Vec::new();
        for (seq, content, rejected) in rows {
            let start = self.cache.len(*seq);
            let mut tokens = content[start..content.len() - 1].to_vec();
            tokens.extend_from_slice(rejected);
            block.push(*seq, start, &tokens);
            starts.push(start);
        }
        let mut attend = self.cache.begin(block.rows(), phase).expect("good rows");
        let taps = drafter.taps().to_vec();
        let forward = self
            .target
            .forward(&block, &mut *attend, &taps)
            .expect("a pass");
        drop(attend);
        let keep: Vec<usize> = rows
            .iter()
            .zip(&starts)
            .map(|((_, content, _), start)| content.len() - 1 - start)
            .collect();
        self.cache.commit(&keep).expect("staged");
        let observed: Vec<_> = rows
            .iter()
            .zip(&keep)
            .zip(block.ranges().zip(&starts))
            .map(|(((seq, content, _), keep), (range, start))| {
                ObservedRow::new(*seq, content, *start, range.start..range.start + keep)
            })
            .collect();
        drafter
            .observe(&Observation::new(phase, &observed, &forward.taps))
            .expect("it learns");
    }

    pub(crate) fn draft(
        &mut self,
        drafter: &mut dyn Drafter,
        rows: &[(SeqId, &[Token], usize)],
        sampler: &Sampler,
    ) -> Vec<RowDraft> {
        let rows: Vec<_> = rows
            .iter()
            .map(|(seq, content, k)| DraftRow::new(*seq, content, 1, *k, sampler))
            .collect();
        let cx = DraftContext {
            rows: &rows,
            target: &*self.target,
            cache: &mut self.cache,
        };
        drafter.draft(cx).expect("it drafts").rows
    }
}

pub(crate) fn close(a: &[f32], b: &[f32], tolerance: f32, what: &str) -> f32 {
    assert_eq!(a.len(), b.len(), "{what}: lengths");
    let worst = a
        .iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, f32::max);
    let finite = a.iter().chain(b).all(|x| x.is_finite());
    assert!(
        finite && worst <= tolerance,
        "{what}: {worst} apart\n{a:?}\n{b:?}"
    );
    worst
}
