use crate::device;
use burn::prelude::*;
use specdec_core::{Block, KvCache, Phase, SeqId, TargetModel, Token};
use specdec_testkit::conformance::{self, TargetPromises};
use specdec_testkit::{HashLm, VecCache};

fn variants() -> Vec<(&'static str, HashLm)> {
    let d = device();
    let plain = HashLm::new(20, &d);
    vec![
        ("plain", plain.clone()),
        ("another language", plain.clone().seeded(5)),
        ("ties", plain.clone().with_ties(3)),
        ("grouped heads", plain.clone().with_heads(4, 2)),
        (
            "windows on some layers",
            plain.clone().with_window(16, false),
        ),
        ("windows on all layers", plain.clone().with_window(5, true)),
        ("end", plain.clone().with_end(7, 0.2)),
        ("mistakes", plain.clone().with_mistakes(0.5, 3)),
        ("small spread", plain.with_spread(2.0)),
        ("padded", HashLm::new(3, &d).with_padding(6)),
    ]
}

/// Logits `[T][V']` of a whole prompt through the tensor path.
fn logits(model: &HashLm, tokens: &[Token]) -> Vec<Vec<f32>> {
    let mut cache = VecCache::new(model.spec());
    let block = Block::single(SeqId(0), 0, tokens, &device());
    let mut attend = cache
        .begin(block.rows(), Phase::Prefill)
        .expect("a legal pass");
    let hidden = model
        .forward(&block, &mut *attend, &[])
        .expect("a legal block")
        .hidden;
    let logits: Tensor<2> = model.logits(hidden);
    let width = logits.dims()[1];
    let all = logits.into_data().try_into_vec_as::<f32>().expect("floats");
    all.chunks(width).map(<[f32]>::to_vec).collect()
}

#[test]
fn the_reference_is_the_tensor_path() {
    for (name, model) in variants() {
        let vocab = model.spec().vocab as u32;
        let tokens: Vec<Token> = (0..150).map(|i| (i * i * 31 + 5 * i + 3) % vocab).collect();
        let all = logits(&model, &tokens);
        for (i, row) in all.iter().enumerate() {
            let want = model.reference(&tokens[..=i]);
            assert_eq!(row[..want.len()], want, "{name}, position {i}");
        }
    }
}

/// Scores stay apart up to the longest context.
#[test]
fn it_is_exact_to_the_end_of_the_longest_context() {
    let model = HashLm::new(20, &device()).with_context(5000);
    assert_eq!(model.spec().context, 1024);
    let tokens: Vec<Token> = (0..1024).map(|i| (i * i * 7 + 3 * i) % 20).collect();
    let all = logits(&model, &tokens);
    for i in [700, 1000, 1023] {
        assert_eq!(all[i], model.reference(&tokens[..=i]), "position {i}");
    }
}

#[test]
fn it_keeps_the_targets_contract_bit_for_bit() {
    let mut promises = TargetPromises::default();
    promises.tolerance = 0.0;
    for (name, model) in variants() {
        let report = conformance::target_promising(&promises, &model, VecCache::new);
        assert!(report.is_ok(), "{name}: {report:?}");
    }
}

/// A change of one early token reaches nearly every later prediction: that is what makes a stale
/// entry visible.
#[test]
fn an_early_token_changes_what_follows() {
    let model = HashLm::new(20, &device());
    let tokens: Vec<Token> = (0..100).map(|i| (i * i + 3) % 20).collect();
    let mut other = tokens.clone();
    other[3] = (other[3] + 1) % 20;
    let changed = (4..100)
        .filter(|&i| model.reference(&tokens[..i]) != model.reference(&other[..i]))
        .count();
    assert!(changed >= 94, "{changed} of 96");
}

#[test]
fn ends_come_as_often_as_asked_and_mistakes_too() {
    let model = HashLm::new(20, &device()).with_end(7, 0.1);
    let ends = (0..1000)
        .filter(|i| {
            specdec_core::sampling::argmax(&model.reference(&[i % 20, i / 20 % 20, 3])) == Some(7)
        })
        .count();
    assert!((20..250).contains(&ends), "{ends} of 1000, 100 expected");
    let wrong = (0..1000).filter(|&i| HashLm::mistaken(0.3, 1, i)).count();
    assert!((240..360).contains(&wrong), "{wrong} of 1000, 300 expected");
}

/// A window one token too long or too short is another language.
#[test]
fn the_width_of_a_window_shows() {
    let tokens: Vec<Token> = (0..60).map(|i| (i * i * 3 + i) % 20).collect();
    let of = |w| {
        HashLm::new(20, &device())
            .with_window(w, true)
            .reference(&tokens)
    };
    assert_ne!(of(16), of(15));
    assert_ne!(of(16), of(17));
}
