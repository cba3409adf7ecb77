//! Acceptance by enumeration: the probability of every token, summed over every draft, is the
//! target's to 1e-12.

use proptest::prelude::*;
use specdec_core::accept::{DraftedFrom, DraftedToken, Position, accept_probability, residual};
use specdec_core::sampling::{Noise, PositionNoise, SamplingParams, probabilities};
use specdec_core::{Acceptance, Coupled, Greedy, Rejection, Token};
use specdec_testkit::oracle::unlikely;

/// P(emit x) when the drafted token has distribution `drawn` and `stated` is taken for its q.
fn emitted(p: &[f64], drawn: &[f64], stated: impl Fn(Token, Token) -> f64) -> Vec<f64> {
    let mut out = vec![0.0; p.len()];
    for (d, &chance) in drawn.iter().enumerate().filter(|(_, c)| **c > 0.0) {
        let q = |t: Token| stated(d as Token, t);
        let accept = accept_probability(p[d], q(d as Token));
        out[d] += chance * accept;
        if accept < 1.0 {
            for (x, r) in residual(p, q).into_iter().enumerate() {
                out[x] += chance * (1.0 - accept) * r;
            }
        }
    }
    out
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

/// A distribution in 64ths (exact in f32), zeros included.
fn distribution(vocab: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(prop_oneof![1 => Just(0u32), 3 => 0..20u32], vocab).prop_map(|mut n| {
        let sum: u32 = n.iter().sum();
        if sum == 0 {
            n[0] = 64;
        }
        // The rest goes to, or is taken from, the front.
        let mut excess = n.iter().sum::<u32>() as i64 - 64;
        for x in &mut n {
            let take = excess.clamp(-64, i64::from(*x));
            *x = (i64::from(*x) - take) as u32;
            excess -= take;
        }
        n.into_iter().map(|x| f64::from(x) / 64.0).collect()
    })
}

fn pair() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
    (2..7usize).prop_flat_map(|v| (distribution(v), distribution(v)))
}

fn candidates(q: &[f64]) -> (Vec<Token>, Vec<f32>) {
    let likely = q.iter().enumerate().filter(|(_, q)| **q > 0.0);
    likely.map(|(t, &q)| (t as Token, q as f32)).unzip()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_kind_of_draft_leaves_the_targets_distribution((p, q) in pair()) {
        prop_assert!((q.iter().sum::<f64>() - 1.0).abs() < 1e-15);
        let (ids, probs) = candidates(&q);
        let dense: Vec<f32> = q.iter().map(|&q| q as f32).collect();
        let sparse = |d, t| DraftedFrom::Sparse(&ids, &probs).probability(d, t);
        let whole = |d, t| DraftedFrom::Dense(&dense).probability(d, t);
        prop_assert!(worst(&emitted(&p, &q, sparse), &p) < 1e-12);
        prop_assert!(worst(&emitted(&p, &q, whole), &p) < 1e-12);
        // A chosen token may come from anywhere, even drawn from q.
        let chosen = |d, t| DraftedFrom::Deterministic.probability(d, t);
        prop_assert!(worst(&emitted(&p, &q, chosen), &p) < 1e-12);
        for d in 0..p.len() {
            let mut certain = vec![0.0; p.len()];
            certain[d] = 1.0;
            prop_assert!(worst(&emitted(&p, &certain, chosen), &p) < 1e-12);
        }
    }

    /// The acceptance probability is the highest any rule can have: the overlap of p and q.
    #[test]
    fn acceptance_is_the_overlap((p, q) in pair()) {
        let accepted: f64 = (0..p.len()).map(|d| q[d] * accept_probability(p[d], q[d])).sum();
        let overlap: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
        prop_assert!((accepted - overlap).abs() < 1e-12);
    }
}

/// Negative control: a q the draft was not drawn from biases the output, and the enumeration shows
/// it.
#[test]
fn a_misstated_q_shows() {
    let (p, q) = ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]);
    let greedy = [0.0, 1.0, 0.0];
    assert!(worst(&emitted(&p, &greedy, |_, t| q[t as usize]), &p) > 0.1);
}

fn logits(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32).collect()
}

fn at<'a>(logits: &'a mut [f32], params: &'a SamplingParams, noise: PositionNoise) -> Position<'a> {
    Position {
        logits,
        params,
        noise,
    }
}

/// Counts what `rule` emits over many seeds, with drafts drawn from `q` by other noise.
fn counts(
    rule: &dyn Acceptance,
    p: &[f64],
    q: &[f64],
    from: &dyn Fn(Token) -> Option<Vec<f32>>,
) -> Vec<u64> {
    let params = SamplingParams::sampled(1.0);
    let dense = logits(q);
    let mut counts = vec![0; p.len()];
    for seed in 0..20_000 {
        let draft = Noise::new(seed, 99)
            .at(5)
            .argmax(&dense)
            .expect("q is a distribution");
        let stated = from(draft);
        let q = match &stated {
            Some(probs) => DraftedFrom::Dense(probs),
            None => DraftedFrom::Deterministic,
        };
        let mut scratch = logits(p);
        let place = at(&mut scratch, &params, Noise::new(seed, 0).at(5));
        let token = rule.choose(place, Some(DraftedToken { token: draft, q }));
        counts[token.expect("p is a distribution") as usize] += 1;
    }
    counts
}

/// The rule as it runs, not only its formulas.
#[test]
fn the_rules_themselves_draw_from_the_targets_distribution() {
    let p = [0.4, 0.3, 0.0, 0.2, 0.1];
    let q = [0.1, 0.2, 0.5, 0.15, 0.05];
    let stated: Vec<f32> = q.iter().map(|&q| q as f32).collect();
    let dense = |_| Some(stated.clone());
    assert_eq!(unlikely(&counts(&Rejection, &p, &q, &dense), &p), None);
    assert_eq!(unlikely(&counts(&Rejection, &p, &q, &|_| None), &p), None);
    assert_eq!(unlikely(&counts(&Coupled, &p, &q, &dense), &p), None);
    // Without a draft.
    let params = SamplingParams::sampled(1.0);
    for rule in [&Rejection as &dyn Acceptance, &Coupled] {
        let mut counts = vec![0; p.len()];
        for seed in 0..20_000 {
            let mut scratch = logits(&p);
            let token = rule.choose(at(&mut scratch, &params, Noise::new(seed, 0).at(2)), None);
            counts[token.expect("p is a distribution") as usize] += 1;
        }
        assert_eq!(unlikely(&counts, &p), None, "{}", rule.name());
    }
    // Negative control: the draft is the likeliest token, and q is stated as if it was drawn.
    let likeliest = [0.0, 0.0, 0.0, 1.0, 0.0];
    assert!(unlikely(&counts(&Rejection, &p, &likeliest, &dense), &p).is_some());
}

/// What a rule proposes is what its own q says.
#[test]
fn rejection_proposes_from_the_q_it_states() {
    let p = [0.5, 0.25, 0.125, 0.125];
    let params = SamplingParams::sampled(1.0);
    let mut counts = vec![0u64; 4];
    for seed in 0..20_000 {
        let mut scratch = logits(&p);
        let proposed = Rejection.propose(at(&mut scratch, &params, Noise::new(seed, 0).at(1)));
        let proposed = proposed.expect("p is a distribution");
        let q = proposed.q.expect("a drawn token has a q");
        assert!(
            q.iter()
                .zip(p)
                .all(|(q, p)| (f64::from(*q) - p).abs() < 1e-6)
        );
        counts[proposed.token as usize] += 1;
    }
    assert_eq!(unlikely(&counts, &p), None);
}

/// A draft drawn from the target itself is always accepted, whatever the draw.
#[test]
fn a_draft_from_the_targets_own_distribution_is_accepted() {
    let p = [0.5, 0.25, 0.125, 0.125];
    let params = SamplingParams::sampled(1.0);
    for seed in 0..500 {
        let mut scratch = logits(&p);
        let noise = Noise::new(seed, 0).at(1);
        let exact: Vec<f32> = probabilities(&scratch).iter().map(|&p| p as f32).collect();
        let drafted = (seed % 4) as Token;
        let q = DraftedFrom::Dense(&exact);
        let draft = DraftedToken { token: drafted, q };
        let token = Rejection.choose(at(&mut scratch, &params, noise), Some(draft));
        assert_eq!(token, Some(drafted), "seed {seed}");
    }
}

/// At temperature 0 every rule is greedy, and a coupled proposal is the coupled choice.
#[test]
fn the_rules_agree_where_they_must() {
    let p = [0.2, 0.5, 0.3];
    let params = SamplingParams::greedy();
    for rule in [&Greedy as &dyn Acceptance, &Coupled, &Rejection] {
        for draft in 0..3 {
            let mut scratch = logits(&p);
            let q = DraftedFrom::Deterministic;
            let draft = Some(DraftedToken { token: draft, q });
            let place = at(&mut scratch, &params, Noise::new(1, 0).at(1));
            assert_eq!(rule.choose(place, draft), Some(1), "{}", rule.name());
        }
    }
    let params = SamplingParams::sampled(0.8);
    for seed in 0..100 {
        let noise = Noise::new(seed, 0).at(4);
        let (mut a, mut b) = (logits(&p), logits(&p));
        let proposed = Coupled
            .propose(at(&mut a, &params, noise))
            .expect("a token");
        assert_eq!(
            Coupled.choose(at(&mut b, &params, noise), None),
            Some(proposed.token)
        );
        assert_eq!(proposed.q, None);
    }
}
