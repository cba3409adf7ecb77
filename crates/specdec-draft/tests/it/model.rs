//! What the suites leave out: vocabularies and contexts of different size, and the cache itself.

use burn::prelude::*;
use specdec_core::{
    Block, Decoder, DraftContext, DraftRow, Drafter, FinishReason, FixedLength, KvCache, Phase,
    Request, SeqId, TargetModel, sampling::Sampler,
};
use specdec_draft::ModelDrafter;
use specdec_ragged::SlotCache;
use specdec_testkit::HashLm;
use std::sync::Arc;

fn target(vocab: usize, context: usize) -> HashLm {
    HashLm::new(vocab, &Device::flex()).with_context(context)
}

fn cache(model: &HashLm) -> SlotCache {
    SlotCache::new(model.spec()).expect("a cache")
}

fn decoder(model: &HashLm, draft: HashLm, k: usize) -> Decoder {
    let drafter = ModelDrafter::new(Arc::new(draft.clone()), cache(&draft));
    Decoder::builder(Arc::new(model.clone()))
        .cache(cache(model))
        .drafter(drafter)
        .controller(FixedLength(k))
        .build()
        .expect("it fits")
}

/// Field case F3 and eqspec C32: drafts end with the draft model's context, the target goes on to
/// the end of its own.
#[test]
fn f3_the_target_goes_on_alone_beyond_the_drafts_context() {
    let model = target(20, 64);
    for prompt_len in [1, 20, 30, 31, 32, 33, 50, 62, 63] {
        let prompt: Vec<u32> = (0..prompt_len).map(|i| (i * 7 + 3) % 20).collect();
        let mut decoder = decoder(&model, target(20, 32), 5);
        let done = decoder
            .generate(Request::new(prompt.clone()).max_new_tokens(200))
            .expect("a good request");
        let room = 64 - prompt.len();
        assert_eq!(
            done.tokens,
            model.greedy(&prompt, room),
            "prompt of {prompt_len}"
        );
        assert_eq!(done.finish, FinishReason::Length);
        // Drafts are for content that fits: none beyond 32 tokens of it.
        let fits = 32u64.saturating_sub(u64::from(prompt_len));
        assert!(done.stats.drafted <= fits, "{} drafted", done.stats.drafted);
        assert_eq!(
            done.stats.drafted > 0,
            prompt_len < 32,
            "prompt of {prompt_len}"
        );
    }
}

/// eqspec C26: a token that the draft model does not know ends drafting for that row, and for no
/// other.
#[test]
fn a_token_the_draft_does_not_know_ends_drafting_for_its_row() {
    let model = target(20, 200);
    let mut decoder = decoder(&model, target(10, 200), 3);
    let (foreign, known) = (vec![1, 15, 2], vec![1, 2, 3]);
    for prompt in [&foreign, &known] {
        decoder
            .submit(Request::new(prompt.clone()).max_new_tokens(30))
            .expect("a good request");
    }
    let done = decoder.run().expect("steps succeed");
    assert_eq!(done[0].tokens, model.greedy(&foreign, 30));
    assert_eq!(done[1].tokens, model.greedy(&known, 30));
    assert_eq!(done[0].stats.drafted, 0);
    assert!(done[1].stats.drafted > 0);
}

/// eqspec C25: a draft model with more tokens than the target proposes some that do not exist.
#[test]
fn a_draft_with_more_tokens_changes_nothing() {
    let model = target(10, 200);
    let mut decoder = decoder(&model, target(30, 200), 4);
    let done = decoder
        .generate(Request::new([3, 1]).max_new_tokens(40))
        .expect("good");
    assert_eq!(done.tokens, model.greedy(&[3, 1], 40));
}

/// Field case E1, the draft's side: after rounds of any acceptance its cache holds exactly the
/// content it was shown, with the values of a fresh one.
#[test]
fn e1_the_draft_cache_equals_a_fresh_one() {
    let model = target(20, 200);
    let mut drafter = ModelDrafter::new(Arc::new(model.clone()), cache(&model));
    let mut target_cache = cache(&model);
    let sampler = Sampler::greedy();
    let mut content: Vec<u32> = vec![4, 9, 2];
    for round in 0..12usize {
        let k = round % 5;
        if k > 0 {
            let rows = [DraftRow::new(SeqId(0), &content, 3, k, &sampler)];
            let cx = DraftContext {
                rows: &rows,
                target: &model,
                cache: &mut target_cache,
            };
            let draft = drafter.draft(cx).expect("it drafts");
            assert_eq!(draft.rows[0].tokens, model.greedy(&content, k));
            assert_eq!(drafter.cache().len(SeqId(0)), content.len());
            let held = drafter
                .cache()
                .export(SeqId(0), 0..content.len())
                .expect("committed");
            let mut fresh = cache(&model);
            let block = Block::single(SeqId(0), 0, &content, &Device::flex());
            let mut attend = fresh
                .begin(block.rows(), Phase::Prefill)
                .expect("a good row");
            model.forward(&block, &mut *attend, &[]).expect("a pass");
            drop(attend);
            fresh.commit(&[content.len()]).expect("staged");
            let fresh = fresh.export(SeqId(0), 0..content.len()).expect("committed");
            for ((k, v), (fresh_k, fresh_v)) in held.layers.iter().zip(&fresh.layers) {
                assert_eq!(k.to_data(), fresh_k.to_data());
                assert_eq!(v.to_data(), fresh_v.to_data());
            }
        }
        // Some drafts are accepted and the target says something else behind them.
        let accepted = if k == 0 { 0 } else { round % (k + 1) };
        let mut next = model.greedy(&content, accepted);
        next.push((round as u32 * 3) % 20);
        content.extend(next);
    }
}

/// A sequence that ended leaves nothing in the draft model's cache, and the others all of theirs.
#[test]
fn an_evicted_row_leaves_nothing_behind() {
    let model = target(20, 200);
    let mut drafter = ModelDrafter::new(Arc::new(model.clone()), cache(&model));
    let mut target_cache = cache(&model);
    let sampler = Sampler::greedy();
    let contents = [vec![4, 9, 2], vec![7, 7, 1, 3]];
    let rows: Vec<DraftRow<'_>> = (0..2)
        .map(|i| DraftRow::new(SeqId(i as u64), &contents[i], 3, 2, &sampler))
        .collect();
    let cx = DraftContext {
        rows: &rows,
        target: &model,
        cache: &mut target_cache,
    };
    drafter.draft(cx).expect("it drafts");
    drafter.evict(SeqId(0));
    assert_eq!(drafter.cache().len(SeqId(0)), 0);
    assert_eq!(drafter.cache().len(SeqId(1)), 4);
    assert!(drafter.cache().export(SeqId(1), 0..4).is_ok());
}
