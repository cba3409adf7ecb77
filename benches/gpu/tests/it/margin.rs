//! What "the same tokens" means where the vendor's kernels round differently by shape: equal, up to a
//! place where the two best logits were closer than the margin.

use crate::world::{Target, finish, slots};
use specdec_core::{Completion, Decoder, Request, SamplingParams, Token};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Logits closer than this may swap places: the margin that the guide documents.
pub(crate) const MARGIN: f32 = 1e-2;

static TOKENS: AtomicUsize = AtomicUsize::new(0);
static TIES: AtomicUsize = AtomicUsize::new(0);
static PARTED: AtomicUsize = AtomicUsize::new(0);

/// What the comparisons of this run saw.
pub(crate) fn summary() -> String {
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    format!(
        "transformers: {} tokens compared with plain decoding, {} of them at places where the best two logits are closer \
         than {MARGIN}; {} texts parted, each at such a place",
        of(&TOKENS),
        of(&TIES),
        of(&PARTED),
    )
}

/// Plain decoding of prompts, each alone, with the two best logits at every place.
pub(crate) fn plain(target: &Target, prompts: &[Vec<Token>], new: usize) -> Vec<Completion> {
    let alone = |prompt: &Vec<Token>| plain_until(target, prompt, new, &BTreeSet::new());
    prompts.iter().map(alone).collect()
}

/// The same for one prompt, up to an end token.
pub(crate) fn plain_until(
    target: &Target,
    prompt: &[Token],
    new: usize,
    ends: &BTreeSet<Token>,
) -> Completion {
    let sampling = SamplingParams {
        logprobs: Some(2),
        ..SamplingParams::greedy()
    };
    let decoder = Decoder::builder(target.clone())
        .cache(slots(target.spec()))
        .build();
    let request = Request::new(prompt)
        .max_new_tokens(new)
        .end_tokens(ends.iter().copied());
    finish(
        decoder.expect("the parts fit"),
        [request.sampling(sampling)],
    )
    .remove(0)
}

/// Fails unless the tokens are the wanted ones, up to a place where the two best logits were closer
/// than the margin.
pub(crate) fn same(want: &Completion, got: &[Token], what: &str) {
    assert_eq!(
        want.logprobs.len(),
        want.tokens.len(),
        "the plain run reports its logits"
    );
    let gap = |at: usize| want.logprobs[at].top[0].logprob - want.logprobs[at].top[1].logprob;
    let ties = (0..want.tokens.len())
        .filter(|&at| gap(at) < MARGIN)
        .count();
    TOKENS.fetch_add(want.tokens.len(), Ordering::Relaxed);
    TIES.fetch_add(ties, Ordering::Relaxed);
    let equal = want
        .tokens
        .iter()
        .zip(got)
        .take_while(|(a, b)| a == b)
        .count();
    if equal == want.tokens.len() && equal == got.len() {
        return;
    }
    assert!(
        equal < want.tokens.len() && equal < got.len(),
        "{what}: {} tokens, not {}",
        got.len(),
        want.tokens.len()
    );
    let gap = gap(equal);
    assert!(
        gap < MARGIN,
        "{what}: token {equal} is {}, plainly {}, where the best two logits are {gap} apart",
        got[equal],
        want.tokens[equal],
    );
    PARTED.fetch_add(1, Ordering::Relaxed);
}
