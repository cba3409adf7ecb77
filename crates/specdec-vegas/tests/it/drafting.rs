//! Drafts: how many tokens, whose, and how many of them are accepted.

use crate::hooks::{spied, tails};
use crate::world::{
    Target, bare, by_hand, decoder, device, drafts, fill, flat, hash, plain, prefilled, prompt,
    run, slots, span, transformer, vegas,
};
use specdec_core::{
    BuildError, Decoder, Drafter, FixedLength, KvCache, ModelSpec, Phase, Rejection, Request,
    SamplingParams, SeqId, TargetModel,
};
use specdec_ragged::SlotCache;
use specdec_testkit::HashLm;
use specdec_testkit::oracle::Traced;
use specdec_vegas::{Everything, Vegas, VegasConfig, VegasDrafter};
use std::sync::Arc;

/// All keys, by rule, by ratio, and by a minimum above the context: every draft is accepted, greedy,
/// with shared noise, and under rejection.
#[test]
fn t06_with_every_key_every_draft_is_accepted() {
    let everything = |target: &Target| {
        Vegas::with_select(
            slots(target.spec()),
            target.spec(),
            bare(0.02, 1),
            Everything,
        )
    };
    type Make<'a> = &'a dyn Fn(&Target) -> Box<dyn KvCache>;
    let caches: [Make<'_>; 4] = [
        &|target| Box::new(everything(target)),
        &|target| Box::new(vegas(target, bare(1.0, 1))),
        &|target| Box::new(vegas(target, bare(0.02, 4096))),
        &|target| Box::new(slots(target.spec())),
    ];
    for (target, vocab) in [(transformer(), 288), (hash(20, 512), 20)] {
        for cache in caches {
            for temperature in [0.0, 0.8] {
                for rejection in [false, true] {
                    let builder = Decoder::builder(Arc::clone(&target))
                        .cache(Boxed(cache(&target)))
                        .drafter(VegasDrafter::new())
                        .controller(FixedLength(5));
                    let builder = match rejection {
                        true => builder.acceptance(Rejection),
                        false => builder,
                    };
                    let mut decoder = builder.build().expect("the parts fit");
                    let mut sampling = SamplingParams::sampled(temperature);
                    sampling.seed = Some(4);
                    let request = Request::new(prompt(23, vocab)).max_new_tokens(32);
                    let request = request.sampling(sampling);
                    let done = decoder.generate(request).expect("decoding");
                    let stats = &done.stats;
                    assert!(stats.drafted >= 25, "{stats:?}");
                    assert_eq!(stats.accepted, stats.drafted, "{stats:?}");
                }
            }
        }
    }
}

/// A boxed cache is a cache.
struct Boxed(Box<dyn KvCache>);

impl KvCache for Boxed {
    fn len(&self, seq: SeqId) -> usize {
        self.0.len(seq)
    }
    fn begin<'a>(
        &'a mut self,
        rows: &[specdec_core::RowSpan],
        phase: Phase,
    ) -> specdec_core::Result<Box<dyn specdec_core::Attend + 'a>> {
        self.0.begin(rows, phase)
    }
    fn commit(&mut self, keep: &[usize]) -> specdec_core::Result<()> {
        self.0.commit(keep)
    }
    fn rollback(&mut self) {
        self.0.rollback();
    }
    fn evict(&mut self, seq: SeqId) {
        self.0.evict(seq);
    }
    fn export(
        &self,
        seq: SeqId,
        range: std::ops::Range<usize>,
    ) -> specdec_core::Result<specdec_core::KvSegment> {
        self.0.export(seq, range)
    }
    fn import(
        &mut self,
        seq: SeqId,
        segment: &specdec_core::KvSegment,
    ) -> specdec_core::Result<()> {
        self.0.import(seq, segment)
    }
    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

/// Fewer candidates than the minimum: nothing is collected, everything is attended to and accepted.
#[test]
fn t07_a_context_shorter_than_the_minimum() {
    let target = hash(20, 512);
    let (inner, log) = spied(target.spec());
    let config = VegasConfig::paper().check().expect("a good config");
    assert_eq!(config.budget(100, 100), 100);
    let cache = Vegas::new(inner, target.spec(), config);
    let meter = cache.meter();
    let mut decoder = decoder(&target, cache, 6);
    let request = Request::new(prompt(100, 20)).max_new_tokens(60);
    let done = decoder.generate(request).expect("decoding");
    assert_eq!(done.stats.accepted, done.stats.drafted);
    assert!(tails(&log, 0).iter().all(|(_, tail)| tail.is_none()));
    assert!(
        log.lock()
            .expect("no panic")
            .iter()
            .all(|b| b.selection.queries.is_empty())
    );
    let stats = meter.read();
    assert_eq!(
        (stats.collected_rows, stats.sets, stats.sparse_rows),
        (0, 0, 0)
    );
    assert_eq!(stats.attended_share(), Some(1.0));
}

/// Rows of 5 and of 300 positions: each as if alone, with the tails of its own acceptance.
#[test]
fn t12_a_ragged_batch() {
    let spec = by_hand(2, 2, 1);
    let config = VegasConfig {
        min: 256,
        ..VegasConfig::paper()
    };
    let config = config.check().expect("a good config");
    assert_eq!((config.budget(10, 6), config.budget(305, 301)), (6, 256));
    let (inner, log) = spied(&spec);
    let mut cache = Vegas::new(inner, &spec, config);
    fill(&mut cache, 0, 5, &spec);
    fill(&mut cache, 1, 300, &spec);
    let rows = [span(0, 5, 5), span(1, 300, 5)];
    flat(&mut cache, &rows, Phase::Verify, &spec);
    cache.commit(&[1, 5]).expect("a commit");
    for j in 0..4 {
        let rows = [span(0, 6 + j, 1), span(1, 305 + j, 1)];
        flat(&mut cache, &rows, Phase::Draft, &spec);
    }
    cache.rollback();
    // Row 0 keeps all six candidates: its tail begins where nothing is left out.
    assert_eq!(tails(&log, 0), [(6, None), (7, None), (8, None), (9, None)]);
    let tail = Some(301);
    assert_eq!(
        tails(&log, 1),
        [(305, tail), (306, tail), (307, tail), (308, tail)]
    );

    // Decoded together, each row has the drafts and rounds it has alone.
    let target = hash(20, 512);
    let (inner, config) = (slots(target.spec()), bare(0.07, 40));
    let together = Vegas::new(inner, target.spec(), config.clone());
    let prompts = [prompt(6, 20), prompt(301, 20)];
    let rounds = |cache: Vegas<SlotCache>, prompts: &[Vec<u32>]| {
        let controller = Traced::new(FixedLength(4));
        let trace = controller.trace();
        let mut decoder = Decoder::builder(Arc::clone(&target))
            .cache(cache)
            .drafter(VegasDrafter::new())
            .controller(controller)
            .prefill_chunk(1000)
            .build()
            .expect("the parts fit");
        for prompt in prompts {
            let request = Request::new(prompt.clone()).max_new_tokens(60);
            decoder.submit(request).expect("a good request");
        }
        let done = run(&mut decoder, |_| {});
        let of = |(seq, done): (SeqId, specdec_core::Completion)| (done.tokens, trace.of(seq));
        done.into_iter().map(of).collect::<Vec<_>>()
    };
    let together = rounds(together, &prompts);
    for (row, prompt) in prompts.iter().enumerate() {
        let alone = rounds(vegas(&target, config.clone()), std::slice::from_ref(prompt));
        assert_eq!(together[row], alone[0], "row {row}");
    }
    assert!(together[1].1.iter().any(|round| round.n < round.k));
}

/// Ends inside accepted drafts, limits and the end of the context, as plain decoding has them.
#[test]
fn t21_ends_and_limits() {
    let model = HashLm::new(20, &device())
        .with_context(64)
        .with_end(7, 0.04);
    let target: Target = Arc::new(model);
    let mut reasons = std::collections::BTreeSet::new();
    for len in 1..64 {
        for max_new in [3, 500] {
            let request = || {
                let prompt = Request::new(prompt(len, 20)).max_new_tokens(max_new);
                prompt.end_tokens([7])
            };
            let want = plain(&target, request());
            for config in [bare(1.0, 1), bare(0.1, 2)] {
                let mut decoder = decoder(&target, vegas(&target, config), 6);
                let got = decoder.generate(request()).expect("decoding");
                assert_eq!(
                    specdec_testkit::oracle::difference(&want, &got),
                    None,
                    "{len}"
                );
                reasons.insert(format!("{:?} {}", got.finish, len + got.tokens.len() == 64));
            }
        }
    }
    assert!(reasons.len() >= 3, "{reasons:?}");
}

/// A draft never reaches beyond the context, whatever it is asked for; rows beside it do as they like.
#[test]
fn t21_drafts_shrink_at_the_end_of_the_context() {
    let model = HashLm::new(20, &device()).with_context(32);
    let target: Target = Arc::new(model.clone());
    let tokens: Vec<Vec<u32>> = [31, 30, 32, 27, 5].map(|len| prompt(len, 20)).to_vec();
    let mut cache = vegas(&target, bare(1.0, 1));
    for (seq, tokens) in (0..).zip(&tokens) {
        prefilled(&target, &mut cache, seq, &tokens[..tokens.len() - 1]);
    }
    let drafted = drafts(&target, &mut cache, &tokens, 6);
    let lengths: Vec<usize> = drafted.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, 2, 0, 5, 6]);
    for (tokens, drafted) in tokens.iter().zip(&drafted) {
        assert_eq!(*drafted, model.greedy(tokens, drafted.len()));
    }
    // Everything was taken back, and a pass can begin.
    for (seq, tokens) in (0..).zip(&tokens) {
        assert_eq!(cache.len(SeqId(seq)), tokens.len() - 1);
    }
    drop(
        cache
            .begin(&[span(4, 4, 1)], Phase::Verify)
            .expect("no pass is open"),
    );
}

/// Without memory for it a row goes without a draft.
#[test]
fn rows_without_memory_are_not_drafted_for() {
    let target = hash(20, 512);
    let options = specdec_ragged::SlotOptions {
        chunk: 4,
        max_positions: Some(20),
        ..Default::default()
    };
    let inner = SlotCache::with_options(target.spec(), &options).expect("good options");
    let mut cache = Vegas::new(inner, target.spec(), bare(1.0, 1));
    let tokens = vec![prompt(5, 20), prompt(8, 20)];
    for (seq, tokens) in (0..).zip(&tokens) {
        prefilled(&target, &mut cache, seq, &tokens[..tokens.len() - 1]);
    }
    let lengths: Vec<usize> = drafts(&target, &mut cache, &tokens, 6)
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(lengths, [6, 0]);
}

/// Whichever place a request has among the rows, its drafts are the same.
#[test]
fn t25_rows_in_any_order() {
    let target = transformer();
    let prompts: Vec<Vec<u32>> = [40, 9, 25, 33].map(|len| prompt(len, 288)).to_vec();
    let mut sampling = SamplingParams::sampled(0.7);
    sampling.seed = Some(11);
    let decode = |order: &[usize], scheduled: bool| {
        let builder = Decoder::builder(Arc::clone(&target))
            .cache(vegas(&target, bare(0.1, 2)))
            .drafter(VegasDrafter::new())
            .controller(FixedLength(3))
            .acceptance(Rejection);
        let builder = match scheduled {
            true => builder.scheduler(specdec_testkit::scripted::RandomScheduler::new(3)),
            false => builder,
        };
        let mut decoder = builder.build().expect("the parts fit");
        for &at in order {
            let request = Request::new(prompts[at].clone()).max_new_tokens(20);
            decoder
                .submit(request.sampling(sampling.clone()))
                .expect("a good request");
        }
        let done = run(&mut decoder, |_| {});
        let mut rows: Vec<_> = order.iter().zip(done.into_values()).collect();
        rows.sort_by_key(|(at, _)| **at);
        let of =
            |(_, done): (&usize, specdec_core::Completion)| (done.tokens, done.stats.by_position);
        rows.into_iter().map(of).collect::<Vec<_>>()
    };
    let first = decode(&[0, 1, 2, 3], false);
    assert_eq!(decode(&[3, 1, 0, 2], false), first);
    // And when a random part of them runs in each step, in random order.
    assert_eq!(decode(&[2, 0, 3, 1], true), first);
}

/// A cheaper copy drafts in the target's place, by its own name; its entries are never kept.
#[test]
fn another_model_may_draft() {
    let target = HashLm::new(20, &device());
    let copy: Target = Arc::new(target.clone().with_mistakes(0.4, 5));
    let target: Target = Arc::new(target);
    let want = plain(&target, Request::new(prompt(30, 20)).max_new_tokens(50));
    let mut decoder = Decoder::builder(Arc::clone(&target))
        .cache(vegas(&target, bare(1.0, 1)))
        .drafter(VegasDrafter::new().with_model(copy, "copy"))
        .controller(FixedLength(4))
        .build()
        .expect("the parts fit");
    let request = Request::new(prompt(30, 20)).max_new_tokens(50);
    let done = decoder.generate(request).expect("decoding");
    assert_eq!((done.tokens, done.drafter), (want.tokens, Some("copy")));
    assert!(done.stats.accepted > 0 && done.stats.accepted < done.stats.drafted);
}

/// A model of another shape is refused when the decoder is built.
#[test]
fn a_model_of_another_shape_is_refused() {
    let target: Target = Arc::new(HashLm::new(20, &device()));
    let build = |model: HashLm| {
        Decoder::builder(Arc::clone(&target))
            .cache(slots(target.spec()))
            .drafter(VegasDrafter::new().with_model(Arc::new(model), "copy"))
            .build()
    };
    let error = |model: HashLm| match build(model) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    };
    let like = HashLm::new(20, &device());
    assert!(build(like.clone()).is_ok());
    assert!(error(HashLm::new(21, &device())).contains("vocabular"));
    assert!(error(like.clone().with_heads(4, 2)).contains("query heads is 4, the target's is 1"));
    assert!(error(like.with_window(3, true)).contains("sliding windows"));
    let checked = |change: fn(&mut ModelSpec)| {
        struct Dressed(ModelSpec, HashLm);
        impl TargetModel for Dressed {
            fn spec(&self) -> &ModelSpec {
                &self.0
            }
            fn forward(
                &self,
                block: &specdec_core::Block,
                attend: &mut dyn specdec_core::Attend,
                taps: &[usize],
            ) -> specdec_core::Result<specdec_core::Forward> {
                self.1.forward(block, attend, taps)
            }
            fn logits(&self, hidden: burn::Tensor<2>) -> burn::Tensor<2> {
                self.1.logits(hidden)
            }
            fn embed(&self, tokens: burn::Tensor<1, burn::tensor::Int>) -> burn::Tensor<2> {
                self.1.embed(tokens)
            }
        }
        let mut spec = target.spec().clone();
        change(&mut spec);
        let model = Dressed(spec, HashLm::new(20, &device()));
        let drafter = VegasDrafter::new().with_model(Arc::new(model), "copy");
        match drafter.check(target.spec()) {
            Err(BuildError::Shape { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(checked(|spec| spec.layers = 3), "number of layers");
    assert_eq!(checked(|spec| spec.head_dim = 8), "head dimension");
    assert_eq!(checked(|spec| spec.scale = None), "attention scale");
    assert!(VegasDrafter::new().with_entropy_limit(-0.1).is_err());
    assert!(VegasDrafter::new().with_entropy_limit(f64::NAN).is_err());
}
