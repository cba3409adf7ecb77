//! Files: what is written is read back, and what does not fit is refused by name.

use crate::world::{Target, config, device, model, target};
use specdec_core::{TargetModel, Token};
use specdec_lilicorr::{
    DraftConfig, DraftModel, DraftModelError, HeadConfig, LayerKind, LiLiCorrDrafter,
};
use std::fs;
use std::sync::Arc;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn good() -> DraftConfig {
    config(&target(1))
}

#[test]
fn what_is_saved_is_read_back() {
    let mut sliding = good();
    sliding.layers = vec![LayerKind::Full, LayerKind::Sliding(32)];
    let plain = DraftConfig {
        head: None,
        ..good()
    };
    let reduced = DraftConfig {
        draft_vocab: Some((0..288).step_by(2).collect()),
        ..good()
    };
    for config in [good(), sliding, plain, reduced] {
        let folder = folder();
        let saved = model(&config, 3);
        saved.save(folder.path()).expect("written");
        let read = DraftModel::load(folder.path(), &device()).expect("read");
        assert_eq!(read.config(), &config);
        assert_eq!(
            read.weights().expect("readable"),
            saved.weights().expect("readable")
        );
    }
}

#[test]
fn weights_in_f16_are_read_back_rounded() {
    let reduced = DraftConfig {
        draft_vocab: Some((0..288).step_by(3).collect()),
        ..good()
    };
    let (folder, saved) = (folder(), model(&reduced, 3));
    saved.save_f16(folder.path()).expect("written");
    let read = DraftModel::load(folder.path(), &device()).expect("read");
    assert_eq!(read.config(), &reduced);
    let (got, all) = (
        read.weights().expect("readable"),
        saved.weights().expect("readable"),
    );
    let mut rounded = 0;
    for (name, shape) in saved.parameters() {
        let (wide, narrow) = (
            all.get(&name).expect("there"),
            got.get(&name).expect("there"),
        );
        assert_eq!((wide.0, narrow.0), (&shape[..], &shape[..]));
        for (wide, narrow) in wide.1.iter().zip(narrow.1) {
            assert_eq!(half::f16::from_f32(*wide).to_f32(), *narrow, "{name}");
            rounded += usize::from(wide != narrow);
        }
    }
    assert!(rounded > 0, "nothing was rounded");

    let mut weights = saved.weights().expect("readable");
    let norm = vec![1e5; reduced.hidden];
    weights.insert("norm.weight", vec![reduced.hidden], norm);
    let large = DraftModel::from_weights(&reduced, weights, &device()).expect("it fits");
    let error = large.save_f16(folder.path()).expect_err("beyond the range");
    let message = error.to_string();
    assert!(message.contains("norm.weight holds 100000"), "{message}");
    // What was there before is still whole.
    assert!(DraftModel::load(folder.path(), &device()).is_ok());
}

#[test]
fn names_are_those_of_public_checkpoints() {
    let names: Vec<String> = model(&good(), 1)
        .parameters()
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    for name in [
        "fc.weight",
        "hidden_norm.weight",
        "layers.1.self_attn.q_norm.weight",
        "layers.0.mlp.gate_proj.weight",
        "layers.0.input_layernorm.weight",
        "norm.weight",
        "lilicorr.token_proj.bias",
        "lilicorr.feature_mlp.up_proj.weight",
        "lilicorr.slot_embedding",
        "lilicorr.relative_slot_bias",
        "lilicorr.layers.0.attn.in_proj_weight",
        "lilicorr.layers.0.attn.out_proj.bias",
        "lilicorr.layers.0.mlp.down_proj.weight",
        "lilicorr.factor_input_proj.weight",
        "lilicorr.anchor_out_head.bias",
    ] {
        assert!(
            names.iter().any(|n| n == name),
            "{name} is not in {names:?}"
        );
    }
}

/// The sizes of the published heads.
#[test]
fn a_head_has_as_many_parameters_as_published() {
    for (hidden, want) in [(4096, 36_758_794), (2560, 32_040_202)] {
        let h = 1024;
        let per_layer = 2 * h + 3 * h * h + 3 * h + h * h + h + 4 * h * h + 3 * h;
        let config = DraftConfig {
            hidden,
            block_size: 16,
            vocab: 1000,
            mask_token: 999,
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            intermediate: 1,
            layers: vec![LayerKind::Full],
            head: Some(HeadConfig::new(h, h)),
            ..good()
        };
        // Shapes only, of a head of one layer; the second has as many as the first.
        let one = DraftConfig {
            head: Some(HeadConfig {
                layers: 1,
                ..HeadConfig::new(h, h)
            }),
            ..config
        };
        let parameters = DraftModel::with_deviation(&one, 0, 0.0, &device())
            .expect("good")
            .parameters();
        let count: usize = parameters
            .iter()
            .filter(|(name, _)| name.starts_with("lilicorr."))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        assert_eq!(count + per_layer, want);
    }
}

fn json_with(change: impl Fn(&mut serde_json::Value)) -> Result<DraftConfig, DraftModelError> {
    let mut value: serde_json::Value = serde_json::from_str(&good().to_json()).expect("JSON");
    change(&mut value);
    DraftConfig::from_json(&value.to_string())
}

/// F4 and T36: each value that is needed, taken away in turn, is named.
#[test]
fn f4_t36_a_missing_value_is_named() {
    let top = [
        "architectures",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
        "num_target_layers",
        "block_size",
        "dflash_config",
    ];
    for key in top {
        let error = json_with(|v| drop(v.as_object_mut().expect("object").remove(key)));
        match error.expect_err(key) {
            DraftModelError::MissingKey { key: named } => assert_eq!(named, key),
            error => panic!("{key}: {error}"),
        }
    }
    for key in [
        "mask_token_id",
        "target_layer_ids",
        "lilicorr_candidate_topk",
        "lilicorr_hidden_size",
        "lilicorr_factor_dim",
        "lilicorr_num_layers",
        "lilicorr_num_heads",
        "lilicorr_mlp_ratio",
        "lilicorr_logit_scale",
        "lilicorr_vector_eps",
    ] {
        let inner = |v: &mut serde_json::Value| {
            drop(
                v["dflash_config"]
                    .as_object_mut()
                    .expect("object")
                    .remove(key),
            );
        };
        match json_with(inner).expect_err(key) {
            DraftModelError::MissingKey { key: named } => {
                assert_eq!(named, format!("dflash_config.{key}"));
            }
            error => panic!("{key}: {error}"),
        }
    }
}

/// F4, T18 and T46: values that cannot be.
#[test]
fn f4_t18_t46_wrong_values_are_named() {
    let special = |key: &'static str, value: serde_json::Value| {
        json_with(move |v| v["dflash_config"][key] = value.clone())
    };
    let error = special("target_layer_ids", serde_json::json!([0, 2])).expect_err("two layers");
    assert!(
        matches!(error, DraftModelError::Tap { tap: 2, layers: 2 }),
        "{error}"
    );
    for (key, value) in [
        ("lilicorr_candidate_topk", 0),
        ("lilicorr_candidate_topk", 289),
        ("lilicorr_num_heads", 3),
        ("lilicorr_logit_scale", 0),
        ("lilicorr_hidden_size", 64),
    ] {
        let error = special(key, value.into()).expect_err(key);
        assert!(error.to_string().contains(key), "{error}");
    }
    let error = special("conv_kernel_size", 2.into()).expect_err("another network");
    assert!(
        matches!(error, DraftModelError::UnknownKey { .. }),
        "{error}"
    );
    for key in ["eos_token_id", "pad_token_id"] {
        let error = json_with(|v| v[key] = 287.into()).expect_err(key);
        assert!(
            error.to_string().contains("mask_token_id is 287"),
            "{error}"
        );
    }
    let error = json_with(|v| v["eos_token_id"] = serde_json::json!([1, 287])).expect_err("a list");
    assert!(error.to_string().contains("mask_token_id"), "{error}");
    for (key, value) in [
        ("attention_bias", serde_json::json!(true)),
        ("rope_scaling", serde_json::json!({"type": "yarn"})),
        ("hidden_act", serde_json::json!("gelu")),
        ("block_size", serde_json::json!(1)),
        ("architectures", serde_json::json!(["DFlash2DraftModel"])),
        ("layer_types", serde_json::json!(["full_attention"])),
    ] {
        let error = json_with(|v| v[key] = value.clone()).expect_err(key);
        assert!(error.to_string().contains(key), "{error}");
    }
    let plain =
        |v: &mut serde_json::Value| v["architectures"] = serde_json::json!(["DFlashDraftModel"]);
    let error = json_with(plain).expect_err("a head that would not be computed");
    assert!(error.to_string().contains("lilicorr_"), "{error}");
}

/// F4: a larger block than trained with is cut, and says so.
#[test]
fn f4_a_block_is_only_made_smaller() {
    let target: Target = Arc::new(target(1));
    let drafter = || LiLiCorrDrafter::new(model(&good(), 1), &*target).expect("it fits");
    assert_eq!(drafter().block_size(), 6);
    for (asked, got) in [(3, 3), (6, 6), (16, 6), (0, 2)] {
        assert_eq!(drafter().with_block_size(asked).block_size(), got);
    }
}

/// T35 and T37: missing and unknown tensors are refused by name.
#[test]
fn t35_t37_missing_and_unknown_tensors() {
    let config = good();
    let weights = model(&config, 1).weights().expect("readable");
    let mut less = weights.clone();
    less.remove("lilicorr.in_head.bias");
    less.remove("norm.weight");
    match DraftModel::from_weights(&config, less, &device()).expect_err("two are missing") {
        DraftModelError::MissingTensors { names } => {
            assert_eq!(names, ["norm.weight", "lilicorr.in_head.bias"]);
        }
        error => panic!("{error}"),
    }
    let plain = DraftConfig {
        head: None,
        ..config.clone()
    };
    match DraftModel::from_weights(&plain, weights.clone(), &device()).expect_err("a head") {
        DraftModelError::UnknownTensors { names } => {
            assert!(names.iter().all(|n| n.starts_with("lilicorr.")) && names.len() > 20);
        }
        error => panic!("{error}"),
    }
    let mut wide = config.clone();
    wide.head.as_mut().expect("a head").hidden = None;
    DraftModel::from_weights(&wide, weights.clone(), &device()).expect_err("token_proj is extra");
    let mut turned = weights;
    turned.insert("norm.weight", vec![1, 64], vec![1.0; 64]);
    let error = DraftModel::from_weights(&config, turned, &device()).expect_err("another shape");
    assert!(matches!(error, DraftModelError::Shape { .. }), "{error}");
}

/// T50: the map holds offsets. T52: one that is none is refused.
#[test]
fn t50_t52_the_map_of_a_draft_vocabulary() {
    let config = DraftConfig {
        draft_vocab: Some(vec![5, 9, 10, 200]),
        head: None,
        ..good()
    };
    let folder = folder();
    model(&config, 1).save(folder.path()).expect("written");
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).expect("there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a good file");
    let offsets: Vec<i64> = file
        .tensor("d2t")
        .expect("there")
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")))
        .collect();
    assert_eq!(offsets, [5, 8, 8, 197]);
    // The same numbers taken for offsets of other tokens disagree with the mask of kept ones.
    let mut wrong = bytes.clone();
    let at = wrong
        .windows(8)
        .position(|w| w == 197i64.to_le_bytes())
        .expect("the last offset");
    wrong[at..at + 8].copy_from_slice(&198i64.to_le_bytes());
    fs::write(&path, &wrong).expect("written");
    let error = DraftModel::load(folder.path(), &device()).expect_err("two maps");
    assert!(
        matches!(error, DraftModelError::DraftVocabulary(_)),
        "{error}"
    );
    wrong[at..at + 8].copy_from_slice(&0i64.to_le_bytes());
    fs::write(&path, &wrong).expect("written");
    let error = DraftModel::load(folder.path(), &device()).expect_err("not ascending");
    assert!(
        matches!(error, DraftModelError::DraftVocabulary(_)),
        "{error}"
    );
}

#[test]
fn damaged_files_are_errors() {
    let folder = folder();
    model(&good(), 1).save(folder.path()).expect("written");
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).expect("there");
    for part in 0..20 {
        fs::write(&path, &bytes[..bytes.len() * part / 20]).expect("written");
        let error = DraftModel::load(folder.path(), &device()).expect_err("cut");
        assert!(matches!(error, DraftModelError::Corrupt { .. }), "{error}");
    }
    fs::remove_file(&path).expect("there");
    let error = DraftModel::load(folder.path(), &device()).expect_err("gone");
    assert!(matches!(error, DraftModelError::Io { .. }), "{error}");
}

#[test]
fn usual_taps_are_those_of_the_paper() {
    for (layers, count, want) in [
        (36, 5, vec![1, 9, 17, 25, 33]),
        (24, 5, vec![1, 6, 11, 16, 21]),
        (28, 5, vec![1, 7, 13, 19, 25]),
        (36, 1, vec![18]),
        (30, 3, vec![1, 14, 27]),
    ] {
        assert_eq!(DraftConfig::usual_taps(layers, count), want);
    }
    let spec_layers = target(1).spec().layers;
    assert!(
        DraftConfig::usual_taps(spec_layers, 3)
            .iter()
            .all(|&t| t < spec_layers)
    );
    let _: Token = good().mask_token;
}

/// Sizes that no file has: refused before anything of that size is made.
#[test]
fn absurd_sizes_do_not_allocate() {
    let mut config = good();
    config.hidden = 1 << 24;
    config.intermediate = 1 << 24;
    let weights = model(&good(), 1).weights().expect("readable");
    match DraftModel::from_weights(&config, weights, &device()).expect_err("nothing fits") {
        DraftModelError::TooFew { needed, got } => assert!(needed > 1 << 46 && got < 1 << 30),
        error => panic!("{error}"),
    }
}
