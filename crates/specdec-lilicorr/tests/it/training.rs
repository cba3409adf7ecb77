//! Training: what is learnt, what must not leak, and that a stop changes nothing.

use crate::world::{Stepper, Target, device, prompt};
use specdec_core::{Decoder, DraftRow, FixedLength, Phase, SeqId, sampling::Sampler};
use specdec_lilicorr::train::{
    CollectOptions, FeatureStore, LossWeights, StepMetrics, StoredText, TrainError, TrainOptions,
    Trainer, collect, evaluate,
};
use specdec_lilicorr::{DFlashDrafter, DraftConfig, HeadConfig, LayerKind, LiLiCorrDrafter};
use specdec_models::{LoadOptions, open};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::plain_run;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The trained target of `assets/tiny-pair`.
pub(crate) fn tiny() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    let open = || -> Target {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-pair/target");
        Arc::new(
            open(folder, &LoadOptions::new(), &device())
                .expect("it is in the repository")
                .model,
        )
    };
    Arc::clone(TARGET.get_or_init(open))
}

pub(crate) fn config() -> DraftConfig {
    DraftConfig {
        hidden: 128,
        layers: vec![LayerKind::Full],
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate: 96,
        rms_eps: 1e-5,
        rope_theta: 10_000.0,
        vocab: 768,
        target_layers: 4,
        taps: vec![1, 2],
        mask_token: 767,
        block_size: 5,
        draft_vocab: None,
        head: Some(HeadConfig {
            candidates: 4,
            layers: 1,
            heads: 2,
            ..HeadConfig::new(32, 32)
        }),
    }
}

fn prompts(count: usize) -> Vec<Vec<u32>> {
    (0..count)
        .map(|i| prompt(2 + i % 5, 700, i as u64))
        .collect()
}

fn quiet(_: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Texts of the tiny target, written once.
pub(crate) fn texts() -> FeatureStore {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let write = || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut store = store_in(folder.path(), &config());
        let options = CollectOptions::new(40);
        let cache = |spec: &specdec_core::ModelSpec| VecCache::new(spec);
        collect(
            &tiny(),
            cache,
            prompts(10),
            &options,
            &mut store,
            &mut quiet,
        )
        .expect("written");
        folder
    };
    store_in(FOLDER.get_or_init(write).path(), &config())
}

pub(crate) fn store_in(folder: &Path, config: &DraftConfig) -> FeatureStore {
    FeatureStore::open(folder, tiny().spec(), &config.taps).expect("a store")
}

pub(crate) fn options(steps: usize) -> TrainOptions {
    TrainOptions {
        texts: 3,
        anchors: 6,
        rate: 4e-3,
        ..TrainOptions::new(steps, 5)
    }
}

fn trainer(folder: &Path, options: TrainOptions) -> Trainer {
    Trainer::new(&config(), &*tiny(), &texts(), folder, options).expect("good settings")
}

/// A draft vocabulary is made of what answers are made of: prompts do not count.
#[test]
fn frequent_tokens_are_those_of_the_answers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut store = store_in(folder.path(), &config());
    let texts: [(&[u32], usize); 2] = [(&[9, 9, 9, 4, 5, 4, 7], 3), (&[8, 8, 5, 4, 2], 2)];
    for (tokens, prompt_len) in texts {
        let n = tokens.len();
        let text = StoredText {
            tokens: tokens.to_vec(),
            prompt_len,
            taps: vec![0.0; n * 2 * 128],
            hidden: vec![0.0; n * 128],
        };
        store.push(&text).expect("written");
    }
    // Answers: 4 three times, 5 twice, 2 and 7 once.
    let found = store.frequent_tokens(2, []).expect("readable");
    assert_eq!((found.tokens, found.coverage), (vec![4, 5], 5.0 / 7.0));
    // Of those seen once the lower; the end token always.
    let found = store.frequent_tokens(4, [700]).expect("readable");
    assert_eq!(
        (found.tokens, found.coverage),
        (vec![2, 4, 5, 700], 6.0 / 7.0)
    );
    let all = store.frequent_tokens(100, []).expect("readable");
    assert_eq!((all.tokens, all.coverage), (vec![2, 4, 5, 7], 1.0));
}

/// Both variants, and the soft one: the loss falls and every parameter moves. T17 with it: the norms
/// leave 1, as they are kept in 32 bits.
#[test]
fn t17_every_variant_learns() {
    for weights in [LossWeights::BASE, LossWeights::MARGIN, LossWeights::SOFT] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut options = options(25);
        options.weights = weights;
        let mut run = trainer(folder.path(), options);
        let before = run.model().weights().expect("readable");
        let mut told: Vec<StepMetrics> = Vec::new();
        run.run(&mut |m| {
            told.push(*m);
            ControlFlow::Continue(())
        })
        .expect("it learns");
        let mean =
            |part: &[StepMetrics]| part.iter().map(|m| m.drafter).sum::<f32>() / part.len() as f32;
        let (first, last) = (mean(&told[..5]), mean(&told[20..]));
        assert!(last < 0.8 * first, "{weights:?}: {first} to {last}");
        for m in &told {
            let w = weights;
            let sum = f64::from(m.drafter)
                + w.cross_entropy * f64::from(m.cross_entropy)
                + w.margin * f64::from(m.margin)
                + w.penalty * f64::from(m.penalty)
                + w.soft * f64::from(m.soft);
            assert!(
                (f64::from(m.loss) - sum).abs() < 1e-4,
                "the loss is the sum of its parts"
            );
            assert!(m.selected_prefix <= m.oracle_prefix && m.top1_prefix <= m.oracle_prefix);
        }
        let model = run.model();
        let after = model.weights().expect("readable");
        for (name, _) in model.parameters() {
            let (a, b) = (
                before.get(&name).expect("there"),
                after.get(&name).expect("there"),
            );
            assert_ne!(a, b, "{weights:?}: {name} did not move");
        }
        let (_, norm) = after
            .get("layers.0.self_attn.q_norm.weight")
            .expect("there");
        let moved = norm.iter().filter(|v| **v != 1.0).count();
        assert!(2 * moved > norm.len(), "{moved} of {} moved", norm.len());
    }
}

/// A run that is killed and goes on has the weights of one that was not.
#[test]
fn a_killed_run_goes_on_to_the_same_weights() {
    let whole = tempfile::tempdir().expect("a temporary folder");
    let mut run = trainer(whole.path(), options(12));
    run.run(&mut |_| ControlFlow::Continue(()))
        .expect("trained");
    let want = run.model().weights().expect("readable");

    let parts = tempfile::tempdir().expect("a temporary folder");
    let mut run = trainer(parts.path(), options(12));
    run.run(&mut |m| {
        if m.step == 5 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .expect("trained");
    // Two more steps that are lost with the process.
    run.step().expect("a step");
    run.step().expect("a step");
    drop(run);
    let mut run = trainer(parts.path(), options(12));
    assert_eq!(run.steps_taken(), 5);
    run.run(&mut |_| ControlFlow::Continue(()))
        .expect("trained");
    assert_eq!(run.steps_taken(), 12);
    assert_eq!(run.model().weights().expect("readable"), want);
    // The same folder with other settings is refused.
    let mut other = options(12);
    other.rate = 1e-3;
    let error =
        Trainer::new(&config(), &*tiny(), &texts(), parts.path(), other).expect_err("other");
    assert!(matches!(error, TrainError::Mismatch { .. }), "{error}");
}

/// Collecting goes on where it stopped, with the same texts; states are those of decoding.
#[test]
fn collecting_goes_on_where_it_stopped() {
    let options = CollectOptions {
        batch: 3,
        ..CollectOptions::new(12)
    };
    let cache = |spec: &specdec_core::ModelSpec| VecCache::new(spec);
    let folders: Vec<_> = (0..2)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let mut whole = store_in(folders[0].path(), &config());
    collect(&tiny(), cache, prompts(7), &options, &mut whole, &mut quiet).expect("written");
    let mut parts = store_in(folders[1].path(), &config());
    let mut stop = |_| ControlFlow::Break(());
    collect(&tiny(), cache, prompts(7), &options, &mut parts, &mut stop).expect("written");
    assert_eq!(parts.len(), 3);
    let mut parts = store_in(folders[1].path(), &config());
    collect(&tiny(), cache, prompts(7), &options, &mut parts, &mut quiet).expect("written");
    assert_eq!((parts.len(), whole.len()), (7, 7));
    for i in 0..7 {
        let (a, b): (StoredText, StoredText) =
            (whole.read(i).expect("there"), parts.read(i).expect("there"));
        assert_eq!(a, b, "text {i}");
        assert_eq!(a.prompt_len, prompts(7)[i].len());
        assert_eq!(a.taps.len(), a.tokens.len() * 2 * 128);
    }
    let other = FeatureStore::open(folders[0].path(), tiny().spec(), &[0, 3]);
    assert!(matches!(other, Err(TrainError::Mismatch { .. })));
}

/// The objective sees what decoding sees: candidates of the training pass, all blocks at once, are
/// those of the drafter, position by position. An evaluation of the walk therefore equals drafting.
#[test]
fn t12_t32_training_and_drafting_agree() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = trainer(folder.path(), options(10));
    run.run(&mut |_| ControlFlow::Continue(()))
        .expect("trained");
    let model = run.model();
    let target = tiny();
    let store = texts();
    let measured = evaluate(&model, &*target, &store, usize::MAX, 1)
        .expect("measured")
        .metrics;
    let (mut blocks, mut selected, mut oracle, mut top1) = (0usize, 0usize, 0usize, 0usize);
    let sampler = Sampler::greedy();
    for i in 0..store.len() {
        let text = store.read(i).expect("there");
        let mut drafter = LiLiCorrDrafter::new(model.clone(), &*target).expect("it fits");
        let mut stepper = Stepper::new(&target);
        for a in text.prompt_len..=text.tokens.len().saturating_sub(5) {
            let content = &text.tokens[..=a];
            stepper.pass(&mut drafter, &[(SeqId(0), content, &[])], Phase::Prefill);
            let row = DraftRow::new(SeqId(0), content, 1, 1, &sampler);
            let lattice = drafter.lattice(&row, &*target).expect("a lattice");
            let truth = &text.tokens[a + 1..a + 5];
            let walk = lattice.tokens(&lattice.greedy());
            blocks += 1;
            let reach = |right: &dyn Fn(usize) -> bool| (0..4).take_while(|&s| right(s)).count();
            selected += reach(&|s| walk[s] == truth[s]);
            oracle += reach(&|s| lattice.ids[s].contains(&truth[s]));
            top1 += reach(&|s| lattice.ids[s][0] == truth[s]);
        }
    }
    assert_eq!(measured.blocks, blocks);
    assert!(measured.oracle_prefix > 0.0);
    for (got, want) in [
        (measured.selected_prefix, selected),
        (measured.oracle_prefix, oracle),
        (measured.top1_prefix, top1),
    ] {
        // States are stored in 16 bits: a near tie may fall the other way, once or twice.
        let off = (got * blocks as f64 - want as f64).abs();
        assert!(
            off <= 0.02 * blocks as f64,
            "{got} of {blocks} blocks, {want} in sum"
        );
    }
}

/// T14: a text with one legal anchor among texts with many: blocks of padding give no NaN.
#[test]
fn t14_blocks_of_padding_are_harmless() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut store = store_in(folder.path(), &config());
    let long = texts().read(0).expect("there");
    let cut = |len: usize| StoredText {
        tokens: long.tokens[..len].to_vec(),
        prompt_len: long.prompt_len,
        taps: long.taps[..len * 256].to_vec(),
        hidden: long.hidden[..len * 128].to_vec(),
    };
    store.push(&cut(long.prompt_len + 5)).expect("written");
    store.push(&cut(long.tokens.len())).expect("written");
    let state = tempfile::tempdir().expect("a temporary folder");
    let mut options = options(3);
    options.texts = 2;
    options.anchors = 8;
    let mut run = Trainer::new(&config(), &*tiny(), &store, state.path(), options).expect("good");
    for _ in 0..3 {
        let metrics = run.step().expect("finite");
        assert_eq!(metrics.blocks, 9);
    }
    let weights = run.model().weights().expect("readable");
    for (name, _) in run.model().parameters() {
        let (_, values) = weights.get(&name).expect("there");
        assert!(values.iter().all(|v| v.is_finite()), "{name}");
    }
    // Too short for any block.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut store = store_in(folder.path(), &config());
    store.push(&cut(long.prompt_len + 4)).expect("written");
    let error = Trainer::new(&config(), &*tiny(), &store, state.path(), self::options(3));
    assert!(matches!(error, Err(TrainError::NoBlocks { texts: 1, .. })));
}

/// The drafter's part alone, and a reduced vocabulary: labels outside of it teach nothing and end the
/// block's prefix.
#[test]
fn t52_a_reduced_vocabulary_and_no_head() {
    let mut kept: Vec<u32> = (0..texts().len())
        .flat_map(|i| texts().read(i).expect("there").tokens)
        .filter(|t| t % 5 != 0)
        .collect();
    kept.sort_unstable();
    kept.dedup();
    let reduced = DraftConfig {
        draft_vocab: Some(kept),
        ..config()
    };
    let plain = DraftConfig {
        head: None,
        ..config()
    };
    for config in [reduced, plain] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut run =
            Trainer::new(&config, &*tiny(), &texts(), folder.path(), options(25)).expect("good");
        let mut losses = Vec::new();
        run.run(&mut |m| {
            losses.push(m.drafter);
            ControlFlow::Continue(())
        })
        .expect("trained");
        let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
        assert!(mean(&losses[20..]) < 0.8 * mean(&losses[..5]), "{losses:?}");
        let drafter = DFlashDrafter::new(run.model(), &*tiny()).expect("it fits");
        lossless(drafter);
    }
}

fn lossless(drafter: impl specdec_core::Drafter + 'static) -> f64 {
    let target = tiny();
    let ask = || {
        prompts(4)
            .into_iter()
            .map(|p| crate::world::request(&p, 40))
    };
    let want = plain_run(&target, VecCache::new(target.spec()), ask()).expect("plain");
    let mut decoder = Decoder::builder(Arc::clone(&target))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter)
        .controller(FixedLength(4))
        .build()
        .expect("the parts fit");
    for request in ask() {
        decoder.submit(request).expect("good");
    }
    let mut done = decoder.run().expect("decoding");
    done.sort_by_key(|d| d.seq);
    for (want, got) in want.iter().zip(&done) {
        assert_eq!(want.tokens, got.tokens);
    }
    decoder
        .stats()
        .acceptance_length()
        .expect("rounds were taken")
}

/// Trained for a moment, drafts are accepted, saved weights are the trained ones, and output stays plain.
#[test]
fn trained_weights_draft_losslessly() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = trainer(folder.path(), options(60));
    run.run(&mut |_| ControlFlow::Continue(()))
        .expect("trained");
    let model = run.model();
    let path: PathBuf = folder.path().join("model");
    model.save(&path).expect("written");
    let read = specdec_lilicorr::DraftModel::load(&path, &device()).expect("read");
    assert_eq!(
        read.weights().expect("readable"),
        model.weights().expect("readable")
    );
    let length = lossless(LiLiCorrDrafter::new(read, &*tiny()).expect("it fits"));
    assert!(length > 1.05, "{length} tokens a pass");
    let evaluation = evaluate(&model, &*tiny(), &texts(), 8, 3).expect("measured");
    assert!(
        evaluation.metrics.selected_prefix > 0.1,
        "{:?}",
        evaluation.metrics
    );
    assert!(evaluation.calibration.sharpness > 0.0);
}

#[test]
fn settings_out_of_range_are_refused() {
    let change: [fn(&mut TrainOptions); 5] = [
        |o| o.texts = 0,
        |o| o.rate = f64::NAN,
        |o| o.betas.1 = 1.0,
        |o| o.head_share = 1.5,
        |o| o.weights.penalty = -1.0,
    ];
    for change in change {
        let mut options = options(3);
        change(&mut options);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = Trainer::new(&config(), &*tiny(), &texts(), folder.path(), options);
        assert!(matches!(error, Err(TrainError::Setting { .. })));
    }
}
