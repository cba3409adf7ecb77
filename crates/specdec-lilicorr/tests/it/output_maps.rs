//! What a reduced vocabulary needs of the target: logits that are a linear map, but for rounding.

use crate::world::{config, model, target};
use burn::prelude::*;
use specdec_core::{Attend, Block, Forward, ModelSpec, Result, TargetModel};
use specdec_lilicorr::{DraftModelError, LiLiCorrDrafter};
use specdec_models::Transformer;

/// A target with another output map.
struct Changed {
    inner: Transformer,
    logits: fn(&Transformer, Tensor<2>) -> Tensor<2>,
}

impl TargetModel for Changed {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward> {
        self.inner.forward(block, attend, taps)
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        (self.logits)(&self.inner, hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.inner.embed(tokens)
    }
}

fn drafter(
    logits: fn(&Transformer, Tensor<2>) -> Tensor<2>,
) -> std::result::Result<LiLiCorrDrafter, DraftModelError> {
    let target = Changed {
        inner: target(3),
        logits,
    };
    let mut config = config(&target);
    config.draft_vocab = Some((0..200).collect());
    LiLiCorrDrafter::new(model(&config, 1), &target)
}

/// As int8 activations are: each row in 127 steps of its greatest number.
fn rounded(target: &Transformer, hidden: Tensor<2>) -> Tensor<2> {
    let step = hidden.clone().abs().max_dim(1) / 127.0;
    target.logits((hidden / step.clone()).round() * step)
}

fn capped(target: &Transformer, hidden: Tensor<2>) -> Tensor<2> {
    (target.logits(hidden) / 30.0).tanh() * 30.0
}

#[test]
fn rounded_activations_are_linear_enough() {
    drafter(|target, hidden| target.logits(hidden)).expect("a linear map");
    drafter(rounded).expect("rounding is no other map");
}

#[test]
fn a_soft_cap_is_refused() {
    let refused = drafter(capped).err();
    assert!(
        matches!(refused, Some(DraftModelError::NotLinear(_))),
        "{refused:?}"
    );
}
