use specdec_core::{CacheError, Phase, RowSpan, SeqId};
use std::collections::HashMap;

/// An open pass: what was staged, and which layers have attended.
#[derive(Debug)]
pub(crate) struct Transaction {
    phase: Phase,
    rows: Vec<RowSpan>,
    /// Entries staged by this and, in a draft, earlier passes.
    staged: HashMap<SeqId, usize>,
    seen: Vec<bool>,
}

impl Transaction {
    /// Checks the rows of a new pass, given the pass that is open and the committed lengths.
    pub(crate) fn check(
        open: Option<&Self>,
        rows: &[RowSpan],
        phase: Phase,
        len: impl Fn(SeqId) -> usize,
    ) -> Result<Self, CacheError> {
        let mut staged = match open {
            None => HashMap::new(),
            Some(open) if open.phase == Phase::Draft && phase == Phase::Draft => {
                open.staged.clone()
            }
            Some(_) => return Err(CacheError::PassOpen),
        };
        let mut first = HashMap::new();
        for (row, span) in rows.iter().enumerate() {
            let seq = span.seq;
            if span.len == 0 {
                return Err(CacheError::EmptyRow { row, seq });
            }
            if let Some(first) = first.insert(seq, row) {
                return Err(CacheError::Duplicate {
                    seq,
                    first,
                    second: row,
                });
            }
            let ahead = staged.entry(seq).or_default();
            let len = len(seq) + *ahead;
            if span.start != len {
                return Err(CacheError::Start {
                    row,
                    seq,
                    start: span.start,
                    len,
                });
            }
            *ahead += span.len;
        }
        Ok(Self {
            phase,
            rows: rows.to_vec(),
            staged,
            seen: Vec::new(),
        })
    }

    pub(crate) fn rows(&self) -> &[RowSpan] {
        &self.rows
    }

    /// Entries of a sequence that are staged, by this pass and earlier draft passes.
    pub(crate) fn staged(&self, seq: SeqId) -> usize {
        self.staged.get(&seq).copied().unwrap_or(0)
    }

    /// Which of the layers have attended; none yet.
    pub(crate) fn seen(&mut self, layers: usize) -> &mut [bool] {
        self.seen = vec![false; layers];
        &mut self.seen
    }

    /// Whether `keep` may be kept of this pass.
    pub(crate) fn check_commit(&self, keep: &[usize], layers: usize) -> Result<(), CacheError> {
        if self.phase == Phase::Draft {
            return Err(CacheError::DraftPass);
        }
        if keep.len() != self.rows.len() {
            return Err(CacheError::KeepRows {
                keep: keep.len(),
                rows: self.rows.len(),
            });
        }
        for (row, (span, &keep)) in self.rows.iter().zip(keep).enumerate() {
            if keep > span.len {
                return Err(CacheError::KeepTooMany {
                    row,
                    keep,
                    staged: span.len,
                });
            }
        }
        if let Some(layer) = self.seen.iter().position(|seen| !seen) {
            return Err(CacheError::LayerMissing { layer, layers });
        }
        Ok(())
    }

    /// A sequence was evicted while the pass is open: nothing of it can be kept.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.staged.remove(&seq);
        for row in self.rows.iter_mut().filter(|row| row.seq == seq) {
            row.len = 0;
        }
    }
}
