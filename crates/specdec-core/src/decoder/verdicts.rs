//! What the target says about a block, brought to the host in one read.

use super::Decoder;
use crate::{CacheError, Error, Result, SeqId, Token};
use burn::prelude::*;
use burn::tensor::Transaction;

/// What the target says about each token of the block.
pub(super) enum Verdicts {
    /// The best token at each place, `[T]`, and whether another is close to it (nothing, where ties
    /// are not counted): all that plain greedy rows need.
    Best(Vec<Token>, Vec<bool>),
    /// The logits, `[T, V]` in one piece.
    Logits(Vec<f32>),
}

impl Decoder {
    /// The one device-to-host read of a step.
    pub(super) fn read(&self, hidden: Tensor<2>, ready: &[SeqId]) -> Result<Verdicts> {
        let vocab = self.target.spec().vocab;
        let mut logits = self.target.logits(hidden);
        let [tokens, width] = logits.dims();
        if width < vocab {
            return Err(CacheError::Shape {
                what: "the target's logits",
                got: vec![tokens, width],
                want: vec![tokens, vocab],
            }
            .into());
        }
        if width > vocab {
            logits = logits.slice([0..tokens, 0..vocab]);
        }
        if let Some(mask) = &self.suppress_mask {
            logits = logits + mask.clone();
        }
        let plain = |seq: &SeqId| self.pool[seq].sampler.is_plain_argmax();
        if ready.iter().all(plain) {
            // Backends disagree about NaN, and something is the largest even where all is -inf: a
            // pass with either is judged on the host, as it is beside rows that need the logits.
            let best = logits.clone().argmax(1);
            let largest = logits.clone().gather(1, best.clone());
            let nothing = largest.clone().equal_elem(f32::NEG_INFINITY);
            let odd = logits.clone().is_nan().any_dim(1).bool_or(nothing).any();
            let close = self.tie_margin.map(|margin| {
                let second = second_largest(&logits, &best);
                (largest - second).lower_elem(margin).int()
            });
            let mut read = Transaction::default().register(best).register(odd.int());
            if let Some(close) = close {
                read = read.register(close);
            }
            let read = read.try_execute().map_err(unreadable)?;
            let [best, odd, close @ ..] = read.as_slice() else {
                return Err(unreadable("too few tensors"));
            };
            if odd.iter::<i64>().all(|odd| odd == 0) {
                let best = best.iter::<i64>().map(|t| t as Token);
                let close = close.iter().flat_map(|all| all.iter::<i64>());
                let close = close.map(|close| close != 0);
                return Ok(Verdicts::Best(best.collect(), close.collect()));
            }
        }
        let logits = logits
            .into_data()
            .try_into_vec_as::<f32>()
            .map_err(unreadable)?;
        Ok(Verdicts::Logits(logits))
    }
}

fn unreadable(e: impl std::fmt::Debug) -> Error {
    Error::Target(format!("its logits cannot be read: {e:?}").into())
}

/// The largest logit beside the one at `best`, `[T, V]` and `[T, 1]` to `[T, 1]`.
fn second_largest(logits: &Tensor<2>, best: &Tensor<2, Int>) -> Tensor<2> {
    let shape = logits.dims();
    let ids = Tensor::<1, Int>::arange(0..shape[1] as i64, &logits.device());
    let ids = ids.unsqueeze::<2>().expand(shape);
    let others = logits.clone();
    others
        .mask_fill(ids.equal(best.clone().expand(shape)), f32::NEG_INFINITY)
        .max_dim(1)
}

/// Whether the two best logits are closer than the margin.
pub(super) fn is_tie(logits: &[f32], margin: f32) -> bool {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &l in logits {
        if l > best {
            second = best;
            best = l;
        } else if l > second {
            second = l;
        }
    }
    best - second < margin
}
