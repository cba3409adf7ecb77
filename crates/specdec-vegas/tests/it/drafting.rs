//! Drafts: which keys, how many tokens, whose.

use crate::world::{
    Begun, Log, Recording, Target, bare, by_hand, device, fill, flat, plain, prompt, run, slots,
    span, spied, transformer, vegas,
};
use specdec_core::{
    BuildError, Decoder, DraftContext, DraftRow, Drafter, FirstCome, FixedLength, KvCache,
    ModelSpec, Phase, Rejection, Request, SamplingParams, SeqId, TargetModel, sampling::Sampler,
};
use specdec_ragged::SlotCache;
use specdec_testkit::HashLm;
use specdec_testkit::oracle::Traced;
use specdec_vegas::{Everything, Random, Ranked, Vegas, VegasConfig, VegasDrafter};
use std::sync::Arc;

fn hash(vocab: usize, context: usize) -> Target {
    Arc::new(HashLm::new(vocab, &device()).with_context(context))
}

fn decoder(target: &Target, cache: impl KvCache + 'static, k: usize) -> Decoder {
    Decoder::builder(Arc::clone(target))
        .cache(cache)
        .drafter(VegasDrafter::new())
        .controller(FixedLength(k))
        .scheduler(FirstCome { max_rows: 8 })
        .prefill_chunk(64)
        .build()
        .expect("the parts fit")
}

/// The draft passes a spy saw, each row's first position and tail (`None`: it saw everything).
fn tails(log: &Log<Begun>, seq: u64) -> Vec<(usize, Option<usize>)> {
    let log = log.lock().expect("no panic");
    let drafts = log.iter().filter(|begun| begun.phase == Phase::Draft);
    drafts
        .flat_map(|begun| {
            let rows = begun
                .rows
                .iter()
                .enumerate()
                .filter(|(_, row)| row.seq.0 == seq);
            rows.map(|(at, row)| (row.start, begun.selection.row(at).map(|keys| keys.tail())))
        })
        .collect()
}

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

/// In a run with many rejections each draft attends to the candidates of the verify pass before it.
#[test]
fn t13_a_rejection_refreshes_the_keys() {
    // By hand: two verify passes that look at different keys, the second with all drafts rejected.
    let spec = by_hand(1, 1, 1);
    let (inner, log) = spied(&spec);
    let (rule, asked) = Recording::new(Ranked::default());
    let mut cache = Vegas::with_select(inner, &spec, bare(0.1, 1), rule);
    fill(&mut cache, 0, 10, &spec);
    let mut verify = |len: usize, keep: usize, looked: usize| {
        let start = cache.len(SeqId(0));
        crate::world::pass(&mut cache, &[span(0, start, len)], Phase::Verify, 1, |_| {
            let at = |t: usize| if start + t == looked { 9.0 } else { 0.0 };
            let k = crate::world::tensor(len, 1, |t, _| [at(t), 0.0, 0.0, 0.0]);
            let q = crate::world::tensor(len, 1, |_, _| [1.0, 0.0, 0.0, 0.0]);
            [q, k.clone(), k]
        });
        cache.commit(&[keep]).expect("a commit");
        let start = cache.len(SeqId(0));
        flat(&mut cache, &[span(0, start, 1)], Phase::Draft, &spec);
        cache.rollback();
    };
    verify(5, 5, 10);
    // The anchor at 15 and four drafts, all rejected: only the anchor stays.
    verify(5, 1, 15);
    let asked = asked.lock().expect("no panic");
    assert_eq!((asked[0].count, &asked[0].chosen), (11, &Some(vec![0, 10])));
    assert_eq!((asked[1].count, asked[1].keys), (16, 20));
    assert!(
        asked[1]
            .chosen
            .as_ref()
            .is_some_and(|keys| keys.contains(&15))
    );
    assert_eq!(tails(&log, 0), [(15, Some(11)), (16, Some(16))]);
    drop(asked);

    // In decoding, of every length of acceptance.
    let target = hash(5, 512);
    let (inner, log) = spied(target.spec());
    let cache = Vegas::with_select(inner, target.spec(), bare(0.3, 1), Random::default());
    let done = decoder(&target, cache, 4).generate(Request::new(prompt(30, 5)).max_new_tokens(80));
    let done = done.expect("decoding");
    let accepted: Vec<u64> = done.stats.by_position.iter().map(|p| p.accepted).collect();
    assert!(accepted[0] > accepted[3], "{accepted:?}");
    let mut wanted = None;
    let mut drafts = 0;
    for begun in log.lock().expect("no panic").iter() {
        let row = begun.rows[0];
        match begun.phase {
            Phase::Prefill => wanted = Some(row.start + row.len),
            Phase::Draft => {
                drafts += 1;
                let tail = begun.selection.row(0).map(|keys| keys.tail());
                assert_eq!(tail, wanted, "at {}", row.start);
            }
            _ => wanted = Some(row.start + 1),
        }
    }
    assert!(drafts > 80, "{drafts}");
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

fn drafts(
    target: &Target,
    cache: &mut dyn KvCache,
    tokens: &[Vec<u32>],
    k: usize,
) -> Vec<Vec<u32>> {
    let sampler = Sampler::greedy();
    let rows: Vec<DraftRow<'_>> = (0..)
        .zip(tokens)
        .map(|(seq, tokens)| DraftRow::new(SeqId(seq), tokens, 1, k, &sampler))
        .collect();
    let cx = DraftContext {
        rows: &rows,
        target: &**target,
        cache,
    };
    let draft = VegasDrafter::new().draft(cx).expect("a draft");
    draft.rows.into_iter().map(|row| row.tokens).collect()
}

fn prefilled(target: &Target, cache: &mut dyn KvCache, seq: u64, tokens: &[u32]) {
    let spec = target.spec();
    let block = specdec_core::Block::single(SeqId(seq), 0, tokens, &spec.device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("a pass");
    target
        .forward(&block, &mut *attend, &[])
        .expect("a forward");
    drop(attend);
    cache.commit(&[tokens.len()]).expect("a commit");
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

/// The prompt in pieces: the same tokens, though the last piece alone decides what drafts see first.
#[test]
fn t27_a_prompt_in_pieces() {
    let target = hash(20, 1024);
    let request = || Request::new(prompt(1000, 20)).max_new_tokens(20);
    let want = plain(&target, request());
    for chunk in [1000, 250, 998, 995] {
        let (inner, log) = spied(target.spec());
        let cache = Vegas::new(inner, target.spec(), bare(0.07, 16));
        let mut decoder = Decoder::builder(Arc::clone(&target))
            .cache(cache)
            .drafter(VegasDrafter::new())
            .controller(FixedLength(4))
            .prefill_chunk(chunk)
            .build()
            .expect("the parts fit");
        let done = decoder.generate(request()).expect("decoding");
        assert_eq!(done.tokens, want.tokens, "pieces of {chunk}");
        // All prompt tokens but the anchor are candidates, however they came.
        assert_eq!(tails(&log, 0)[0], (999, Some(999)), "pieces of {chunk}");
    }
}

/// An imported prefix has no scores: drafts see everything until the next pass, then they do not.
#[test]
fn t27_an_imported_prefix() {
    let model = HashLm::new(20, &device());
    let target: Target = Arc::new(model.clone());
    let (inner, log) = spied(target.spec());
    let mut cache = Vegas::new(inner, target.spec(), bare(0.1, 2));
    let tokens = vec![prompt(40, 20)];
    prefilled(&target, &mut cache, 9, &tokens[0][..39]);
    let segment = cache.export(SeqId(9), 0..39).expect("a copy");
    cache.import(SeqId(0), &segment).expect("a segment");
    let drafted = drafts(&target, &mut cache, &tokens, 3);
    assert_eq!(drafted[0], model.greedy(&tokens[0], 3));
    assert_eq!(tails(&log, 0), [(39, None), (40, None), (41, None)]);
    // A pass over the anchor, and there are scores.
    flat_like(&target, &mut cache, 39, &tokens[0][39..]);
    let mut longer = tokens.clone();
    longer[0].push(3);
    drafts(&target, &mut cache, &longer, 1);
    assert_eq!(tails(&log, 0).last(), Some(&(40, Some(40))));
    // More is imported: what was known no longer covers the sequence.
    let mut more = segment.clone();
    more.range = 40..79;
    cache.import(SeqId(0), &more).expect("a segment");
    longer[0].extend(prompt(39, 20));
    drafts(&target, &mut cache, &longer, 1);
    assert_eq!(tails(&log, 0).last(), Some(&(79, None)));
    // An evicted sequence starts anew.
    cache.evict(SeqId(0));
    prefilled(&target, &mut cache, 0, &longer[0][..2]);
    drafts(&target, &mut cache, &[longer[0][..3].to_vec()], 1);
    assert_eq!(tails(&log, 0).last(), Some(&(2, None)));
}

fn flat_like(target: &Target, cache: &mut dyn KvCache, start: usize, tokens: &[u32]) {
    let block = specdec_core::Block::single(SeqId(0), start, tokens, &target.spec().device);
    let mut attend = cache.begin(block.rows(), Phase::Verify).expect("a pass");
    target
        .forward(&block, &mut *attend, &[])
        .expect("a forward");
    drop(attend);
    cache.commit(&[tokens.len()]).expect("a commit");
}

/// Layers with a window see their whole window; the others see their keys.
#[test]
fn windows_are_drafted_densely() {
    let mut spec = by_hand(3, 1, 1);
    spec.windows = vec![Some(4), None, Some(30)];
    let (inner, log) = spied(&spec);
    let mut cache = Vegas::new(inner, &spec, bare(0.1, 1));
    fill(&mut cache, 0, 20, &spec);
    let out = flat(&mut cache, &[span(0, 20, 1)], Phase::Draft, &spec);
    cache.rollback();
    let begun = log.lock().expect("no panic");
    let keys = begun
        .last()
        .and_then(|b| b.selection.row(0))
        .expect("a sparse row");
    assert_eq!(
        keys.lists().map(|(layer, _)| layer).collect::<Vec<_>>(),
        [1]
    );
    let mean = |from: usize| (from..=20).sum::<usize>() as f32 / (21 - from) as f32;
    assert_eq!((out[0][0], out[2][0]), (mean(17), mean(0)));
    assert_eq!(out[1][0], (0.0 + 1.0 + 20.0) / 3.0);
}

/// Plain passes rank again only after some positions; a pass with drafts always does.
#[test]
fn plain_passes_refresh_now_and_then() {
    let spec = by_hand(1, 1, 1);
    let config = VegasConfig {
        ratio: 0.1,
        min: 1,
        plain_refresh: 3,
        ..VegasConfig::paper()
    };
    let config = config.check().expect("a good config");
    let (inner, log) = spied(&spec);
    let mut cache = Vegas::new(inner, &spec, config);
    let meter = cache.meter();
    fill(&mut cache, 0, 20, &spec);
    let mut step = |len: usize| {
        let start = cache.len(SeqId(0));
        flat(&mut cache, &[span(0, start, len)], Phase::Verify, &spec);
        cache.commit(&[len]).expect("a commit");
        flat(&mut cache, &[span(0, start + len, 1)], Phase::Draft, &spec);
        cache.rollback();
    };
    [1, 1, 1, 1, 2, 1].into_iter().for_each(&mut step);
    let want = [(21, 20), (22, 20), (23, 23), (24, 23), (26, 25), (27, 25)];
    assert_eq!(
        tails(&log, 0),
        want.map(|(start, tail)| (start, Some(tail)))
    );
    assert_eq!(meter.read().collected_rows, 3);
}

/// A pass that keeps nothing of a row, is rolled back or refused leaves its keys as they were.
#[test]
fn what_is_not_committed_ranks_nothing() {
    let spec = by_hand(1, 1, 1);
    let (inner, log) = spied(&spec);
    let mut cache = Vegas::new(inner, &spec, bare(0.1, 1));
    let meter = cache.meter();
    fill(&mut cache, 0, 20, &spec);
    flat(&mut cache, &[span(0, 20, 3)], Phase::Verify, &spec);
    cache.commit(&[0]).expect("a commit");
    assert_eq!(meter.read().collected_rows, 1);
    flat(&mut cache, &[span(0, 20, 3)], Phase::Verify, &spec);
    assert!(cache.commit(&[4]).is_err());
    cache.rollback();
    assert!(cache.begin(&[span(0, 19, 3)], Phase::Verify).is_err());
    flat(&mut cache, &[span(0, 20, 1)], Phase::Draft, &spec);
    cache.rollback();
    assert_eq!(tails(&log, 0), [(20, Some(20))]);
    // A refused commit leaves the pass open: what it collected is not lost.
    flat(&mut cache, &[span(0, 20, 3)], Phase::Verify, &spec);
    assert!(cache.commit(&[4]).is_err());
    cache.commit(&[2]).expect("a commit");
    flat(&mut cache, &[span(0, 22, 1)], Phase::Draft, &spec);
    cache.rollback();
    assert_eq!(tails(&log, 0).last(), Some(&(22, Some(21))));
    // Of a prefill only what is kept is a candidate.
    flat(&mut cache, &[span(2, 0, 20)], Phase::Prefill, &spec);
    cache.commit(&[12]).expect("a commit");
    flat(&mut cache, &[span(2, 12, 1)], Phase::Draft, &spec);
    cache.rollback();
    assert_eq!(tails(&log, 2), [(12, Some(12))]);
    // A row that is evicted while its pass is open is forgotten.
    fill(&mut cache, 1, 20, &spec);
    flat(
        &mut cache,
        &[span(0, 22, 2), span(1, 20, 2)],
        Phase::Verify,
        &spec,
    );
    cache.evict(SeqId(0));
    cache.commit(&[0, 2]).expect("a commit");
    flat(&mut cache, &[span(0, 0, 1)], Phase::Draft, &spec);
    cache.rollback();
    assert_eq!(tails(&log, 0).last(), Some(&(0, None)));
    fill(&mut cache, 0, 1, &spec);
    flat(
        &mut cache,
        &[span(0, 1, 1), span(1, 22, 1)],
        Phase::Draft,
        &spec,
    );
    cache.rollback();
    assert_eq!(tails(&log, 0).last(), Some(&(1, None)));
    assert_eq!(tails(&log, 1).last(), Some(&(22, Some(21))));
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

/// Statistics of one round, counted by hand.
#[test]
fn what_is_counted() {
    let spec = by_hand(2, 1, 1);
    let mut cache = Vegas::new(slots(&spec), &spec, bare(0.2, 1));
    let meter = cache.meter();
    fill(&mut cache, 0, 20, &spec);
    flat(&mut cache, &[span(0, 20, 1)], Phase::Draft, &spec);
    flat(&mut cache, &[span(0, 21, 1)], Phase::Draft, &spec);
    cache.rollback();
    let stats = meter.read();
    assert_eq!((stats.collected_rows, stats.sets), (1, 2));
    assert_eq!((stats.chosen, stats.candidates), (8, 40));
    assert_eq!((stats.draft_rows, stats.sparse_rows), (2, 2));
    assert_eq!((stats.attended, stats.held), (2 * (5 + 6), 2 * (21 + 22)));
    assert_eq!(stats.chosen_share(), Some(0.2));
}
