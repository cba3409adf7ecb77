//! The model as a target: packed rows, taps, errors, threads.

use crate::{
    dense_attend::{DenseAttend, logits_of, values},
    reference::{distance, logits, plain_frequencies},
    tiny::{self, Tiny, device},
};
use burn::prelude::*;
use specdec_core::{Attend, Block, Error, SeqId, TargetModel};
use specdec_models::{ForwardError, Transformer};

fn model(tiny: &Tiny) -> Transformer {
    Transformer::from_tensors(&tiny.config, &tiny.memory(), &device()).unwrap()
}

const FIRST: [u32; 9] = [5, 17, 80, 3, 3, 61, 9, 90, 44];
const SECOND: [u32; 6] = [71, 2, 2, 38, 11, 95];

#[test]
fn packed_rows_equal_each_row_alone_bit_for_bit() {
    for tiny in [tiny::llama(), tiny::qwen2(), tiny::qwen3()] {
        let model = model(&tiny);
        let alone = [logits_of(&model, &FIRST), logits_of(&model, &SECOND)];
        // Two passes of two rows that start and end at different places.
        let mut memory = DenseAttend::new(&model);
        let mut block = Block::new(&device());
        block.push(SeqId(1), 0, &FIRST[..7]);
        block.push(SeqId(2), 0, &SECOND[..1]);
        let (first, _) = memory.pass(&model, &block, &[]);
        let mut block = Block::new(&device());
        block.push(SeqId(2), 1, &SECOND[1..]);
        block.push(SeqId(1), 7, &FIRST[7..]);
        let (second, _) = memory.pass(&model, &block, &[]);
        let row_1 = [&first[..7], &second[5..]].concat();
        let row_2 = [&first[7..], &second[..5]].concat();
        assert_eq!(alone, [row_1, row_2]);
    }
}

#[test]
fn one_token_at_a_time_equals_one_block() {
    let model = model(&tiny::qwen3());
    let mut memory = DenseAttend::new(&model);
    let steps: Vec<Vec<f32>> = FIRST
        .iter()
        .enumerate()
        .flat_map(|(at, &token)| {
            let block = Block::single(SeqId(1), at, &[token], &device());
            memory.pass(&model, &block, &[]).0
        })
        .collect();
    assert_eq!(steps, logits_of(&model, &FIRST));
}

#[test]
fn taps_are_the_residual_stream_after_their_layers() {
    let tiny = tiny::qwen3();
    let model = model(&tiny);
    let block = Block::single(SeqId(1), 0, &FIRST, &device());
    let mut memory = DenseAttend::new(&model);
    let (plain, none) = memory.pass(&model, &block, &[]);
    assert!(none.is_empty());
    assert_eq!(memory.called, [0, 1]);
    // In the order asked for, also twice.
    let mut memory = DenseAttend::new(&model);
    let (tapped, taps) = memory.pass(&model, &block, &[1, 0, 1]);
    assert_eq!(plain, tapped);
    assert_eq!(taps[0], taps[2]);
    assert_ne!(taps[0], taps[1]);
    // The last tap, normalised, is the final hidden state: the output map gives the logits.
    let norm = &tiny.tensors["model.norm.weight"].1;
    let normed: Vec<f32> = taps[0]
        .chunks(32)
        .flat_map(|x| {
            let mean = x.iter().map(|v| f64::from(v * v)).sum::<f64>() / 32.0;
            let root = (mean + tiny.config.rms_eps).sqrt();
            x.iter()
                .zip(norm)
                .map(move |(&v, &w)| (f64::from(v) / root) as f32 * w)
        })
        .collect();
    let hidden = Tensor::from_data(TensorData::new(normed, [FIRST.len(), 32]), &device());
    let again = values(model.logits(hidden));
    let far = again
        .iter()
        .zip(plain.iter().flatten())
        .map(|(a, b)| (a - b).abs());
    assert!(far.fold(0.0, f32::max) < 1e-4);
    // The first tap is what a model of one layer computes.
    let mut short = tiny.clone();
    short.config.layers = 1;
    let short = Transformer::from_tensors(&short.config, &short.memory(), &device()).unwrap();
    let (_, taps_of_one) = DenseAttend::new(&short).pass(&short, &block, &[0]);
    assert_eq!(taps_of_one[0], taps[1]);
}

#[test]
fn embeddings_are_rows_of_the_table() {
    let tiny = tiny::llama();
    let model = model(&tiny);
    let ids = Tensor::<1, Int>::from_data([95, 0, 7], &device());
    let table = &tiny.tensors["model.embed_tokens.weight"].1;
    let expected = [95, 0, 7].map(|row| &table[row * 32..][..32]).concat();
    assert_eq!(values(model.embed(ids)), expected);
}

#[test]
fn the_spec_says_what_the_configuration_says() {
    let model = model(&tiny::qwen3());
    let spec = model.spec();
    assert_eq!((spec.vocab, spec.hidden, spec.layers), (96, 32, 2));
    assert_eq!((spec.heads, spec.kv_heads, spec.head_dim), (4, 2, 16));
    assert_eq!((spec.context, spec.scale), (2048, None));
    assert_eq!(model.clone().with_vocab(90).spec().vocab, 90);
    assert_eq!(model.clone().with_vocab(900).spec().vocab, 96);
    assert!(model.memory_bytes() >= 96 * 32 * 4);
}

#[test]
fn fingerprints_tell_weights_and_settings_apart() {
    let tiny = tiny::llama();
    let fingerprint = |tiny: &Tiny| model(tiny).spec().fingerprint;
    let own = fingerprint(&tiny);
    assert_eq!(own, fingerprint(&tiny.clone()));
    let mut others = vec![tiny.clone(), tiny.clone(), tiny.clone(), tiny.clone()];
    others[0].config.rope_theta = 20_000.0;
    others[1].config.rms_eps = 1e-6;
    others[2].config.windows = vec![Some(4), None];
    let down = others[3]
        .tensors
        .get_mut("model.layers.1.mlp.down_proj.weight");
    down.unwrap().1[77] += 1e-3;
    for other in &others {
        assert_ne!(own, fingerprint(other));
    }
}

#[test]
fn blocks_that_cannot_be_computed_are_errors() {
    let model = model(&tiny::llama());
    let mut memory = DenseAttend::new(&model);
    let mut error = |block: &Block, taps: &[usize]| match model.forward(block, &mut memory, taps) {
        Err(Error::Target(error)) => *error.downcast::<ForwardError>().unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(error(&Block::new(&device()), &[]), ForwardError::Empty);
    let block = Block::single(SeqId(1), 0, &[3, 96], &device());
    let outside = ForwardError::Token {
        index: 1,
        token: 96,
        vocab: 96,
    };
    assert_eq!(error(&block, &[]), outside);
    let block = Block::single(SeqId(1), 0, &[3], &device());
    assert_eq!(
        error(&block, &[0, 2]),
        ForwardError::Tap { tap: 2, layers: 2 }
    );
}

#[test]
fn an_error_of_the_cache_passes_through() {
    struct Refuses;
    impl Attend for Refuses {
        fn attend(
            &mut self,
            layer: usize,
            _: Tensor<3>,
            _: Tensor<3>,
            _: Tensor<3>,
        ) -> specdec_core::Result<Tensor<3>> {
            Err(specdec_core::CacheError::Layer { layer, layers: 0 }.into())
        }
    }
    let block = Block::single(SeqId(1), 0, &[3], &device());
    let got = model(&tiny::llama()).forward(&block, &mut Refuses, &[]);
    assert!(matches!(got, Err(Error::Cache(_))));
}

#[test]
fn one_model_serves_many_threads() {
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let tiny = tiny::qwen2();
    let model = shared(model(&tiny));
    let expected = logits_of(&model, &FIRST);
    let frequencies = plain_frequencies(&tiny);
    assert!(distance(&expected, &logits(&tiny, &frequencies, &FIRST)) < 1e-4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(logits_of(&model, &FIRST), expected);
                }
            });
        }
    });
}
