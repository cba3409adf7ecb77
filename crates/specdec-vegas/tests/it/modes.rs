//! What is off by default: ranking by logits, and a set of keys for each key/value head.

use crate::scores::{close, draft, ln, recorded, take, two_heads};
use crate::world::{by_hand, pass, slots, span, tensor};
use specdec_core::{KvCache, Phase, RowSpan, SeqId};
use specdec_vegas::{Collect, HeadSets, Score, VegasConfig};

/// Ranked by logits the same keys come in another order.
#[test]
fn t01_the_mean_over_heads_of_logits() {
    for kv_heads in [1, 2] {
        let asked = two_heads(kv_heads, Score::Logits, HeadSets::Shared).remove(0);
        let means = [ln(6.0), ln(2.0), ln(4.0), ln(8.0)].map(|sum| sum / 2.0);
        close(&asked.weights, &means);
        let golden = [0.896, 0.347, 0.693, 1.040];
        let near = means.iter().zip(golden).all(|(a, b)| (a - b).abs() < 5e-4);
        assert!(near, "{means:?} instead of {golden:?}");
        assert_eq!(
            (asked.score, asked.chosen),
            (Score::Logits, Some(vec![0, 3]))
        );
    }
}

/// With sets of their own, key/value heads rank by the query heads of their group alone.
#[test]
fn t11_each_head_ranks_for_itself() {
    let weights = [[0.125, 0.25, 0.5, 0.125], [0.375, 0.0625, 0.0625, 0.5]];
    let asked = two_heads(2, Score::Weights, HeadSets::PerKvHead);
    assert_eq!(asked.len(), 2);
    for ((head, asked), weights) in asked.iter().enumerate().zip(weights) {
        assert_eq!(asked.head, Some(head));
        close(&asked.weights, &weights);
    }
    assert_eq!(asked[0].chosen, Some(vec![1, 2]));
    assert_eq!(asked[1].chosen, Some(vec![0, 3]));
    // A single key/value head is the shared case.
    let alone = two_heads(1, Score::Weights, HeadSets::PerKvHead).remove(0);
    let shared = two_heads(1, Score::Weights, HeadSets::Shared).remove(0);
    assert_eq!(
        (alone.weights, alone.chosen),
        (shared.weights, shared.chosen)
    );
}

/// Nine query heads in three groups; each sees the values of its own group, whatever the keys are, and the
/// keys of its own set.
#[test]
fn t11_groups_attend_to_their_own_sets() {
    let spec = by_hand(1, 9, 3);
    for heads in [HeadSets::Shared, HeadSets::PerKvHead] {
        let config = VegasConfig {
            ratio: 0.05,
            min: 1,
            heads,
            ..VegasConfig::paper()
        };
        let config = config.check().expect("a good config");
        let (mut cache, log) = recorded(slots(&spec), &spec, config);
        // Group g looks at position 3 + 5 g.
        let looked = |t: usize, g: usize| if t == 3 + 5 * g { 9.0 } else { 0.0 };
        let entries = |from: usize, len: usize| {
            let k = tensor(len, 3, |t, g| [looked(from + t, g), 0.0, 0.0, 0.0]);
            let v = tensor(len, 3, |t, g| [g as f32, (from + t) as f32, 0.0, 0.0]);
            [tensor(len, 9, |_, _| [1.0, 0.0, 0.0, 0.0]), k, v]
        };
        pass(&mut cache, &[span(0, 0, 20)], Phase::Prefill, 1, |_| {
            entries(0, 20)
        });
        cache.commit(&[20]).expect("a commit");
        let out = pass(&mut cache, &[span(0, 20, 1)], Phase::Draft, 1, |_| {
            entries(20, 1)
        });
        cache.rollback();
        let asked = take(&log);
        for head in 0..9 {
            let (group, seen) = (head / 3, &out[0][head * 4..][..2]);
            // Exactly one constant, however it is weighed.
            assert_eq!(seen[0], group as f32, "head {head}, {heads:?}");
            // The key it looked at, and its own of the pass.
            let at = 3 + 5 * group;
            if heads == HeadSets::PerKvHead {
                assert_eq!(asked[group].chosen, Some(vec![at as u32]));
                let (key, own) = (9f32.exp(), 1.0);
                let mean = (at as f32 * key + 20.0 * own) / (key + own);
                assert!((seen[1] - mean).abs() < 1e-3, "{} not {mean}", seen[1]);
            }
        }
        let sets = if heads == HeadSets::Shared { 1 } else { 3 };
        assert_eq!(asked.len(), sets);
        assert_eq!(cache.meter().read().attended, 2);
    }
}

/// Logits of queries with different ranges, in rows of different lengths: nothing that a query does not
/// see gets into a mean, and all of them are finite.
#[test]
fn t24_collected_logits_are_finite() {
    let spec = by_hand(1, 1, 1);
    for collect in [Collect::Ends, Collect::Last, Collect::All] {
        let config = VegasConfig {
            ratio: 0.1,
            min: 1,
            collect,
            score: Score::Logits,
            ..VegasConfig::paper()
        };
        let config = config.check().expect("a good config");
        let (mut cache, log) = recorded(slots(&spec), &spec, config);
        // Keys -1, -2, ..; a longer row beside them.
        let mut keys = |row: RowSpan, phase: Phase, queries: &[f32]| {
            let beside = span(7, cache.len(SeqId(7)), 40);
            let tokens = beside.len + row.len;
            let q = |t: usize, _| [t.checked_sub(40).map_or(1e4, |t| queries[t]), 0.0, 0.0, 0.0];
            let k = |t: usize, _| match t.checked_sub(40) {
                None => [1e4, 0.0, 0.0, 0.0],
                Some(t) => [-1.0 - (row.start + t) as f32, 0.0, 0.0, 0.0],
            };
            pass(&mut cache, &[beside, row], phase, 1, |_| {
                [
                    tensor(tokens, 1, q),
                    tensor(tokens, 1, k),
                    tensor(tokens, 1, k),
                ]
            });
            cache.commit(&[40, row.len]).expect("a commit");
        };
        keys(span(0, 0, 5), Phase::Prefill, &[1.0; 5]);
        keys(span(0, 5, 3), Phase::Verify, &[1.0, 2.0, 6.0]);
        draft(&mut cache, 0);
        let asked = take(&log);
        let asked = asked.iter().find(|asked| asked.seq.0 == 0).expect("a set");
        let factor = match collect {
            Collect::Ends => 3.5,
            Collect::Last => 6.0,
            _ => 3.0,
        };
        let want: Vec<f32> = (0..6).map(|j| -factor * (1.0 + j as f32)).collect();
        close(&asked.weights, &want);
        assert!(asked.weights.iter().all(|w| w.is_finite()));
        assert_eq!(asked.chosen, Some(vec![0]));
    }
}
