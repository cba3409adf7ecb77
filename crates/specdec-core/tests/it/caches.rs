//! Caches that cannot do everything, prompts in pieces.

use crate::world::{decoder, hash_lm, plain, share};
use specdec_core::{
    Attend, BuildError, Decoder, Error, FixedLength, KvCache, KvSegment, Phase, Request, Result,
    RowSpan, SeqId, TargetModel, Token,
};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::{Continuations, Counted};
use specdec_testkit::scripted::ScriptedDrafter;
use std::ops::Range;
use std::sync::Arc;

/// A cache that must keep all it staged.
struct Rigid(VecCache);

impl KvCache for Rigid {
    fn len(&self, seq: SeqId) -> usize {
        self.0.len(seq)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        self.0.begin(rows, phase)
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.0.commit(keep)
    }

    fn rollback(&mut self) {
        self.0.rollback();
    }

    fn evict(&mut self, seq: SeqId) {
        self.0.evict(seq);
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        self.0.export(seq, range)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        self.0.import(seq, segment)
    }

    fn can_rewind(&self) -> bool {
        false
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

#[test]
fn e2_speculation_needs_a_cache_that_rewinds() {
    let model = hash_lm(20);
    let rigid = || Rigid(VecCache::new(model.spec()));
    let refused = Decoder::builder(Arc::new(model.clone()))
        .cache(rigid())
        .drafter(ScriptedDrafter::oracle(Continuations::default()))
        .build();
    let error = refused.expect_err("it cannot rewind");
    assert!(matches!(error, Error::Build(BuildError::CannotRewind)));
    assert!(error.to_string().contains("plain decoding works"));
    let mut plain = Decoder::builder(Arc::new(model.clone()))
        .cache(rigid())
        .build()
        .expect("plain");
    let done = plain
        .generate(Request::new([3, 1]).max_new_tokens(12))
        .expect("decoding");
    assert_eq!(done.tokens, model.greedy(&[3, 1], 12));
}

#[test]
fn a_decoder_needs_a_cache_and_a_chunk() {
    let none = Decoder::builder(Arc::new(hash_lm(20))).build();
    assert!(matches!(none, Err(Error::Build(BuildError::NoCache))));
    let model = hash_lm(20);
    let chunk = Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(model.spec()))
        .prefill_chunk(0)
        .build();
    assert!(matches!(
        chunk,
        Err(Error::Build(BuildError::Setting {
            setting: "prefill_chunk",
            ..
        }))
    ));
}

/// E3: one engine, prompts one after the other.
#[test]
fn e3_prompts_one_after_the_other() {
    let model = hash_lm(20);
    let target = share(model.clone());
    let prompts: Vec<Vec<Token>> = [24u32, 3, 60]
        .iter()
        .map(|&n| (0..n).map(|i| (i * i + n) % 20).collect())
        .collect();
    let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 30))));
    let mut engine = decoder(
        &target,
        ScriptedDrafter::sometimes(known, 20, 0.5, 3),
        FixedLength(4),
    );
    for prompt in &prompts {
        let done = engine.generate(Request::new(prompt.clone()).max_new_tokens(20));
        assert_eq!(done.expect("decoding").tokens, model.greedy(prompt, 20));
        assert_eq!(engine.cache().memory_bytes(), 0);
    }
}

/// I3: a prompt in chunks is the prompt.
#[test]
fn i3_chunks_of_any_size() {
    let model = hash_lm(20);
    let prompt: Vec<Token> = (0..90).map(|i| (i * i * 7 + i) % 20).collect();
    for chunk in [1, 7, 64, 1000] {
        let mut decoder = Decoder::builder(Arc::new(model.clone()))
            .cache(VecCache::new(model.spec()))
            .prefill_chunk(chunk)
            .build()
            .expect("the parts fit");
        let done = decoder.generate(Request::new(prompt.clone()).max_new_tokens(8));
        let done = done.expect("decoding");
        assert_eq!(done.tokens, model.greedy(&prompt, 8), "chunk {chunk}");
        assert_eq!(done.stats.prefilled, 89);
    }
}

/// Rows that come in together prefill no more than a chunk a step between them, and a row that runs
/// gets its token in each of these steps.
#[test]
fn a_step_prefills_a_chunk_over_all_rows() {
    let target = Counted::new(hash_lm(20));
    let calls = target.calls();
    let mut decoder = Decoder::builder(share(target))
        .cache(VecCache::new(hash_lm(20).spec()))
        .prefill_chunk(8)
        .build()
        .expect("the parts fit");
    let running = decoder
        .submit(Request::new([3]).max_new_tokens(40))
        .expect("a good request");
    decoder.step().expect("decoding");
    for first in 0..3 {
        let prompt: Vec<Token> = (first..first + 21).map(|t| t % 20).collect();
        let request = Request::new(prompt).max_new_tokens(2);
        decoder.submit(request).expect("a good request");
    }
    let mut steps = 0;
    while decoder.live().count() > 1 {
        let before = calls.tokens();
        let rows = decoder.live().count();
        let events = decoder.step().expect("decoding");
        let told = events.iter().filter(|e| e.seq() == running).count();
        assert_eq!(told, 1, "step {steps}");
        let computed = calls.tokens() - before;
        assert!(computed <= 8 + rows, "{computed} tokens in step {steps}");
        steps += 1;
    }
    // 60 prompt tokens in chunks of 8.
    assert!(steps >= 8, "{steps} steps");
}

/// A4: a sliding window on every layer or on some, drafts right half the time, long after the window
/// has filled.
#[test]
fn a4_sliding_windows() {
    for all in [false, true] {
        let model = hash_lm(20).with_window(16, all);
        let target = share(model.clone());
        let want = model.greedy(&[3, 1], 100);
        assert_ne!(want, hash_lm(20).greedy(&[3, 1], 100), "the window shows");
        assert_eq!(
            plain(&target, Request::new([3, 1]).max_new_tokens(100)).tokens,
            want
        );
        let known = Continuations::new([(vec![3, 1], want.clone())]);
        let drafter = ScriptedDrafter::sometimes(known, 20, 0.5, 1);
        let done = decoder(&target, drafter, FixedLength(6))
            .generate(Request::new([3, 1]).max_new_tokens(100))
            .expect("decoding");
        assert_eq!(done.tokens, want);
    }
}
