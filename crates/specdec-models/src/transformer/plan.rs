//! Which tensors a configuration needs, and of which shapes.

use crate::ModelConfig;

/// The names and shapes of one layer's tensors.
pub(super) struct LayerNames<'a> {
    config: &'a ModelConfig,
    layer: usize,
}

/// A tensor to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needed {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
}

impl Needed {
    pub(super) fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
        }
    }

    /// The bias of a weight.
    pub(super) fn bias(&self) -> Self {
        let stem = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        Self::new(format!("{stem}.bias"), &self.shape[..1])
    }
}

impl<'a> LayerNames<'a> {
    pub(super) fn new(config: &'a ModelConfig, layer: usize) -> Self {
        Self { config, layer }
    }

    fn weight(&self, name: &str, shape: &[usize]) -> Needed {
        Needed::new(format!("model.layers.{}.{name}.weight", self.layer), shape)
    }

    pub(super) fn attention_norm(&self) -> Needed {
        self.weight("input_layernorm", &[self.config.hidden])
    }

    pub(super) fn mlp_norm(&self) -> Needed {
        self.weight("post_attention_layernorm", &[self.config.hidden])
    }

    pub(super) fn qkv(&self) -> [Needed; 3] {
        let c = self.config;
        [
            self.weight("self_attn.q_proj", &[c.heads * c.head_dim, c.hidden]),
            self.weight("self_attn.k_proj", &[c.kv_heads * c.head_dim, c.hidden]),
            self.weight("self_attn.v_proj", &[c.kv_heads * c.head_dim, c.hidden]),
        ]
    }

    pub(super) fn head_norms(&self) -> Option<[Needed; 2]> {
        let norm = |name| self.weight(name, &[self.config.head_dim]);
        let both = || [norm("self_attn.q_norm"), norm("self_attn.k_norm")];
        self.config.qk_norm.then(both)
    }

    pub(super) fn output(&self) -> [Needed; 1] {
        let c = self.config;
        [self.weight("self_attn.o_proj", &[c.hidden, c.heads * c.head_dim])]
    }

    pub(super) fn gate_up(&self) -> [Needed; 2] {
        let c = self.config;
        [
            self.weight("mlp.gate_proj", &[c.intermediate, c.hidden]),
            self.weight("mlp.up_proj", &[c.intermediate, c.hidden]),
        ]
    }

    pub(super) fn down(&self) -> [Needed; 1] {
        [self.weight(
            "mlp.down_proj",
            &[self.config.hidden, self.config.intermediate],
        )]
    }

    /// All of them.
    fn all(&self) -> Vec<Needed> {
        let c = self.config;
        let mut all = vec![self.attention_norm(), self.mlp_norm()];
        let mut maps = |weights: &[Needed], bias: bool| {
            all.extend_from_slice(weights);
            if bias {
                all.extend(weights.iter().map(Needed::bias));
            }
        };
        maps(&self.qkv(), c.qkv_bias);
        maps(&self.output(), c.output_bias);
        maps(&self.gate_up(), c.mlp_bias);
        maps(&self.down(), c.mlp_bias);
        all.extend(self.head_norms().into_iter().flatten());
        all
    }
}

pub(super) fn embedding(config: &ModelConfig) -> Needed {
    Needed::new("model.embed_tokens.weight", &[config.vocab, config.hidden])
}

pub(super) fn output(config: &ModelConfig) -> Option<Needed> {
    (!config.tied).then(|| Needed::new("lm_head.weight", &[config.vocab, config.hidden]))
}

pub(super) fn norm(config: &ModelConfig) -> Needed {
    Needed::new("model.norm.weight", &[config.hidden])
}

/// Whether a tensor has one row for each token and may have more (padding).
pub(super) fn has_token_rows(needed: &Needed) -> bool {
    matches!(
        needed.name.as_str(),
        "model.embed_tokens.weight" | "lm_head.weight"
    )
}

/// Every tensor of a model, lazily: a configuration with an absurd number of layers fails at its
/// first absent one.
pub(super) fn all(config: &ModelConfig) -> impl Iterator<Item = Needed> + '_ {
    [embedding(config), norm(config)]
        .into_iter()
        .chain(output(config))
        .chain((0..config.layers).flat_map(|layer| LayerNames::new(config, layer).all()))
}
