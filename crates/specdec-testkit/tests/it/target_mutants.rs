use crate::device;
use burn::prelude::*;
use specdec_core::{Attend, Block, Forward, ModelSpec, Result, TargetModel};
use specdec_testkit::conformance;
use specdec_testkit::{HashLm, VecCache};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    ColumnAsPosition,
    RemembersPasses,
    SkipsALayer,
    SeesTheWholeBlock,
    TapsInItsOwnOrder,
    TapsChangeTheResult,
    OneTapTooFew,
    LogitsTooNarrow,
    LogitsOfTheBatch,
    EmbeddingByPlace,
    HiddenTooWide,
    Infinite,
}

struct Mutant {
    inner: HashLm,
    bug: Bug,
    passes: AtomicU32,
}

/// Leaves out one layer.
struct Skip<'a>(&'a mut dyn Attend);

impl Attend for Skip<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        if layer == 3 {
            Ok(v)
        } else {
            self.0.attend(layer, q, k, v)
        }
    }
}

impl TargetModel for Mutant {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward> {
        let passes = self.passes.fetch_add(1, Ordering::Relaxed);
        let mut sorted = taps.to_vec();
        sorted.sort_unstable();
        let mut forward = match self.bug {
            Bug::ColumnAsPosition => {
                let mut wrong = Block::new(block.device());
                for (row, range) in block.rows().iter().zip(block.ranges()) {
                    wrong.push(row.seq, range.start, &block.tokens()[range]);
                }
                self.inner.forward(&wrong, attend, taps)?
            }
            Bug::SkipsALayer => self.inner.forward(block, &mut Skip(attend), taps)?,
            Bug::TapsInItsOwnOrder => self.inner.forward(block, attend, &sorted)?,
            _ => self.inner.forward(block, attend, taps)?,
        };
        let hidden = forward.hidden.clone();
        match self.bug {
            Bug::RemembersPasses => forward.hidden = hidden + passes as f32,
            Bug::SeesTheWholeBlock => forward.hidden = hidden.clone() + hidden.mean_dim(0),
            Bug::TapsChangeTheResult if !taps.is_empty() => forward.hidden = hidden + 1.0,
            Bug::OneTapTooFew => {
                forward.taps.pop();
            }
            Bug::HiddenTooWide => forward.hidden = hidden.repeat_dim(1, 2),
            Bug::Infinite => forward.hidden = hidden / 0.0,
            _ => {}
        }
        Ok(forward)
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let logits = self.inner.logits(hidden);
        let [n, v] = logits.dims();
        match self.bug {
            Bug::LogitsTooNarrow => logits.slice([0..n, 0..v - 1]),
            Bug::LogitsOfTheBatch => logits.clone() - logits.mean_dim(0),
            _ => logits,
        }
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let n = tokens.dims()[0] as i64;
        let embedded = self.inner.embed(tokens);
        if self.bug == Bug::EmbeddingByPlace {
            let place = Tensor::<1, Int>::arange(0..n, &device())
                .float()
                .unsqueeze_dim::<2>(1);
            return embedded + place;
        }
        embedded
    }
}

#[test]
fn every_planted_bug_is_found_by_the_right_check() {
    for (bug, checks) in [
        (
            Bug::ColumnAsPosition,
            &["a prompt in pieces is the prompt in one"][..],
        ),
        (Bug::RemembersPasses, &["nothing is kept between passes"]),
        (Bug::SkipsALayer, &["attend is called once for each layer"]),
        (
            Bug::SeesTheWholeBlock,
            &["a prompt in pieces is the prompt in one"],
        ),
        (Bug::TapsInItsOwnOrder, &["taps come in the order asked"]),
        (Bug::TapsChangeTheResult, &["taps change nothing"]),
        (Bug::OneTapTooFew, &["as many taps come as were asked for"]),
        (
            Bug::LogitsTooNarrow,
            &["logits have shape [N, V'], V' at least the vocabulary"],
        ),
        (
            Bug::LogitsOfTheBatch,
            &["logits of one state are those of many"],
        ),
        (
            Bug::EmbeddingByPlace,
            &["an embedding depends on its token alone"],
        ),
        (Bug::HiddenTooWide, &["hidden has shape [T, hidden]"]),
        (
            Bug::Infinite,
            &[
                "hidden states are numbers",
                "nothing is kept between passes",
            ],
        ),
    ] {
        let mutant = Mutant {
            inner: HashLm::new(20, &device()),
            bug,
            passes: AtomicU32::new(0),
        };
        match conformance::target(&mutant, VecCache::new) {
            Ok(_) => panic!("{bug:?} was not found"),
            Err(v) => assert!(checks.contains(&v.check), "{bug:?} was found by: {v}"),
        }
    }
}
