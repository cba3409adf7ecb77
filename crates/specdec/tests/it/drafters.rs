//! Every drafter the facade knows gives the plain output, on trained models and in batches.

use crate::strategies::prompts;
use crate::tiny_pair::pair;
use specdec::lilicorr::{DraftConfig, DraftModel, HeadConfig, LayerKind};
use specdec::ragged::Strategy;
use specdec::vegas::VegasConfig;
use specdec::{DraftLength, Drafting, Generator};

/// A block drafter for the tiny target, with random weights.
fn block_drafter(hidden: usize) -> DraftModel {
    let spec = pair().0.target().spec();
    let config = DraftConfig {
        hidden,
        layers: vec![LayerKind::Full, LayerKind::Full],
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        intermediate: 32,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        vocab: spec.vocab,
        target_layers: spec.layers,
        taps: DraftConfig::usual_taps(spec.layers, 2),
        mask_token: 0,
        block_size: 6,
        draft_vocab: None,
        head: Some(HeadConfig {
            heads: 2,
            ..HeadConfig::new(8, 8)
        }),
    };
    DraftModel::new(&config, 3, pair().0.device()).expect("a good configuration")
}

fn narrow() -> VegasConfig {
    VegasConfig {
        ratio: 0.1,
        min: 4,
        sinks: 1,
        recent: 2,
        ..VegasConfig::default()
    }
}

#[test]
fn every_drafter_gives_the_plain_output() {
    let mut alone = Generator::builder(&pair().0)
        .plain()
        .build()
        .expect("it fits");
    let wanted: Vec<Vec<u32>> = prompts()
        .into_iter()
        .map(|(prompt, options)| alone.generate(prompt, &options).expect("good").tokens)
        .collect();
    let hidden = pair().0.target().spec().hidden;
    for strategy in Strategy::ALL {
        for drafting in [
            Drafting::Vegas(narrow()),
            Drafting::Vegas(VegasConfig::default()),
            Drafting::DFlash(block_drafter(hidden)),
            Drafting::LiLiCorr(block_drafter(hidden)),
        ] {
            let what = format!("{drafting:?} with {strategy}");
            let mut generator = Generator::builder(&pair().0)
                .drafting(drafting)
                .draft_length(DraftLength::Fixed(4))
                .strategy(strategy)
                .max_rows(3)
                .build()
                .expect("it fits");
            let got = generator
                .generate_batch(prompts(), |_, _| {})
                .expect("steps succeed");
            for (i, (got, wanted)) in got.into_iter().zip(&wanted).enumerate() {
                assert_eq!(&got.expect("good").tokens, wanted, "{what}, prompt {i}");
            }
            assert!(generator.stats().drafted > 0, "{what}");
            let vegas = what.starts_with("Vegas");
            assert_eq!(generator.vegas().is_some(), vegas, "{what}");
            assert_eq!(generator.blocks().is_some(), !vegas, "{what}");
        }
    }
}

/// A budget that holds the whole context leaves nothing out: every draft is the target's own token.
#[test]
fn f6_a_budget_over_the_context_accepts_everything() {
    let full = VegasConfig {
        ratio: 1.0,
        ..VegasConfig::default()
    };
    let rate = |config: VegasConfig| {
        let mut generator = Generator::builder(&pair().0)
            .drafting(Drafting::Vegas(config))
            .draft_length(DraftLength::Fixed(4))
            .build()
            .expect("it fits");
        let all = generator
            .generate_batch(prompts(), |_, _| {})
            .expect("steps succeed");
        let end_tokens_are_drafts_too = all.len() as u64;
        let stats = generator.stats();
        assert!(stats.drafted > 0, "nothing was drafted");
        let attended = generator.vegas().and_then(|vegas| vegas.attended_share());
        (
            stats.drafted - stats.accepted,
            end_tokens_are_drafts_too,
            attended,
        )
    };
    let (refused, rows, attended) = rate(full);
    // Drafts behind a row's last token are not emitted.
    assert!(refused <= 4 * rows, "{refused} refused");
    assert_eq!(attended, Some(1.0));
    let (_, _, attended) = rate(narrow());
    assert!(attended < Some(0.6), "{attended:?}");
}

#[test]
fn a_block_drafter_for_another_target_is_refused() {
    let error = Generator::builder(&pair().0)
        .drafting(Drafting::LiLiCorr(block_drafter(48)))
        .build()
        .expect_err("widths differ");
    let text = error.to_string();
    assert!(text.contains("48"), "{text}");
}

#[test]
fn a_vegas_setting_out_of_range_is_named() {
    let error = Generator::builder(&pair().0)
        .drafting(Drafting::Vegas(VegasConfig {
            ratio: 0.0,
            ..VegasConfig::default()
        }))
        .build()
        .expect_err("a budget of nothing");
    assert!(error.to_string().contains("ratio"), "{error}");
}
