use specdec_testkit::weights::{Family, tiny};
use std::collections::BTreeMap;

fn shapes(family: Family) -> BTreeMap<String, Vec<usize>> {
    tiny(family, 1)
        .tensors
        .into_iter()
        .map(|(name, shape, _)| (name, shape))
        .collect()
}

#[test]
fn names_and_shapes_are_those_of_the_families() {
    let llama = shapes(Family::Llama);
    assert_eq!(llama.len(), 1 + 2 * 9 + 2);
    assert_eq!(llama["model.embed_tokens.weight"], [288, 64]);
    assert_eq!(llama["lm_head.weight"], [288, 64]);
    assert_eq!(llama["model.layers.1.self_attn.k_proj.weight"], [32, 64]);
    assert_eq!(llama["model.layers.0.mlp.down_proj.weight"], [64, 160]);
    let qwen2 = shapes(Family::Qwen2);
    assert_eq!(qwen2["model.layers.0.self_attn.v_proj.bias"], [32]);
    assert!(!qwen2.contains_key("lm_head.weight"));
    let qwen3 = shapes(Family::Qwen3);
    assert_eq!(qwen3["model.layers.0.self_attn.q_norm.weight"], [32]);
    assert_eq!(qwen3["model.layers.0.self_attn.o_proj.weight"], [64, 128]);
    assert!(!qwen3.contains_key("model.layers.0.self_attn.q_proj.bias"));
}

#[test]
fn numbers_depend_on_seed_and_name_alone_and_are_of_the_right_size() {
    let (a, b, c) = (
        tiny(Family::Llama, 1),
        tiny(Family::Qwen2, 1),
        tiny(Family::Llama, 2),
    );
    let of = |m: &specdec_testkit::weights::TinyModel, name: &str| {
        m.tensors
            .iter()
            .find(|t| t.0 == name)
            .map(|t| t.2.clone())
            .expect("a tensor of this name")
    };
    let name = "model.layers.0.mlp.up_proj.weight";
    assert_eq!(of(&a, name), of(&b, name));
    assert_ne!(of(&a, name), of(&c, name));
    assert_ne!(of(&a, name), of(&a, "model.layers.0.mlp.gate_proj.weight"));
    for (name, shape, numbers) in &a.tensors {
        assert_eq!(shape.iter().product::<usize>(), numbers.len(), "{name}");
        assert!(numbers.iter().all(|x| x.is_finite()), "{name}");
    }
    let variance = of(&a, name).iter().map(|x| x * x).sum::<f32>() / of(&a, name).len() as f32;
    assert!((variance * 64.0 - 1.0).abs() < 0.1, "{variance}");
    assert!(
        a.config.contains(r#""model_type": "llama""#)
            && a.config.contains(r#""tie_word_embeddings": false"#)
    );
    assert_eq!(a.config.matches('{').count(), a.config.matches('}').count());
}
