//! How a controller tells a [`SwitchDrafter`](crate::SwitchDrafter) who drafts, and how it hears of
//! drafts that were only compared.

use crate::costs::MAX_SOURCES;
use specdec_core::SeqId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who drafts for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Choice {
    /// Whose draft is verified, if any.
    pub(crate) verified: Option<usize>,
    /// Who drafts beside that, to be compared with what is emitted.
    pub(crate) silent: Option<usize>,
    /// Who tells what of the last emitted tokens it would have drafted.
    pub(crate) back: Option<usize>,
}

/// What came of a silent draft: its first `right` tokens were emitted, and then another one was if
/// `failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) seq: SeqId,
    pub(crate) source: usize,
    pub(crate) right: usize,
    pub(crate) failed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Drafters of the switch that listens; 0 when none does.
    pub(crate) drafters: usize,
    pub(crate) choices: HashMap<SeqId, Choice>,
    pub(crate) samples: Vec<Sample>,
    /// What drafters said when they looked back.
    pub(crate) looks: Vec<(SeqId, usize, Vec<bool>)>,
    /// Drafters that cannot look back.
    pub(crate) blind: [bool; MAX_SOURCES],
}

/// A handle shared by a controller and the drafter it steers. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Steering(Arc<Mutex<Board>>);

impl Steering {
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The drafter that will draft for a sequence, as last planned; `None` for plain decoding.
    pub fn source(&self, seq: SeqId) -> Option<usize> {
        self.board().choices.get(&seq)?.verified
    }
}
