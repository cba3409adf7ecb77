//! Counts, names and events.

use crate::world::{decoder, device, hash_lm, plain, plain_decoder, play, row, share};
use specdec_core::{
    Decoder, Draft, DraftContext, Drafter, Event, FixedLength, Granularity, PositionCount, Request,
    Result, RowDraft, SamplingParams, Speculation, TargetModel, Token,
};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::Continuations;
use specdec_testkit::scripted::{Lengths, ScriptedDrafter, ScriptedTarget};
use std::sync::{Arc, Mutex};

fn count(drafted: u64, accepted: u64) -> PositionCount {
    PositionCount { drafted, accepted }
}

/// J1: a run whose acceptance is known.
#[test]
fn j1_counts_of_a_known_run() {
    let rows = [row(5, 8, &[0, 5]), row(6, 8, &[4])];
    let played = play(&rows, FixedLength(3), &[]);
    // (3,0,1)(3,3,4)(2,0,1)(1,1,2)
    let stats = &played[0].0.stats;
    assert_eq!((stats.rounds, stats.speculative_rounds), (4, 4));
    assert_eq!((stats.drafted, stats.accepted, stats.emitted), (9, 4, 8));
    assert_eq!(stats.by_position, [count(4, 2), count(3, 1), count(2, 1)]);
    assert_eq!(stats.acceptance_rate(), Some(4.0 / 9.0));
    assert_eq!(stats.acceptance_length(), Some(1.0 + 4.0 / 4.0));
    assert_eq!(stats.by_position[0].rate(), Some(0.5));
    // (3,3,4)(3,0,1)(2,2,3)
    let other = &played[1].0.stats;
    assert_eq!(
        (other.rounds, other.drafted, other.accepted, other.emitted),
        (3, 8, 5, 8)
    );
    assert_eq!(other.prefilled, 1);
}

/// J1: totals are the sums, and rates stay between 0 and 1.
#[test]
fn j1_totals_are_sums() {
    let model = hash_lm(20);
    let prompts: Vec<Vec<Token>> = (1..6u32)
        .map(|n| (0..n).map(|i| (i + 3 * n) % 20).collect())
        .collect();
    let known = Continuations::new(prompts.iter().map(|p| (p.clone(), model.greedy(p, 40))));
    let drafter = ScriptedDrafter::sometimes(known, 20, 0.6, 2);
    let mut decoder = decoder(
        &share(model),
        drafter,
        Lengths::new(|seq, round| (seq.0 as usize + round) % 4),
    );
    for prompt in prompts {
        decoder
            .submit(Request::new(prompt).max_new_tokens(15))
            .expect("a good request");
    }
    let done = decoder.run().expect("decoding");
    let total = decoder.stats();
    let sum =
        |of: fn(&specdec_core::Stats) -> u64| -> u64 { done.iter().map(|d| of(&d.stats)).sum() };
    assert_eq!(total.rounds, sum(|s| s.rounds));
    assert_eq!(total.drafted, sum(|s| s.drafted));
    assert_eq!(total.accepted, sum(|s| s.accepted));
    assert_eq!(total.emitted, sum(|s| s.emitted));
    assert_eq!(total.prefilled, sum(|s| s.prefilled));
    assert_eq!(total.speculative_rounds, sum(|s| s.speculative_rounds));
    for stats in done.iter().map(|d| &d.stats).chain([total]) {
        let by_position: (u64, u64) = stats
            .by_position
            .iter()
            .fold((0, 0), |n, c| (n.0 + c.drafted, n.1 + c.accepted));
        assert_eq!(by_position, (stats.drafted, stats.accepted));
        let rate = stats.acceptance_rate().expect("something was drafted");
        assert!((0.0..=1.0).contains(&rate));
        let length = 1.0 + stats.accepted as f64 / stats.rounds as f64;
        assert_eq!(stats.acceptance_length(), Some(length));
        // Every round emits its accepted drafts and one more, unless it is cut.
        assert!(stats.emitted <= stats.accepted + stats.rounds);
    }
}

/// J1: nothing drafted, nothing measured: no NaN.
#[test]
fn j1_nothing_drafted_gives_no_rate() {
    let done = plain(&share(hash_lm(20)), Request::new([1, 2]).max_new_tokens(5));
    assert_eq!(done.stats.acceptance_rate(), None);
    assert_eq!(done.stats.acceptance_length(), Some(1.0));
    assert_eq!((done.stats.rounds, done.stats.speculative_rounds), (5, 0));
    assert_eq!(done.drafter, None);
    let fresh = plain_decoder(&share(hash_lm(20)));
    assert_eq!(fresh.stats().acceptance_length(), None);
    assert_eq!(fresh.stats().tokens_per_second(), None);
    assert_eq!(fresh.stats().prefill_tokens_per_second(), None);
}

/// G4: events carry all tokens, one or a block at a time, and counts count tokens.
#[test]
fn g4_an_event_per_token_or_per_block() {
    let model = hash_lm(20);
    let want = model.greedy(&[3, 1], 17);
    let known = Continuations::new([(vec![3, 1], want.clone())]);
    for (granularity, events) in [(Granularity::Token, 17), (Granularity::Block, 5)] {
        let drafter = ScriptedDrafter::oracle(known.clone());
        let mut decoder = decoder(&share(model.clone()), drafter, FixedLength(3));
        let mut request = Request::new([3, 1]).max_new_tokens(17);
        request.granularity = granularity;
        let (mut told, mut sizes, mut ended) = (Vec::new(), Vec::new(), 0);
        for event in decoder.stream(request).expect("a good request") {
            match event.expect("decoding") {
                Event::Tokens { tokens, .. } => {
                    sizes.push(tokens.len());
                    told.extend(tokens.iter().map(|t| t.token));
                }
                Event::Finished(done) => {
                    ended += 1;
                    assert_eq!(done.tokens, told);
                    assert_eq!((done.stats.emitted, done.stats.rounds), (17, 5));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(told, want);
        assert_eq!((sizes.len(), ended), (events, 1));
        assert!(sizes.iter().all(|n| *n > 0));
    }
}

/// Notes what it is asked for.
struct Curious {
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Drafter for Curious {
    fn name(&self) -> &'static str {
        "curious"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let mut asked = self.asked.lock().expect("no panic while locked");
        asked.extend(cx.rows.iter().map(|row| row.k));
        Ok(Draft {
            rows: vec![RowDraft::default(); cx.rows.len()],
        })
    }
}

/// A9: what a caller sets reaches the drafter, and the result tells who drafted.
#[test]
fn a9_settings_reach_the_drafter() {
    for (speculation, most) in [
        (Speculation::On, 5),
        (Speculation::AtMost(2), 2),
        (Speculation::AtMost(99), 5),
    ] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let drafter = Curious {
            asked: Arc::clone(&asked),
        };
        let mut decoder = decoder(&share(hash_lm(20)), drafter, FixedLength(5));
        let request = Request::new([1]).max_new_tokens(8).speculation(speculation);
        let done = decoder.generate(request).expect("decoding");
        assert_eq!(done.drafter, Some("curious"));
        let asked = asked.lock().expect("no panic while locked");
        let left = |round: usize| 7 - round;
        let want: Vec<usize> = (0..7).map(|round| left(round).min(most)).collect();
        assert_eq!(*asked, want, "{speculation:?}");
    }
    let asked = Arc::new(Mutex::new(Vec::new()));
    let drafter = Curious {
        asked: Arc::clone(&asked),
    };
    let mut decoder = decoder(&share(hash_lm(20)), drafter, FixedLength(5));
    let off = Request::new([1])
        .max_new_tokens(8)
        .speculation(Speculation::Off);
    assert_eq!(decoder.generate(off).expect("decoding").tokens.len(), 8);
    assert!(asked.lock().expect("no panic while locked").is_empty());
}

/// Ties within the margin are counted, and only when asked for; on the device where plain rows are
/// decoded, on the host where the logits are needed there.
#[test]
fn a3_ties_are_counted_within_the_margin() {
    let target = ScriptedTarget::new(4, &device(), |seen| {
        // The gap between the two best is 0, 0.5, 1, 0, ...
        let gap = 0.5 * (seen.position % 3) as f32;
        vec![2.0, 2.0 - gap, 0.0, 0.0]
    });
    let count = |margin: Option<f32>, logprobs: Option<usize>| {
        let builder =
            Decoder::builder(Arc::new(target.clone())).cache(VecCache::new(target.spec()));
        let builder = match margin {
            Some(margin) => builder.tie_margin(margin),
            None => builder,
        };
        let mut decoder = builder.build().expect("the parts fit");
        let sampling = SamplingParams {
            logprobs,
            ..SamplingParams::greedy()
        };
        let done = decoder
            .generate(Request::new([1]).max_new_tokens(9).sampling(sampling))
            .expect("decoding");
        assert_eq!(done.stats.ties, decoder.stats().ties);
        done.stats.ties
    };
    let run = |margin| {
        let ties = count(margin, None);
        assert_eq!(ties, count(margin, Some(1)), "{margin:?}");
        ties
    };
    // Closer than the margin: a gap of exactly the margin is none.
    assert_eq!(run(Some(0.5)), 3);
    assert_eq!(
        (run(None), run(Some(0.1)), run(Some(0.6)), run(Some(1.1))),
        (0, 3, 6, 9)
    );
}
