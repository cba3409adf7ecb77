use super::correction::{Analytic, Correction};
use super::decision::Decision;
use super::inner::{Inner, MOST_BANK};
use super::options::AdaptiveOptions;
use super::report::ControlReport;
use super::state::ControllerState;
use crate::costs::{CostTable, Refresh};
use crate::error::Result;
use crate::steering::{Choice, Steering};
use specdec_core::{Controller, Outcome, Plan, PoolView, SeqId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Chooses for every row and step how long to draft, or not at all, and by whom, so that most
/// tokens are expected per time.
///
/// A row with acceptance `h1` at the first place of a draft and `h2` at later ones yields
/// `E(k) = 1 + h1 + h1 h2 + .. + h1 h2^(k-1)` tokens from a round with k drafts, which costs `C(k)`
/// plain steps by the [`CostTable`]: the row takes the k with the best `E(k) / C(k)`, when that is
/// better enough than what it does now, and when the tokens left earn back what the drafter needs
/// to catch up. While a row decodes plainly, a small share of the time is saved up to try a draft.
///
/// Costs follow the measured times, and nothing else does: the same outcomes give the same plans.
/// A row's plan follows from its own drafts, from the number of rows beside it, and from what ended
/// sequences have taught; never from its neighbours' text.
///
/// Clones share one controller: keep one to read the [`report`](Self::report), give the other to the
/// decoder.
#[derive(Debug)]
pub struct Adaptive<C = Analytic> {
    inner: Arc<Mutex<Inner<C>>>,
    steering: Steering,
}

impl<C> Clone for Adaptive<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            steering: self.steering.clone(),
        }
    }
}

impl Adaptive {
    /// A controller with these costs and the default options.
    pub fn new(table: CostTable) -> Self {
        Self::build(table, AdaptiveOptions::default(), Analytic)
    }

    /// A controller with other options.
    ///
    /// # Errors
    /// [`crate::RakvError::Setting`] for an option out of its range.
    pub fn with_options(table: CostTable, options: AdaptiveOptions) -> Result<Self> {
        Self::corrected(table, options, Analytic)
    }
}

impl<C: Correction> Adaptive<C> {
    /// A controller whose predictions are corrected by something that learns, such as
    /// [`crate::Ridge`].
    ///
    /// # Errors
    /// [`crate::RakvError::Setting`] for an option out of its range.
    pub fn corrected(table: CostTable, options: AdaptiveOptions, correction: C) -> Result<Self> {
        options.check()?;
        Ok(Self::build(table, options, correction))
    }

    fn build(table: CostTable, options: AdaptiveOptions, correction: C) -> Self {
        let inner = Inner::new(table, options, correction);
        Self {
            inner: Arc::new(Mutex::new(inner)),
            steering: Steering::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<C>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle by which it steers a [`crate::SwitchDrafter`].
    pub fn steering(&self) -> Steering {
        self.steering.clone()
    }

    /// What it did so far, and how right it was.
    pub fn report(&self) -> ControlReport {
        self.lock().report()
    }

    /// The measured costs that it predicts from.
    pub fn costs(&self) -> CostTable {
        self.lock().table.clone()
    }

    /// What was last planned for a live sequence, and why.
    pub fn decision(&self, seq: SeqId) -> Option<Decision> {
        let inner = self.lock();
        let planned = &inner.rows.get(&seq)?.planned;
        Some(planned.explained(inner.table.lengths(), inner.sources()))
    }

    /// What it has learnt from ended sequences and from measured times.
    pub fn state(&self) -> ControllerState {
        let inner = self.lock();
        ControllerState {
            names: inner.table.sources().map(str::to_owned).collect(),
            lengths: inner.table.lengths().to_vec(),
            means: inner.means.clone(),
            factors: inner.refresh.factors(),
            bank: inner.bank,
        }
    }

    /// Goes on with what another controller had learnt.
    ///
    /// # Errors
    /// [`crate::RakvError::Table`] when that one had other drafters or lengths, or its numbers make
    /// no sense.
    pub fn restore(&self, state: &ControllerState) -> Result<()> {
        let mut inner = self.lock();
        state.check(&inner.table, inner.means.len())?;
        inner.means.clone_from(&state.means);
        inner.refresh = Refresh::restored(&state.factors);
        inner.bank = state.bank.clamp(0.0, MOST_BANK);
        Ok(())
    }
}

impl<C: Correction> Controller for Adaptive<C> {
    fn plan(&mut self, view: &PoolView) -> Plan {
        let mut board = self.steering.board();
        let inner = &mut *self.lock();
        inner.drafters = board.drafters;
        let how = inner.options.forgetting();
        for sample in board.samples.drain(..) {
            if let Some(row) = inner.rows.get_mut(&sample.seq)
                && let Some(own) = row.sources.get_mut(sample.source)
            {
                own.estimate.compared(sample.right, sample.failed, &how);
            }
        }
        for (seq, source, look) in board.looks.drain(..) {
            if let Some(own) = inner
                .rows
                .get_mut(&seq)
                .and_then(|row| row.sources.get_mut(source))
            {
                own.estimate.looked_back(look.into_iter(), &how);
            }
        }
        let listening = board.drafters > 0;
        let back = board.blind.map(|blind| listening && !blind);
        let plan = inner.plan(view, listening, back);
        if listening {
            for seen in &view.rows {
                if let Some(row) = inner.rows.get(&seen.seq) {
                    let planned = &row.planned;
                    let drafting = planned.arm.level > 0 && planned.verifies();
                    let choice = Choice {
                        verified: drafting.then_some(planned.arm.source),
                        silent: planned.silent,
                        back: planned.back,
                    };
                    board.choices.insert(seen.seq, choice);
                }
            }
        }
        plan
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.lock().observe(outcome);
    }

    fn evict(&mut self, seq: SeqId) {
        self.steering.board().choices.remove(&seq);
        self.lock().evict(seq);
    }
}
