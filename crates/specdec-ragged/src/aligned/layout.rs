//! Where the rows of the rectangle lie.

use specdec_core::{Phase, RowSpan, SeqId};
use std::collections::BTreeMap;

/// Which rows an [`AlignedCache`](super::AlignedCache) keeps aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// All sequences it holds, whether they take part in a pass or not: one rectangle, EQSPEC's.
    #[default]
    All,
    /// The rows of each pass, when it begins; others stay as they are. For a pool of which a few
    /// rows run at a time, EXSPEC's: rows of one length need no move.
    Pass,
}

/// A row as it lies in the rectangle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AlignedRow {
    /// The sequence.
    pub seq: SeqId,
    /// Columns before its position 0.
    pub padding: usize,
    /// Committed entries.
    pub len: usize,
}

/// Where a row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pad: usize,
    /// Columns it needs memory for.
    pub(super) columns: usize,
}

/// The places of all rows that are aligned for a pass over `rows`, `held` being the sequences there
/// are with their lengths, and `staged` what earlier draft passes have added to them.
pub(super) fn places(
    alignment: Alignment,
    held: impl Iterator<Item = (SeqId, usize)>,
    staged: impl Fn(SeqId) -> usize,
    rows: &[RowSpan],
    phase: Phase,
) -> BTreeMap<SeqId, Place> {
    let new: BTreeMap<SeqId, usize> = rows.iter().map(|row| (row.seq, row.len)).collect();
    let mut lens: BTreeMap<SeqId, usize> = held
        .filter(|&(seq, len)| {
            // Rows that are drafted for stay together while some of them go on.
            let aligned = staged(seq) > 0 || (alignment == Alignment::All && len > 0);
            aligned || new.contains_key(&seq)
        })
        .collect();
    for &seq in new.keys() {
        lens.entry(seq).or_default();
    }
    let new = |seq| new.get(&seq).copied().unwrap_or(0);
    // What of a row ends at the common column: all it has, and in a prefill what it will have.
    let ends = |seq, len| match phase {
        Phase::Prefill => len + new(seq),
        _ => len,
    };
    let longest = lens.iter().map(|(&seq, &len)| ends(seq, len)).max();
    let end = longest.unwrap_or(0);
    lens.iter()
        .map(|(&seq, &len)| {
            let pad = end - ends(seq, len);
            let columns = pad + len + staged(seq) + new(seq);
            (seq, Place { pad, columns })
        })
        .collect()
}
