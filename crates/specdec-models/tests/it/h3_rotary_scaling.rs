//! Rotary scaling against values worked out by hand (the formulas of the Llama 3.1 and YaRN
//! releases, evaluated in double precision outside of this crate).

use crate::{
    dense_attend::{logits_of, values},
    reference::{distance, logits},
    tiny::{self, Tiny, device},
};
use serde_json::{Value as Json, json};
use specdec_core::TargetModel;
use specdec_models::{
    Architecture, GgufFile, LoadError, LoadOptions, ModelConfig, Result, Rope, RopeScaling,
    Transformer,
    gguf::{GgmlType, Value},
};

fn wide(theta: f64, dim: usize, scaling: RopeScaling) -> ModelConfig {
    let mut config = ModelConfig::new(Architecture::Llama, 8, dim, 1).with_heads(1, 1, dim);
    config.rope_theta = theta;
    config.rope_scaling = scaling;
    config
}

#[track_caller]
fn assert_frequencies(rope: &Rope, expected: &[(usize, f64)]) {
    for &(i, expected) in expected {
        let got = rope.frequencies()[i];
        assert!(
            (got / expected - 1.0).abs() < 1e-12,
            "{i}: {got} for {expected}"
        );
    }
}

/// Llama 3.1 8B: theta 500000, D 128, factor 8, bounds 1 and 4, 8192 tokens.
fn llama31() -> RopeScaling {
    RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    }
}

#[test]
fn h3_llama3_frequencies() {
    let rope = Rope::new(&wide(5e5, 128, llama31()), 131_072);
    assert_frequencies(
        &rope,
        &[
            (0, 1.0),
            (1, 0.8146172338565447),
            (27, 0.003942276030116656),
            (28, 0.003211445994752591),
            (29, 0.002166570763503359),
            (30, 0.0013718935677611381),
            (34, 0.0001785078127679964),
            (35, 9.556212353964683e-5),
            (36, 7.78465527393245e-5),
            (63, 3.068925988914511e-7),
        ],
    );
    assert_eq!(rope.attention_factor(), 1.0);
}

#[test]
fn h3_yarn_frequencies() {
    // Qwen2.5's long-context setting: theta 1e6, D 128, factor 4 over 32768 tokens.
    let mut json = tiny::qwen2().config_json();
    json["rope_theta"] = json!(1e6);
    json["head_dim"] = json!(128);
    json["rope_scaling"] =
        json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let config = ModelConfig::from_json(&json.to_string()).unwrap();
    let rope = Rope::new(&config, 131_072);
    assert_frequencies(
        &rope,
        &[
            (0, 1.0),
            (22, 0.008659643233600654),
            (23, 0.006978305848598663),
            (24, 0.005375321490790102),
            (31, 0.0008029597275452302),
            (39, 6.490394320837029e-5),
            (40, 4.445698525097307e-5),
            (63, 3.102344401879299e-7),
        ],
    );
    assert!((rope.attention_factor() - 1.138629436111989).abs() < 1e-12);
    // At position 0 the cosine is the attention factor itself.
    let (cos, sin) = rope.angles(&[0, 7], &device());
    assert_eq!(values(cos)[..64], [1.138629436111989f64 as f32; 64]);
    assert_eq!(values(sin)[..64], [0.0; 64]);
}

#[test]
fn h3_linear_and_dynamic_frequencies() {
    let linear = Rope::new(&wide(1e4, 64, RopeScaling::Linear { factor: 4.0 }), 8192);
    assert_frequencies(&linear, &[(0, 0.25), (16, 0.0025)]);
    let dynamic = RopeScaling::DynamicNtk {
        factor: 2.0,
        original_context: 2048,
    };
    let config = wide(1e4, 64, dynamic);
    let stretched = Rope::new(&config, 8192);
    assert_frequencies(
        &stretched,
        &[
            (0, 1.0),
            (1, 0.7042693252165533),
            (16, 0.0036628603951234535),
            (31, 1.905030617376177e-5),
        ],
    );
    // Within the original context nothing is stretched, so cached keys agree with any other reading.
    let plain = Rope::new(&wide(1e4, 64, RopeScaling::None), 2048);
    assert_eq!(Rope::new(&config, 2048), plain);
    assert_eq!(Rope::new(&config, 16), plain);
}

#[test]
fn h3_angles_of_ragged_positions() {
    let rope = Rope::new(&wide(1e4, 4, RopeScaling::None), 2048);
    let (cos, sin) = rope.angles(&[500, 0, 3], &device());
    assert_eq!(cos.dims(), [3, 2]);
    let expected = [
        (500.0, 1.0),
        (500.0, 0.01),
        (0.0, 1.0),
        (0.0, 0.01),
        (3.0, 1.0),
        (3.0, 0.01),
    ];
    for ((cos, sin), (position, frequency)) in
        values(cos).into_iter().zip(values(sin)).zip(expected)
    {
        let angle: f64 = position * frequency;
        assert_eq!((cos, sin), (angle.cos() as f32, angle.sin() as f32));
    }
    // Far positions keep their precision: in f32 the product alone would be off by 0.004.
    let (cos, _) = rope.angles(&[131_071], &device());
    assert_eq!(values(cos)[0], 131_071f64.cos() as f32);
}

fn parsed(key: &str, value: Json) -> Result<ModelConfig> {
    let mut json = tiny::llama().config_json();
    json.as_object_mut().unwrap().remove("rope_theta");
    json[key] = value;
    ModelConfig::from_json(&json.to_string())
}

#[test]
fn h3_every_spelling_of_a_config() {
    let linear = RopeScaling::Linear { factor: 2.0 };
    for (key, value) in [
        ("rope_scaling", json!({"type": "linear", "factor": 2})),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 2.0}),
        ),
        (
            "rope_parameters",
            json!({"rope_type": "linear", "factor": 2.0}),
        ),
    ] {
        assert_eq!(parsed(key, value).unwrap().rope_scaling, linear);
    }
    let newer = json!({"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5});
    let config = parsed("rope_parameters", newer).unwrap();
    assert_eq!((config.rope_theta, config.rope_dim), (5e5, 4));
    assert_eq!(config.rope_scaling, RopeScaling::None);
    assert_eq!(
        parsed("rope_scaling", Json::Null).unwrap().rope_scaling,
        RopeScaling::None
    );
    let config = parsed("rope_scaling", json!({"type": "dynamic", "factor": 2.0})).unwrap();
    let dynamic = RopeScaling::DynamicNtk {
        factor: 2.0,
        original_context: 2048,
    };
    assert_eq!(config.rope_scaling, dynamic);
    let yarn = json!({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8,
        "beta_fast": 16, "beta_slow": 2, "original_max_position_embeddings": 4096});
    let RopeScaling::Yarn {
        attention_factor,
        beta_fast,
        beta_slow,
        original_context,
        ..
    } = parsed("rope_scaling", yarn).unwrap().rope_scaling
    else {
        panic!("no yarn");
    };
    let expected = (0.1 * 40f64.ln() + 1.0) / (0.08 * 40f64.ln() + 1.0);
    assert!((attention_factor - expected).abs() < 1e-12);
    assert_eq!((beta_fast, beta_slow, original_context), (16.0, 2.0, 4096));
}

#[test]
fn h3_unknown_or_incomplete_scaling_is_an_error() {
    for name in ["longrope", "mrope", "su"] {
        let error = parsed("rope_scaling", json!({"type": name, "factor": 2.0})).unwrap_err();
        assert!(
            matches!(&error, LoadError::UnknownRopeScaling { name: n } if n == name),
            "{error}"
        );
    }
    for (value, missing) in [
        (json!({"type": "linear"}), "rope_scaling.factor"),
        (json!({"factor": 2.0}), "rope_scaling.rope_type"),
        (
            json!({"rope_type": "llama3", "factor": 8.0}),
            "rope_scaling.low_freq_factor",
        ),
    ] {
        let error = parsed("rope_scaling", value).unwrap_err();
        assert!(
            matches!(&error, LoadError::MissingKey { key } if key == missing),
            "{error}"
        );
    }
    let error = parsed("rope_scaling", json!({"type": "linear", "factor": 0.0})).unwrap_err();
    assert!(matches!(error, LoadError::InvalidKey { key, .. } if key == "rope_scaling.factor"));
    let mut gguf = tiny::llama().gguf_f32();
    gguf.set(
        "llama.rope.scaling.type",
        Value::String("longrope".to_owned()),
    );
    let file = GgufFile::from_bytes(gguf.to_bytes().unwrap()).unwrap();
    let error = ModelConfig::from_gguf(&file).unwrap_err();
    assert!(matches!(error, LoadError::UnknownRopeScaling { name } if name == "longrope"));
}

/// A tiny model with a scaling that changes some of its four frequencies.
fn scaled() -> Tiny {
    let mut tiny = tiny::llama();
    tiny.config.rope_scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 256,
    };
    tiny
}

#[test]
fn h3_config_and_gguf_tensor_agree() {
    let tiny = scaled();
    // By hand: frequencies 1, 0.1, 0.01, 0.001 make 40.7, 4.07, 0.407, 0.041 turns in 256 tokens,
    // so the first two stay and the last two are divided by 8.
    let expected = [1.0, 0.1, 0.01 / 8.0, 0.001 / 8.0];
    let mut json = tiny.config_json();
    json["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 256});
    let from_json = ModelConfig::from_json(&json.to_string()).unwrap();
    assert_eq!(from_json, tiny.config);

    let mut writer = tiny.gguf_f32();
    let divisors: Vec<u8> = [1f32, 1.0, 8.0, 8.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    writer.tensor("rope_freqs.weight", &[4], GgmlType::from_id(0), divisors);
    let file = GgufFile::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let from_gguf = ModelConfig::from_gguf(&file).unwrap();
    for config in [&from_json, &from_gguf] {
        for (got, expected) in Rope::new(config, 2048).frequencies().iter().zip(expected) {
            assert!((got / expected - 1.0).abs() < 1e-12, "{got} for {expected}");
        }
    }
    let tokens: Vec<u32> = (0..60).map(|i| (i * 37 + 11) % 96).collect();
    let expected = logits(&tiny, &expected, &tokens);
    let a = Transformer::from_tensors(&from_json, &tiny.memory(), &device()).unwrap();
    let b = Transformer::from_tensors(&from_gguf, &file, &device()).unwrap();
    assert!(distance(&logits_of(&a, &tokens), &expected) < 1e-4);
    assert!(distance(&logits_of(&b, &tokens), &expected) < 1e-4);
    // And the scaling was worth a test: without it the logits are others.
    let plain =
        Transformer::from_tensors(&tiny::llama().config, &tiny.memory(), &device()).unwrap();
    assert!(distance(&logits_of(&plain, &tokens), &expected) > 1e-2);
}

#[test]
fn h3_gguf_scaling_keys() {
    let config = |keys: &[(&str, Value)]| {
        let mut writer = tiny::llama().gguf_f32();
        for (key, value) in keys {
            writer.set(format!("llama.rope.{key}"), value.clone());
        }
        ModelConfig::from_gguf(&GgufFile::from_bytes(writer.to_bytes().unwrap()).unwrap())
    };
    let text = |s: &str| Value::String(s.to_owned());
    let linear = RopeScaling::Linear { factor: 4.0 };
    for keys in [
        vec![("scaling.factor", Value::F32(4.0))],
        vec![("scale_linear", Value::F32(4.0))],
        vec![
            ("scaling.factor", Value::F32(4.0)),
            ("scaling.type", text("linear")),
        ],
    ] {
        assert_eq!(config(&keys).unwrap().rope_scaling, linear);
    }
    for keys in [
        vec![
            ("scaling.factor", Value::F32(4.0)),
            ("scaling.type", text("none")),
        ],
        vec![("scaling.factor", Value::F32(0.0))],
        vec![("scaling.type", text("linear"))],
    ] {
        assert_eq!(config(&keys).unwrap().rope_scaling, RopeScaling::None);
    }
    // The same setting as in `h3_yarn_frequencies`, as a file would have it.
    let got = config(&[
        ("scaling.type", text("yarn")),
        ("scaling.factor", Value::F32(4.0)),
        ("scaling.original_context_length", Value::U32(32768)),
    ]);
    let RopeScaling::Yarn {
        attention_factor,
        original_context,
        ..
    } = got.unwrap().rope_scaling
    else {
        panic!("no yarn");
    };
    assert!((attention_factor - 1.138629436111989).abs() < 1e-12);
    assert_eq!(original_context, 32768);
    // Too few divisors for the rotating dimensions.
    let mut writer = tiny::llama().gguf_f32();
    writer.tensor(
        "rope_freqs.weight",
        &[2],
        GgmlType::from_id(0),
        vec![0, 0, 128, 63, 0, 0, 128, 63],
    );
    let error = ModelConfig::from_gguf(&GgufFile::from_bytes(writer.to_bytes().unwrap()).unwrap());
    assert!(
        matches!(error, Err(LoadError::ShapeMismatch { tensor, .. }) if tensor == "rope_freqs.weight")
    );
}

#[test]
fn h3_gguf_tensor_and_scaling_keys_together() {
    let config = |kind: &str| {
        let mut writer = tiny::llama().gguf_f32();
        let divisors = [1f32, 2.0, 4.0, 8.0].iter().flat_map(|v| v.to_le_bytes());
        writer.tensor(
            "rope_freqs.weight",
            &[4],
            GgmlType::from_id(0),
            divisors.collect(),
        );
        writer.set("llama.rope.scaling.type", Value::String(kind.to_owned()));
        writer.set("llama.rope.scaling.factor", Value::F32(2.0));
        ModelConfig::from_gguf(&GgufFile::from_bytes(writer.to_bytes().unwrap()).unwrap())
    };
    let divisors = vec![2.0, 4.0, 8.0, 16.0];
    let linear = config("linear").unwrap().rope_scaling;
    assert_eq!(linear, RopeScaling::PerFrequency { divisors });
    let error = config("yarn").unwrap_err();
    assert!(
        matches!(error, LoadError::UnsupportedValue { .. }),
        "{error}"
    );
}

#[test]
fn h3_partial_rotation() {
    let mut tiny = tiny::qwen2();
    tiny.config.rope_dim = 4;
    let model = Transformer::from_tensors(&tiny.config, &tiny.memory(), &device()).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 96).collect();
    // theta 1e6, two pairs of the four that a head has.
    let expected = partial_logits(&tiny, &tokens);
    assert!(distance(&logits_of(&model, &tokens), &expected) < 1e-4);
    assert_eq!(model.rope().frequencies().len(), 2);
}

fn partial_logits(tiny: &Tiny, tokens: &[u32]) -> Vec<Vec<f64>> {
    logits(tiny, &[1.0, 1e-3], tokens)
}

#[test]
fn h3_context_decides_dynamic_scaling_when_loading() {
    let mut tiny = tiny::llama();
    tiny.config.rope_scaling = RopeScaling::DynamicNtk {
        factor: 2.0,
        original_context: 2048,
    };
    let load = |options: &LoadOptions| {
        Transformer::from_tensors_with(&tiny.config, &tiny.memory(), options, &device()).unwrap()
    };
    let usual = load(&LoadOptions::new());
    let long = load(&LoadOptions::new().with_context(8192));
    assert_eq!(usual.spec().context, 2048);
    assert_eq!(long.spec().context, 8192);
    assert_ne!(usual.rope(), long.rope());
    // Keys of one are not keys of the other.
    assert_ne!(usual.spec().fingerprint, long.spec().fingerprint);
}
