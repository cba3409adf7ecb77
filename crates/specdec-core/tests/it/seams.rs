//! What the step tells its parts: drafters, controllers, schedulers.

use crate::world::{decoder, device, finish, hash_lm, plain, row, script, share};
use burn::prelude::*;
use specdec_core::{
    Block, BuildError, Controller, Decoder, Draft, DraftContext, Drafter, Error, FinishReason,
    FirstCome, FixedLength, KvCache, Observation, Outcome, Phase, Plan, PoolView, Request, Result,
    RowDraft, Scheduler, SeqId, SeqView, TargetModel, Token,
};
use specdec_testkit::oracle::{Continuations, Traced};
use specdec_testkit::scripted::{Listed, ScriptedDrafter, ScriptedTarget};
use specdec_testkit::{HashLm, VecCache};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What a row of a pass was told to have committed.
#[derive(Debug, Clone)]
struct Told {
    phase: Phase,
    start: usize,
    content: Vec<Token>,
    drafted: usize,
    accepted: usize,
    /// Per tap and committed token the tapped row, `[hidden]`.
    tapped: Vec<Vec<Vec<f32>>>,
}

#[derive(Debug, Default)]
struct Notes {
    told: BTreeMap<SeqId, Vec<Told>>,
    evicted: Vec<SeqId>,
}

/// Drafts like the drafter inside, taps two layers and writes down what it is told.
struct Notebook {
    inner: ScriptedDrafter,
    notes: Arc<Mutex<Notes>>,
}

const TAPS: [usize; 2] = [6, 2];

fn rows_of(tensor: Tensor<2>) -> Vec<Vec<f32>> {
    let width = tensor.dims()[1];
    let all = tensor.into_data().try_into_vec_as::<f32>().expect("floats");
    all.chunks(width).map(<[f32]>::to_vec).collect()
}

impl Drafter for Notebook {
    fn name(&self) -> &'static str {
        "notebook"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        self.inner.draft(cx)
    }

    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        let taps: Vec<_> = observation
            .taps
            .iter()
            .map(|tap| rows_of(tap.clone()))
            .collect();
        let mut notes = self.notes.lock().expect("no panic while locked");
        for row in observation.rows {
            let told = Told {
                phase: observation.phase,
                start: row.start,
                content: row.tokens.to_vec(),
                drafted: row.drafted,
                accepted: row.accepted,
                tapped: taps
                    .iter()
                    .map(|tap| tap[row.committed.clone()].to_vec())
                    .collect(),
            };
            notes.told.entry(row.seq).or_default().push(told);
        }
        Ok(())
    }

    fn evict(&mut self, seq: SeqId) {
        self.notes
            .lock()
            .expect("no panic while locked")
            .evicted
            .push(seq);
    }

    fn taps(&self) -> &[usize] {
        &TAPS
    }
}

/// The tapped rows of a whole content, from a fresh pass.
fn fresh_taps(model: &HashLm, tokens: &[Token]) -> Vec<Vec<Vec<f32>>> {
    let mut cache = VecCache::new(model.spec());
    let block = Block::single(SeqId(0), 0, tokens, &device());
    let mut attend = cache
        .begin(block.rows(), Phase::Prefill)
        .expect("a legal pass");
    let forward = model
        .forward(&block, &mut *attend, &TAPS)
        .expect("a legal block");
    forward.taps.into_iter().map(rows_of).collect()
}

#[test]
fn a_drafter_is_told_what_was_committed() {
    let model = hash_lm(20);
    let prompts: [Vec<Token>; 3] = [vec![3], vec![4, 5, 6, 7, 8, 9], vec![1, 2]];
    let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 40))));
    let notes = Arc::new(Mutex::new(Notes::default()));
    let notebook = Notebook {
        inner: ScriptedDrafter::sometimes(known, 20, 0.6, 3),
        notes: Arc::clone(&notes),
    };
    let controller = Traced::new(FixedLength(4));
    let trace = controller.trace();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(model.spec()))
        .drafter(notebook)
        .controller(controller)
        .prefill_chunk(3)
        .build()
        .expect("the parts fit");
    for prompt in &prompts {
        let request = Request::new(prompt.clone()).max_new_tokens(18);
        decoder.submit(request).expect("a good request");
    }
    let done = finish(&mut decoder);
    let notes = notes.lock().expect("no panic while locked");
    for (done, prompt) in done.iter().zip(&prompts) {
        let content = [prompt.as_slice(), &done.tokens].concat();
        let fresh = fresh_taps(&model, &content);
        let told = &notes.told[&done.seq];
        let mut cached = 0;
        for told in told {
            assert_eq!(told.start, cached, "passes follow each other");
            assert!(content.starts_with(&told.content));
            for (tap, fresh) in told.tapped.iter().zip(&fresh) {
                assert_eq!(
                    tap[..],
                    fresh[cached..cached + tap.len()],
                    "taps of {}",
                    done.seq
                );
            }
            assert_eq!(told.tapped.len(), TAPS.len());
            cached += told.tapped[0].len();
            if told.phase == Phase::Verify {
                assert_eq!(cached, told.content.len() - 1, "all but the anchor");
            }
        }
        assert_eq!(cached, content.len() - 1);
        let rounds: Vec<_> = told
            .iter()
            .filter(|told| told.phase == Phase::Verify)
            .map(|told| (told.drafted, told.accepted))
            .collect();
        let traced: Vec<_> = trace.of(done.seq).iter().map(|r| (r.k, r.n)).collect();
        assert_eq!(rounds, traced);
        let times = notes.evicted.iter().filter(|seq| **seq == done.seq).count();
        assert_eq!(times, 1, "{} is evicted once", done.seq);
    }
}

/// Taps a layer.
struct Tapping([usize; 1]);

impl Drafter for Tapping {
    fn name(&self) -> &'static str {
        "tapping"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let rows = vec![RowDraft::default(); cx.rows.len()];
        Ok(Draft { rows })
    }

    fn taps(&self) -> &[usize] {
        &self.0
    }
}

#[test]
fn a_tap_the_target_lacks_is_refused() {
    let model = hash_lm(20);
    let build = |tap| {
        Decoder::builder(Arc::new(model.clone()))
            .cache(VecCache::new(model.spec()))
            .drafter(Tapping([tap]))
            .build()
    };
    assert!(build(6).is_ok());
    assert!(matches!(
        build(7),
        Err(Error::Build(BuildError::Tap { tap: 7, layers: 7 }))
    ));
}

/// Runs the target itself in draft passes over the target's own cache, and leaves them open.
struct OverTheTarget;

impl Drafter for OverTheTarget {
    fn name(&self) -> &'static str {
        "over the target"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let spec = cx.target.spec();
        let mut rows: Vec<RowDraft> = vec![RowDraft::default(); cx.rows.len()];
        let longest = cx.rows.iter().map(|row| row.k).max().unwrap_or(0);
        for i in 0..longest {
            let mut block = Block::new(&spec.device);
            let mut who = Vec::new();
            for (r, row) in cx.rows.iter().enumerate().filter(|(_, row)| row.k > i) {
                let newest = match rows[r].tokens.last() {
                    Some(&token) => token,
                    None => row.tokens[row.tokens.len() - 1],
                };
                block.push(row.seq, row.tokens.len() - 1 + i, &[newest]);
                who.push(r);
            }
            let mut attend = cx.cache.begin(block.rows(), Phase::Draft)?;
            let forward = cx.target.forward(&block, &mut *attend, &[])?;
            drop(attend);
            let logits = rows_of(cx.target.logits(forward.hidden));
            for (r, mut logits) in who.into_iter().zip(logits) {
                let picked = cx.rows[r].pick(&rows[r].tokens, &mut logits);
                rows[r].tokens.extend(picked.map(|p| p.token));
            }
        }
        Ok(Draft { rows })
    }
}

/// F6: a drafter that is the target, over the target's cache, is always right, and its staged
/// entries are gone when the target verifies.
#[test]
fn f6_drafting_over_the_targets_cache() {
    let model = hash_lm(20).with_spread(3.0);
    let target = share(model.clone());
    let sampled = || {
        Request::new([9])
            .max_new_tokens(14)
            .sampling(crate::world::sampled(1.0, 8))
    };
    let want = plain(&target, sampled()).tokens;
    let mut decoder = decoder(&target, OverTheTarget, FixedLength(3));
    for prompt in [&[3u32][..], &[4, 5, 6, 7], &[1, 2]] {
        decoder
            .submit(Request::new(prompt).max_new_tokens(16))
            .expect("a good request");
    }
    decoder.submit(sampled()).expect("a good request");
    let done = finish(&mut decoder);
    assert_eq!(done[0].tokens, model.greedy(&[3], 16));
    assert_eq!(done[1].tokens, model.greedy(&[4, 5, 6, 7], 16));
    assert_eq!(done[3].tokens, want);
    // Greedy and coupled drafts share everything with the target: all are accepted.
    assert_eq!(decoder.stats().acceptance_rate(), Some(1.0));
}

/// A draft is cut to what was planned for it.
#[test]
fn drafts_longer_than_planned_are_cut() {
    let rows = [row(5, 6, &[])];
    let listed = Listed::tokens([vec![10, 11, 12, 13, 14, 15], vec![13, 14, 15, 16]]);
    let target = share(script(&rows));
    let (done, rounds) =
        crate::world::play_with(&target, listed, &rows, FixedLength(2), &[]).remove(0);
    assert_eq!(done.tokens, (10..16).collect::<Vec<_>>());
    assert_eq!(rounds, [(2, 2, 3), (2, 2, 3)]);
}

/// Plans what it is told and keeps what it hears.
#[derive(Debug, Clone, Default)]
struct Listener {
    heard: Arc<Mutex<(Vec<Outcome>, Vec<SeqId>)>>,
}

impl Controller for Listener {
    fn plan(&mut self, view: &PoolView) -> Plan {
        Plan {
            lengths: vec![3; view.rows.len()],
        }
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.heard
            .lock()
            .expect("no panic while locked")
            .0
            .push(outcome.clone());
    }

    fn evict(&mut self, seq: SeqId) {
        self.heard
            .lock()
            .expect("no panic while locked")
            .1
            .push(seq);
    }
}

#[test]
fn a_controller_is_told_what_a_step_did() {
    let rows = [row(5, 6, &[]), row(6, 2, &[])];
    // Row 0 is drafted less for than planned; row 1 can use one draft only.
    let drafts = [vec![10, 11], vec![12]].map(|t| RowDraft::deterministic(t.to_vec()));
    let listed = Listed::new([drafts.to_vec()]);
    let listener = Listener::default();
    let mut decoder = decoder(&share(script(&rows)), listed, listener.clone());
    for row in &rows {
        let request = Request::new(row.prompt.clone()).max_new_tokens(row.max_new);
        decoder.submit(request).expect("a good request");
    }
    finish(&mut decoder);
    let heard = listener.heard.lock().expect("no panic while locked");
    let first = &heard.0[0];
    assert_eq!(first.block, 3 + 2);
    let of = |i: usize| {
        let r: &specdec_core::RowOutcome = &first.rows[i];
        (
            r.seq.0, r.planned, r.drafted, r.accepted, r.emitted, r.context, r.finished,
        )
    };
    // The prompts have two tokens, one of them cached before the step.
    assert_eq!(of(0), (0, 3, 2, 2, 3, 1, false));
    assert_eq!(of(1), (1, 1, 1, 0, 1, 1, false));
    let ends: Vec<_> = heard
        .0
        .iter()
        .flat_map(|o| &o.rows)
        .filter(|r| r.finished)
        .collect();
    assert_eq!(ends.len(), 2);
    let mut evicted = heard.1.clone();
    evicted.sort();
    assert_eq!(evicted, [SeqId(0), SeqId(1)]);
}

/// Takes turns, and keeps what it sees.
#[derive(Debug, Clone, Default)]
struct Turns {
    seen: Arc<Mutex<Vec<PoolView>>>,
}

impl Scheduler for Turns {
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId> {
        self.seen
            .lock()
            .expect("no panic while locked")
            .push(pool.clone());
        let longest_idle = pool.rows.iter().min_by_key(|row| (row.last_run, row.seq));
        longest_idle.map(|row| row.seq).into_iter().collect()
    }
}

#[test]
fn a_scheduler_sees_who_ran_when_and_what_is_left() {
    let model = hash_lm(20);
    let turns = Turns::default();
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(model.spec()))
        .drafter(Listed::default())
        .scheduler(turns.clone())
        .build()
        .expect("the parts fit");
    for prompt in [vec![1, 2, 3], vec![4]] {
        decoder
            .submit(Request::new(prompt).max_new_tokens(3))
            .expect("a good request");
    }
    let done = finish(&mut decoder);
    assert_eq!(done[0].tokens, model.greedy(&[1, 2, 3], 3));
    assert_eq!(done[1].tokens, model.greedy(&[4], 3));
    let seen = turns.seen.lock().expect("no panic while locked");
    let first: Vec<_> = seen[0]
        .rows
        .iter()
        .map(|r| (r.content, r.cached, r.max_draft))
        .collect();
    assert_eq!(first, [(3, 0, 2), (1, 0, 2)]);
    assert!(!seen[0].rows[0].is_prefilled() && seen[0].rows[1].is_prefilled());
    let steps: Vec<u64> = seen.iter().map(|view| view.step).collect();
    assert_eq!(steps, (0..steps.len() as u64).collect::<Vec<_>>());
    // Both start at step 0; then each runs in turn: row 0 at 0, row 1 at 1 or vice versa.
    let third = &seen[3];
    let mut runs: Vec<u64> = third.rows.iter().map(|r| r.last_run).collect();
    runs.sort_unstable();
    assert_eq!(runs, [1, 2]);
    let left: Vec<_> = third
        .rows
        .iter()
        .map(|r| (r.emitted, r.content - r.cached))
        .collect();
    assert!(left.iter().all(|l| l.1 == 1), "{left:?}");
}

#[test]
fn the_plain_parts_plan_and_select() {
    let view = |max_draft| {
        let mut view = SeqView::new(SeqId(max_draft as u64), 5, 4, 1);
        view.max_draft = max_draft;
        view
    };
    let pool = PoolView::new([9, 2, 0, 4].map(view).to_vec(), 0);
    assert_eq!(FixedLength(4).plan(&pool).lengths, [4, 2, 0, 4]);
    assert_eq!(
        FirstCome { max_rows: 2 }.select(&pool),
        [SeqId(9), SeqId(2)]
    );
    assert_eq!(FirstCome { max_rows: 0 }.select(&pool), [SeqId(9)]);
    assert_eq!(FirstCome::default().select(&pool).len(), 4);
}

/// An end in front of a place that has no candidate: the row ended, it did not fail.
#[test]
fn an_end_before_a_place_without_a_candidate() {
    let target = ScriptedTarget::new(8, &device(), |seen| match seen.token {
        3 => vec![f32::NEG_INFINITY; 8],
        token => (0..8)
            .map(|t| f32::from(u8::from(t == (token as usize + 1) % 8)))
            .collect(),
    });
    let drafter = Listed::tokens([vec![2, 3, 4]]);
    let mut decoder = decoder(&share(target), drafter, FixedLength(3));
    let request = Request::new([1]).max_new_tokens(9).end_tokens([3]);
    let done = decoder.generate(request).expect("it ended");
    assert_eq!(
        (done.tokens, done.finish),
        (vec![2, 3], FinishReason::EndToken)
    );
}
