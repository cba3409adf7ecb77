//! Which keys drafts attend to, and when they change.

use crate::hooks::{spied, tails};
use crate::world::{
    Recording, Target, bare, by_hand, decoder, device, drafts, fill, flat, hash, pass, plain,
    prefilled, prompt, slots, span, tensor,
};
use specdec_core::{Decoder, FixedLength, KvCache, Phase, Request, SeqId};
use specdec_ragged::SlotCache;
use specdec_testkit::HashLm;
use specdec_vegas::{CheckedConfig, Random, Ranked, Vegas, VegasConfig, VegasDrafter};
use std::sync::Arc;

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

/// An imported prefix has no scores: the first draft pass sees everything, and ranks for those after it.
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
    assert_eq!(cache.meter().read().collected_rows, 1);
    let drafted = drafts(&target, &mut cache, &tokens, 3);
    // Its first token is the target's own.
    assert_eq!(drafted[0][..1], model.greedy(&tokens[0], 1));
    let once = [(39, None), (40, Some(39)), (41, Some(39))];
    assert_eq!(tails(&log, 0), once);
    // What it ranked holds until the next pass.
    assert_eq!(drafts(&target, &mut cache, &tokens, 2)[0].len(), 2);
    assert_eq!(tails(&log, 0)[3..], [(39, Some(39)), (40, Some(39))]);
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

/// The query of the first draft pass ranks, by weights over what was imported; rules that need none rank
/// before it.
#[test]
fn an_imported_prefix_is_ranked_by_the_first_draft() {
    let spec = by_hand(2, 1, 1);
    let looked = |t: usize| if t == 6 { 5.0 } else { 0.0 };
    let entries = |from: usize, len: usize| {
        let k = tensor(len, 1, |t, _| [looked(from + t), 0.0, 0.0, 0.0]);
        [tensor(len, 1, |_, _| [1.0, 0.0, 0.0, 0.0]), k.clone(), k]
    };
    let mut other = slots(&spec);
    pass(&mut other, &[span(0, 0, 20)], Phase::Prefill, 2, |_| {
        entries(0, 20)
    });
    other.commit(&[20]).expect("a commit");
    let segment = other.export(SeqId(0), 0..20).expect("a copy");
    let draft = |cache: &mut dyn KvCache, start: usize| {
        pass(cache, &[span(0, start, 1)], Phase::Draft, 2, |_| {
            entries(start, 1)
        });
    };

    let (rule, asked) = Recording::new(Ranked::default());
    let (inner, log) = spied(&spec);
    let mut cache = Vegas::with_select(inner, &spec, bare(0.05, 1), rule);
    cache.import(SeqId(0), &segment).expect("a segment");
    draft(&mut cache, 20);
    assert!(asked.lock().expect("no panic").is_empty());
    draft(&mut cache, 21);
    cache.rollback();
    for asked in asked.lock().expect("no panic").iter() {
        assert_eq!((asked.count, asked.keys, asked.weights.len()), (20, 21, 20));
        assert_eq!(asked.chosen, Some(vec![0, 6]));
        let sum = 20.0 + 5f32.exp();
        assert!((asked.weights[0] - 1.0 / sum).abs() < 1e-6);
    }
    assert_eq!(asked.lock().expect("no panic").len(), 2);
    assert_eq!(tails(&log, 0), [(20, None), (21, Some(20))]);
    let stats = cache.meter().read();
    assert_eq!(
        (stats.collected_rows, stats.draft_rows, stats.sparse_rows),
        (1, 2, 1)
    );
    // One that was dropped while its draft was open is forgotten with it.
    let mut cache = Vegas::new(slots(&spec), &spec, bare(0.05, 1));
    cache.import(SeqId(0), &segment).expect("a segment");
    draft(&mut cache, 20);
    cache.evict(SeqId(0));
    cache.rollback();
    draft(&mut cache, 0);
    cache.rollback();

    let (inner, log) = spied(&spec);
    let mut cache = Vegas::with_select(inner, &spec, bare(0.05, 1), Random::default());
    cache.import(SeqId(0), &segment).expect("a segment");
    draft(&mut cache, 20);
    cache.rollback();
    assert_eq!(tails(&log, 0), [(20, Some(20))]);
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

/// A tenth of the keys, ranked again by plain passes only after some positions.
fn refreshed(plain_refresh: usize) -> CheckedConfig {
    let config = VegasConfig {
        ratio: 0.1,
        min: 1,
        plain_refresh,
        ..VegasConfig::paper()
    };
    config.check().expect("a good config")
}

/// Plain passes rank again only after some positions; a pass with drafts always does.
#[test]
fn plain_passes_refresh_now_and_then() {
    let spec = by_hand(1, 1, 1);
    let config = refreshed(3);
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

/// A row that never drafts ranks ever more rarely; once it has drafted, as often as before.
#[test]
fn rankings_that_no_draft_asks_for_get_rare() {
    let spec = by_hand(1, 1, 1);
    let inner = SlotCache::new(&spec).expect("a cache");
    let mut cache = Vegas::new(inner, &spec, refreshed(2));
    let meter = cache.meter();
    fill(&mut cache, 0, 20, &spec);
    let plain = |cache: &mut Vegas<SlotCache>| {
        let start = cache.len(SeqId(0));
        flat(cache, &[span(0, start, 1)], Phase::Verify, &spec);
        cache.commit(&[1]).expect("a commit");
        (start + 1, meter.read().collected_rows)
    };
    let ranked = |cache: &mut Vegas<SlotCache>, steps: usize| {
        let mut before = meter.read().collected_rows;
        let mut at = Vec::new();
        for _ in 0..steps {
            let (keys, now) = plain(cache);
            if now > before {
                at.push(keys);
            }
            before = now;
        }
        at
    };
    assert_eq!(ranked(&mut cache, 45), [22, 26, 34, 50]);
    flat(&mut cache, &[span(0, 65, 1)], Phase::Draft, &spec);
    cache.rollback();
    // The ranking that the draft asked for is fifteen positions old; the one after it is not asked for again.
    assert_eq!(ranked(&mut cache, 8), [66, 68, 72]);
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
    assert_eq!(stats.attended_share(), Some(22.0 / 86.0));
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
