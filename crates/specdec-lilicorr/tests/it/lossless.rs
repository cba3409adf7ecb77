//! The output is the target's, whatever drafter and head compute.

use crate::world::{Target, config, decoder, model, prompt, request, target};
use burn::prelude::*;
use specdec_core::sampling::probabilities;
use specdec_core::{
    Acceptance, BuildError, Coupled, Decoder, Error, FirstCome, FixedLength, Rejection, Request,
    SamplingParams, TargetModel, Token,
};
use specdec_lilicorr::{
    Calibration, DFlashDrafter, DraftConfig, EarlyStop, HeadConfig, LayerKind, LiLiCorrDrafter,
    PathRule,
};
use specdec_testkit::oracle::{plain_run, unlikely};
use specdec_testkit::scripted::Lengths;
use specdec_testkit::{HashLm, VecCache, conformance};
use std::sync::Arc;

fn hash_lm() -> Arc<dyn TargetModel> {
    Arc::new(HashLm::new(20, &Device::flex()))
}

/// A drafter for [`HashLm`], whose hidden states have four numbers.
fn hash_config(candidates: usize) -> DraftConfig {
    DraftConfig {
        hidden: 4,
        layers: vec![LayerKind::Full],
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        intermediate: 8,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        vocab: 20,
        target_layers: 7,
        taps: vec![1, 4],
        mask_token: 19,
        block_size: 5,
        draft_vocab: None,
        head: Some(HeadConfig {
            candidates,
            layers: 1,
            heads: 2,
            ..HeadConfig::new(8, 4)
        }),
    }
}

#[test]
fn the_lilicorr_drafter_keeps_every_promise() {
    let target = hash_lm();
    let model = model(&hash_config(6), 3);
    let report = conformance::drafter(&target, || {
        LiLiCorrDrafter::new(model.clone(), &*target).expect("it fits")
    });
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn the_dflash_drafter_keeps_every_promise() {
    let target = hash_lm();
    let model = model(&hash_config(6), 4);
    let report = conformance::drafter(&target, || {
        DFlashDrafter::with_candidates(model.clone(), &*target, 20).expect("it fits")
    });
    report.unwrap_or_else(|violation| panic!("{violation}"));
}

fn requests(sampling: &SamplingParams) -> Vec<Request> {
    [(1, 9), (5, 14), (23, 6), (12, 17), (3, 1)]
        .iter()
        .enumerate()
        .map(|(i, &(len, new))| {
            let mut sampling = sampling.clone();
            sampling.seed = Some(i as u64);
            request(&prompt(len, 288, i as u64), new).sampling(sampling)
        })
        .collect()
}

fn run(
    target: &Target,
    drafter: LiLiCorrDrafter,
    acceptance: Arc<dyn Acceptance>,
    requests: Vec<Request>,
) -> Vec<Vec<Token>> {
    let mut decoder = Decoder::builder(Arc::clone(target))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter)
        .controller(Lengths::new(|seq: specdec_core::SeqId, round| {
            (seq.0 as usize + 3 * round) % 7
        }))
        .acceptance_shared(acceptance)
        .prefill_chunk(5)
        .build()
        .expect("the parts fit");
    for request in requests {
        decoder.submit(request).expect("a good request");
    }
    let mut done = decoder.run().expect("decoding");
    done.sort_by_key(|d| d.seq);
    done.into_iter().map(|d| d.tokens).collect()
}

/// T6, T28, T29, T31: ragged batches, greedy and sampled rows together, penalties, bans, and limits of
/// every size: tokens equal plain ones.
#[test]
fn t28_t29_t31_speculative_equals_plain_on_a_transformer() {
    let target: Target = Arc::new(target(5));
    let network = model(&config(&*target), 7);
    let mut sampled = SamplingParams::sampled(0.8);
    sampled.top_p = Some(0.9);
    let mut ruled = SamplingParams::sampled(1.0);
    ruled.repetition_penalty = 1.3;
    ruled.banned = vec![7, 8, 9];
    ruled.top_k = Some(20);
    for sampling in [SamplingParams::greedy(), sampled, ruled] {
        let all = || {
            let mut all = requests(&sampling);
            all.extend(requests(&SamplingParams::greedy()));
            all
        };
        let plain = plain_run(&target, VecCache::new(target.spec()), all()).expect("plain");
        let drafter = LiLiCorrDrafter::new(network.clone(), &*target).expect("it fits");
        let got = run(&target, drafter, Arc::new(Coupled), all());
        for (want, got) in plain.iter().zip(&got) {
            assert_eq!(&want.tokens, got, "{sampling:?}");
        }
        // Under rejection only greedy rows are the same tokens.
        let drafter = LiLiCorrDrafter::new(network.clone(), &*target).expect("it fits");
        let got = run(&target, drafter, Arc::new(Rejection), all());
        for (want, got) in plain.iter().zip(&got).skip(5) {
            assert_eq!(&want.tokens, got);
        }
    }
}

/// T29: every limit up to two blocks, exactly.
#[test]
fn t29_every_limit_is_exact() {
    let target: Target = Arc::new(target(5));
    let network = model(&config(&*target), 7);
    let text = prompt(6, 288, 3);
    let long =
        plain_run(&target, VecCache::new(target.spec()), [request(&text, 14)]).expect("plain");
    for new in 1..14 {
        let drafter = LiLiCorrDrafter::new(network.clone(), &*target).expect("it fits");
        let done = decoder(&target, drafter, 5, 4)
            .generate(request(&text, new))
            .expect("good");
        assert_eq!(done.tokens, long[0].tokens[..new]);
    }
}

/// T30: the mask token is an ordinary token in a prompt.
#[test]
fn t30_the_mask_token_in_a_prompt() {
    let target: Target = Arc::new(target(5));
    let network = model(&config(&*target), 7);
    let text = [287, 3, 287, 287];
    let want =
        plain_run(&target, VecCache::new(target.spec()), [request(&text, 12)]).expect("plain");
    let drafter = LiLiCorrDrafter::new(network, &*target).expect("it fits");
    let done = decoder(&target, drafter, 5, 4)
        .generate(request(&text, 12))
        .expect("good");
    assert_eq!(done.tokens, want[0].tokens);
}

/// A drafter of another target is refused when the decoder is built, with the reason.
#[test]
fn a_drafter_of_another_target_is_refused() {
    let own: Target = Arc::new(target(5));
    let network = model(&config(&*own), 7);
    let other = hash_lm();
    let error = LiLiCorrDrafter::new(network.clone(), &*other).expect_err("another width");
    assert!(error.to_string().contains("hidden width"), "{error}");
    let drafter = LiLiCorrDrafter::new(network, &*own).expect("it fits");
    let built = Decoder::builder(Arc::clone(&other))
        .cache(VecCache::new(other.spec()))
        .drafter(drafter)
        .build();
    match built.map(|_| ()).expect_err("another width") {
        Error::Build(BuildError::Tap { .. } | BuildError::Shape { .. }) => {}
        error => panic!("{error}"),
    }
}

/// What the drafter counts is what the decoder accepted.
#[test]
fn t48_prefix_statistics_agree_with_the_decoder() {
    let target = hash_lm();
    let network = model(&hash_config(6), 7);
    let drafter = LiLiCorrDrafter::new(network, &*target).expect("it fits");
    let statistics = drafter.statistics();
    let mut decoder = decoder(&target, drafter, 5, 4);
    let done = decoder
        .generate(request(&prompt(6, 20, 3), 60))
        .expect("good");
    let counts = statistics.counts();
    assert_eq!(counts.blocks, done.stats.speculative_rounds);
    assert_eq!(counts.drafted, done.stats.drafted);
    assert_eq!(counts.selected, done.stats.accepted);
    assert!(counts.oracle >= counts.selected && counts.oracle >= counts.top1);
    assert!(
        counts.oracle > 0,
        "six of 20 candidates are right now and then"
    );
    assert!(counts.oracle_prefix() >= counts.selected_prefix());
}

/// How often each pair of first tokens came up under rejection, and its chance by the target.
fn pairs(drafter: LiLiCorrDrafter, target: &HashLm, prompt: &[Token]) -> (Vec<u64>, Vec<f64>) {
    const SEEDS: u64 = 3000;
    let vocab = target.spec().vocab;
    let mut decoder = Decoder::builder(Arc::new(target.clone()))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter)
        .controller(FixedLength(4))
        .scheduler(FirstCome { max_rows: 500 })
        .acceptance(Rejection)
        .prefill_chunk(2000)
        .build()
        .expect("the parts fit");
    for seed in 0..SEEDS {
        let mut sampling = SamplingParams::sampled(1.0);
        sampling.seed = Some(seed);
        let request = request(prompt, 4).sampling(sampling);
        decoder.submit(request).expect("a good request");
    }
    let mut counts = vec![0; vocab * vocab];
    for done in decoder.run().expect("decoding") {
        counts[done.tokens[0] as usize * vocab + done.tokens[1] as usize] += 1;
    }
    let law = |text: &[Token]| probabilities(&target.reference(text));
    let first = law(prompt);
    let mut p = Vec::new();
    for (a, pa) in first.iter().enumerate() {
        let text = [prompt, &[a as Token]].concat();
        p.extend(law(&text).iter().map(|pb| pa * pb));
    }
    (counts, p)
}

/// T27: drawn, planned and shortened drafts of several tokens leave the target's law of the first two
/// tokens as it is.
#[test]
fn t27_pairs_of_tokens_have_the_targets_law_under_rejection() {
    let target = HashLm::new(6, &Device::flex()).with_spread(3.0);
    let config = DraftConfig {
        vocab: 6,
        mask_token: 5,
        ..hash_config(3)
    };
    let network = model(&config, 11);
    let drafter = || LiLiCorrDrafter::new(network.clone(), &target).expect("it fits");
    let stop = EarlyStop {
        least: 0.3,
        calibration: Calibration::default(),
    };
    let path = PathRule::ExpectedLength(Calibration::default());
    for (what, drafter) in [
        ("walk", drafter()),
        ("short blocks", drafter().with_block_size(3)),
        (
            "early stop",
            drafter().with_early_stop(stop).expect("in range"),
        ),
        (
            "longest expected path",
            drafter().with_path(path).expect("in range"),
        ),
    ] {
        let (counts, p) = pairs(drafter, &target, &[3, 1]);
        assert_eq!(unlikely(&counts, &p), None, "{what}");
    }
}
