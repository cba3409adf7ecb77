//! A row's draft from its lattice.

use crate::calibration::{Calibration, EarlyStop};
use crate::lattice::Lattice;
use specdec_core::{DraftRow, Proposal, RowDraft};

/// How a path through the candidates is chosen.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum PathRule {
    /// Slot by slot, each after the candidate chosen before it, by the request's own acceptance
    /// rule: the best one, with the position's shared noise, or drawn.
    #[default]
    Walk,
    /// The path whose prefix is expected to be accepted the furthest ([`Lattice::longest_expected`]),
    /// under any acceptance rule: its tokens are chosen, never drawn.
    ExpectedLength(Calibration),
}

/// How drafts are chosen from lattices.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) path: PathRule,
    pub(crate) early_stop: Option<EarlyStop>,
}

impl Choice {
    /// At most `row.k` tokens, each of its slot's candidates, and how they were found.
    pub(crate) fn draft(&self, row: &DraftRow<'_>, lattice: &Lattice, vocab: usize) -> RowDraft {
        let slots = row.k.min(lattice.len());
        let planned = match &self.path {
            PathRule::Walk => None,
            PathRule::ExpectedLength(calibration) => Some(lattice.longest_expected(calibration).0),
        };
        let mut draft = RowDraft::default();
        let (mut ids, mut probs) = (Vec::new(), Vec::new());
        let (mut previous, mut chance) = (0, 1.0);
        for slot in 0..slots {
            if let Some(stop) = &self.early_stop {
                match stop.goes_on(lattice, slot, previous, chance) {
                    Some(with_it) => chance = with_it,
                    None => break,
                }
            }
            let candidates = &lattice.ids[slot];
            if let Some(path) = &planned {
                previous = path[slot];
                draft.tokens.extend(candidates.get(previous));
                continue;
            }
            let scores = lattice.row(slot, previous);
            let Some(pick) = row.pick_among(&draft.tokens, vocab, candidates, scores) else {
                break;
            };
            previous = pick.index;
            draft.tokens.push(pick.token);
            if let Some(q) = pick.probs {
                ids.push(candidates.clone());
                probs.push(q);
            }
        }
        if !draft.tokens.is_empty() && probs.len() == draft.tokens.len() {
            draft.proposal = Proposal::Sparse { ids, probs };
        }
        draft
    }
}
