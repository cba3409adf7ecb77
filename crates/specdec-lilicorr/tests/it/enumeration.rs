//! Losslessness by adding up the chances of everything that can happen, not by sampling.

use specdec_core::accept::{accept_probability, residual};
use specdec_core::sampling::probabilities;
use specdec_lilicorr::Lattice;

const V: usize = 4;
const K: usize = 2;

struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn distribution(&mut self, zeros: bool) -> Vec<f64> {
        let mut p: Vec<f64> = (0..V).map(|_| self.next()).collect();
        if zeros {
            p[(self.next() * V as f64) as usize] = 0.0;
        }
        let sum: f64 = p.iter().sum();
        p.iter().map(|x| x / sum).collect()
    }
}

/// The target: a distribution after each text of up to two tokens.
struct Law(Vec<Vec<f64>>);

impl Law {
    fn new(draws: &mut Draws, zeros: bool) -> Self {
        Self(
            (0..1 + V + V * V)
                .map(|_| draws.distribution(zeros))
                .collect(),
        )
    }

    fn after(&self, text: &[usize]) -> &[f64] {
        match *text {
            [] => &self.0[0],
            [a] => &self.0[1 + a],
            [a, b, ..] => &self.0[1 + V + a * V + b],
        }
    }
}

fn lattice(draws: &mut Draws) -> Lattice {
    let ids: Vec<Vec<u32>> = (0..2)
        .map(|_| {
            let first = (draws.next() * V as f64) as u32;
            vec![first, (first + 1 + (draws.next() * 3.0) as u32) % V as u32]
        })
        .collect();
    let mut score = || (draws.next() * 6.0 - 3.0) as f32;
    let start = vec![score(), score()];
    let pairs = vec![(0..K).map(|_| vec![score(), score()]).collect()];
    let logprobs = vec![vec![-1.0; K]; 2];
    Lattice {
        ids,
        logprobs,
        start,
        pairs,
    }
}

/// How drafts are chosen, and which q is stated.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Drawn along the walk; q is the row drawn from.
    Walk,
    /// The best path; q is 1 at its tokens.
    Greedy,
    /// Drawn from the rows of the best path; q is those rows.
    GreedyRows,
    /// The best path with the rows stated as q: false.
    Dishonest,
}

/// The chance of each text of two tokens, `[V * V]`.
fn emitted(law: &Law, lattice: &Lattice, mode: Mode) -> Vec<f64> {
    let mut out = vec![0.0; V * V];
    let best = lattice.greedy();
    let row = |slot: usize, previous: usize| probabilities(lattice.row(slot, previous));
    for a in 0..K {
        for b in 0..K {
            let path = [a, b];
            let rows = match mode {
                Mode::Walk => [row(0, 0), row(1, a)],
                _ => [row(0, 0), row(1, best[0])],
            };
            let chance = match mode {
                Mode::Walk | Mode::GreedyRows => rows[0][a] * rows[1][b],
                _ => f64::from(u8::from(path[..] == best[..])),
            };
            let tokens = [0, 1].map(|s| lattice.ids[s][path[s]] as usize);
            let q = |slot: usize, token: usize| match mode {
                Mode::Greedy => f64::from(u8::from(token == tokens[slot])),
                _ => (0..K)
                    .filter(|&i| lattice.ids[slot][i] as usize == token)
                    .map(|i| rows[slot][i])
                    .sum(),
            };
            verify(law, tokens, chance, &q, &mut out);
        }
    }
    out
}

fn verify(
    law: &Law,
    tokens: [usize; 2],
    chance: f64,
    q: &dyn Fn(usize, usize) -> f64,
    out: &mut [f64],
) {
    let mut text: Vec<usize> = Vec::new();
    let mut chance = chance;
    for (slot, &token) in tokens.iter().enumerate() {
        let p = law.after(&text);
        let accept = accept_probability(p[token], q(slot, token));
        let rest = residual(p, |t| q(slot, t as usize));
        for (t, r) in rest.iter().enumerate() {
            let mut text = text.clone();
            text.push(t);
            finish(law, &text, chance * (1.0 - accept) * r, out);
        }
        chance *= accept;
        text.push(token);
    }
    finish(law, &text, chance, out);
}

/// Goes on plainly until there are two tokens.
fn finish(law: &Law, text: &[usize], chance: f64, out: &mut [f64]) {
    match *text {
        [a, b, ..] => out[a * V + b] += chance,
        [a] => {
            for (b, p) in law.after(&[a]).iter().enumerate() {
                out[a * V + b] += chance * p;
            }
        }
        [] => unreachable!("a step emits"),
    }
}

fn error(law: &Law, got: &[f64]) -> f64 {
    (0..V * V)
        .map(|i| (got[i] - law.after(&[])[i / V] * law.after(&[i / V])[i % V]).abs())
        .fold(0.0, f64::max)
}

#[test]
fn every_honest_way_of_drafting_keeps_the_targets_law() {
    let mut draws = Draws(7);
    for case in 0..60 {
        let law = Law::new(&mut draws, case % 3 == 1);
        let lattice = lattice(&mut draws);
        for mode in [Mode::Walk, Mode::Greedy, Mode::GreedyRows] {
            let error = error(&law, &emitted(&law, &lattice, mode));
            assert!(error < 1e-12, "case {case}, {mode:?}: {error}");
        }
    }
}

/// The control: the same sum finds a false q.
#[test]
fn t24_a_chosen_path_with_its_rows_as_q_is_found_out() {
    let mut draws = Draws(7);
    let worst = (0..60)
        .map(|case| {
            let law = Law::new(&mut draws, case % 3 == 1);
            let lattice = lattice(&mut draws);
            error(&law, &emitted(&law, &lattice, Mode::Dishonest))
        })
        .fold(0.0, f64::max);
    assert!(worst > 0.05, "largest error {worst}");
}
