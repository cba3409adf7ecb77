use specdec_core::{Controller, Outcome, Plan, PoolView, SeqId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What one row did in one verify pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Round {
    /// Tokens drafted.
    pub k: usize,
    /// Drafts that were emitted.
    pub n: usize,
    /// Tokens emitted.
    pub kept: usize,
}

impl Round {
    /// A round of `k` drafts, `n` of them emitted, and `kept` tokens in all.
    pub fn new(k: usize, n: usize, kept: usize) -> Self {
        Self { k, n, kept }
    }
}

impl From<(usize, usize, usize)> for Round {
    fn from((k, n, kept): (usize, usize, usize)) -> Self {
        Self { k, n, kept }
    }
}

/// The rounds a [`Traced`] controller saw. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<BTreeMap<SeqId, Vec<Round>>>>);

impl Trace {
    /// The rounds of a sequence, in order.
    pub fn of(&self, seq: SeqId) -> Vec<Round> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&seq).cloned().unwrap_or_default()
    }

    /// The rounds of all sequences.
    pub fn all(&self) -> BTreeMap<SeqId, Vec<Round>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A controller that writes down what every row did and is otherwise the one inside.
#[derive(Debug, Clone, Default)]
pub struct Traced<C> {
    inner: C,
    trace: Trace,
}

impl<C: Controller> Traced<C> {
    /// Writes down what the rows of this controller do.
    pub fn new(inner: C) -> Self {
        Self {
            inner,
            trace: Trace::default(),
        }
    }

    /// The record, to be kept when the controller is given away.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }
}

impl<C: Controller> Controller for Traced<C> {
    fn plan(&mut self, view: &PoolView) -> Plan {
        self.inner.plan(view)
    }

    fn observe(&mut self, outcome: &Outcome) {
        let mut all = self.trace.0.lock().unwrap_or_else(PoisonError::into_inner);
        for row in &outcome.rows {
            let round = Round::new(row.drafted, row.accepted, row.emitted);
            all.entry(row.seq).or_default().push(round);
        }
        drop(all);
        self.inner.observe(outcome);
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
    }
}

/// The rounds a row must go through, from what is known of its drafter alone.
///
/// `k` is the draft length of each round (it is cut so that the target's own token still fits in
/// `max_new`), `wrong` tells for an output index whether the draft for it is wrong. Output equality
/// never shows a drafter that has lost its way; the comparison of this with a [`Trace`] does.
pub fn plan(
    max_new: usize,
    mut k: impl FnMut(usize) -> usize,
    wrong: impl Fn(usize) -> bool,
) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut emitted = 0;
    while emitted < max_new {
        let k = k(rounds.len()).min(max_new - emitted - 1);
        let n = (0..k).take_while(|i| !wrong(emitted + i)).count();
        rounds.push(Round::new(k, n, n + 1));
        emitted += n + 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_the_mistakes() {
        let of = |max_new, wrong: &[usize]| -> Vec<(usize, usize, usize)> {
            let rounds = plan(max_new, |_| 3, |i| wrong.contains(&i));
            rounds.iter().map(|r| (r.k, r.n, r.kept)).collect()
        };
        assert_eq!(of(8, &[4]), [(3, 3, 4), (3, 0, 1), (2, 2, 3)]);
        assert_eq!(of(8, &[0, 5]), [(3, 0, 1), (3, 3, 4), (2, 0, 1), (1, 1, 2)]);
        assert_eq!(of(0, &[]), []);
    }
}
