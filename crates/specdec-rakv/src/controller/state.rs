use crate::acceptance::SlowMean;
use crate::costs::{CostTable, Factors};
use crate::error::{RakvError, Result};
use serde::{Deserialize, Serialize};

/// What a controller has learnt, to be kept beyond the process (it is serialisable).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControllerState {
    pub(super) names: Vec<String>,
    pub(super) lengths: Vec<usize>,
    pub(super) means: Vec<SlowMean>,
    pub(super) factors: Factors,
    pub(super) bank: f64,
}

impl ControllerState {
    pub(super) fn check(&self, table: &CostTable, sources: usize) -> Result<()> {
        let names: Vec<&str> = table.sources().collect();
        if self.names != names || self.means.len() != sources {
            let own = &self.names;
            return Err(RakvError::Table(format!(
                "a state of drafters {own:?} for {names:?}"
            )));
        }
        if self.lengths != table.lengths() {
            let (own, wanted) = (&self.lengths, table.lengths());
            return Err(RakvError::Table(format!(
                "a state of lengths {own:?} for {wanted:?}"
            )));
        }
        if !self.means.iter().all(SlowMean::is_sane) || !self.bank.is_finite() {
            return Err(RakvError::Table(
                "a state whose numbers make no sense".into(),
            ));
        }
        Ok(())
    }
}
