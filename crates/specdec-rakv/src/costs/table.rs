//! What steps cost: measured seconds by rows, context and draft length.

use crate::error::{RakvError, Result};
use serde::{Deserialize, Serialize};

/// Most lengths of a menu, plain decoding included.
pub const MAX_MENU: usize = 8;

/// Most drafters to choose among.
pub const MAX_SOURCES: usize = 4;

/// Seconds as a function of a count: `fixed + each * n`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Line {
    /// Seconds of any call.
    pub fixed: f64,
    /// Seconds of each item.
    pub each: f64,
}

impl Line {
    /// Seconds for `n` items; none for no item.
    pub fn at(&self, n: usize) -> f64 {
        if n == 0 {
            0.0
        } else {
            self.fixed + self.each * n as f64
        }
    }

    fn is_sane(&self) -> bool {
        [self.fixed, self.each]
            .iter()
            .all(|x| x.is_finite() && *x >= 0.0)
    }
}

/// What a drafter costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceCosts {
    /// The drafter's name.
    pub name: String,
    /// Seconds of a draft for all rows, `[rows][contexts][lengths]`; nothing at length 0.
    pub draft: Vec<f64>,
    /// Seconds to bring a drafter over tokens it has not seen, by their number.
    pub catch_up: Line,
}

/// What prefilling costs: `tokens * (each + per_context * mean context)` seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PrefillCosts {
    /// Seconds of a token without context.
    pub each: f64,
    /// More seconds of a token for each position it attends to.
    pub per_context: f64,
}

impl PrefillCosts {
    /// Seconds to prefill positions `from..to`.
    pub fn between(&self, from: usize, to: usize) -> f64 {
        let tokens = to.saturating_sub(from) as f64;
        let context = (from + to) as f64 / 2.0;
        tokens * (self.each + self.per_context * context)
    }
}

/// Where stored entries lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// In this process's memory.
    Memory,
    /// In a file.
    Disk,
}

/// Measured seconds, as they were measured. See [`CostTable`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measurements {
    /// Rows of a step, rising.
    pub rows: Vec<usize>,
    /// Committed entries of each row, rising.
    pub contexts: Vec<usize>,
    /// Draft lengths, rising from 0.
    pub lengths: Vec<usize>,
    /// Seconds of a verify pass in which every row has this draft length,
    /// `[rows][contexts][lengths]`.
    pub verify: Vec<f64>,
    /// The drafters.
    pub sources: Vec<SourceCosts>,
    /// Prefill.
    pub prefill: PrefillCosts,
    /// Taking in stored entries from memory, by bytes.
    pub restore: Line,
    /// Reading them from disk before that, by bytes.
    pub read: Line,
}

/// Measured costs, repaired and ready to be asked.
///
/// Along draft lengths seconds never fall: where they did, neighbouring cells share their mean
/// (isotonic regression by pooling adjacent violators); [`Self::measurements`] keeps the raw
/// numbers. Between rows and contexts it is linear, and goes on linearly beyond the last.
#[derive(Debug, Clone, PartialEq)]
pub struct CostTable {
    raw: Measurements,
    verify: Vec<f64>,
    drafts: Vec<Vec<f64>>,
}

/// Seconds of a step at given rows and context, by place in the menu.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepCosts {
    pub(crate) verify: [f64; MAX_MENU],
    pub(crate) draft: [[f64; MAX_MENU]; MAX_SOURCES],
}

impl CostTable {
    /// A table of measured seconds.
    ///
    /// # Errors
    /// [`RakvError::Table`] for axes that do not rise or lengths that do not start at 0, for too many
    /// lengths or drafters, for wrong numbers of cells, and for seconds that are not finite and
    /// positive.
    pub fn new(raw: Measurements) -> Result<Self> {
        let wrong = |what: String| Err(RakvError::Table(what));
        for (what, axis) in [
            ("rows", &raw.rows),
            ("contexts", &raw.contexts),
            ("lengths", &raw.lengths),
        ] {
            if axis.is_empty() || axis.windows(2).any(|w| w[0] >= w[1]) {
                return wrong(format!("{what} {axis:?} do not rise"));
            }
        }
        if raw.lengths[0] != 0 || raw.lengths.len() > MAX_MENU {
            let lengths = &raw.lengths;
            return wrong(format!(
                "lengths {lengths:?}: they start at 0 and are at most {MAX_MENU}"
            ));
        }
        if raw.sources.len() > MAX_SOURCES {
            let n = raw.sources.len();
            return wrong(format!(
                "{n} drafters, at most {MAX_SOURCES} can be chosen among"
            ));
        }
        let cells = raw.rows.len() * raw.contexts.len() * raw.lengths.len();
        if raw.verify.len() != cells {
            return wrong(format!("{} verify cells for {cells}", raw.verify.len()));
        }
        if let Some(x) = raw.verify.iter().find(|x| !(x.is_finite() && **x > 0.0)) {
            return wrong(format!("a verify pass of {x} seconds"));
        }
        for source in &raw.sources {
            let name = &source.name;
            if source.draft.len() != cells {
                return wrong(format!(
                    "{} cells of {name} for {cells}",
                    source.draft.len()
                ));
            }
            if let Some(x) = source.draft.iter().find(|x| !(x.is_finite() && **x >= 0.0)) {
                return wrong(format!("a draft of {name} of {x} seconds"));
            }
            if !source.catch_up.is_sane() {
                return wrong(format!(
                    "catching up with {name} costs {:?}",
                    source.catch_up
                ));
            }
        }
        let prefill = raw.prefill;
        let ok = |x: f64| x.is_finite() && x >= 0.0;
        if !(ok(prefill.each) && ok(prefill.per_context)) {
            return wrong(format!("prefill costs {prefill:?}"));
        }
        if !(raw.restore.is_sane() && raw.read.is_sane()) {
            return wrong(format!(
                "restoring costs {:?}, reading {:?}",
                raw.restore, raw.read
            ));
        }
        let width = raw.lengths.len();
        let repaired = |cells: &[f64]| {
            let mut cells = cells.to_vec();
            cells.chunks_mut(width).for_each(pool_adjacent_violators);
            cells
        };
        Ok(Self {
            verify: repaired(&raw.verify),
            drafts: raw.sources.iter().map(|s| repaired(&s.draft)).collect(),
            raw,
        })
    }

    /// A table with the same costs at every number of rows and every context: `plain` seconds for a
    /// plain step, and for each length `(k, verify)` with the verify pass in plain steps. `drafters`
    /// have a name and the price of a drafted token in plain steps.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn flat(plain: f64, verify: &[(usize, f64)], drafters: &[(&str, f64)]) -> Result<Self> {
        let lengths: Vec<usize> = std::iter::once(0)
            .chain(verify.iter().map(|v| v.0))
            .collect();
        let sources = drafters.iter().map(|(name, price)| SourceCosts {
            name: (*name).into(),
            draft: lengths.iter().map(|k| *k as f64 * price * plain).collect(),
            catch_up: Line::default(),
        });
        Self::new(Measurements {
            rows: vec![1],
            contexts: vec![1],
            verify: std::iter::once(plain)
                .chain(verify.iter().map(|v| v.1 * plain))
                .collect(),
            sources: sources.collect(),
            lengths,
            prefill: PrefillCosts {
                each: plain / 4.0,
                per_context: 0.0,
            },
            restore: Line::default(),
            read: Line::default(),
        })
    }

    /// What it was made from.
    pub fn measurements(&self) -> &Measurements {
        &self.raw
    }

    /// The draft lengths, rising from 0.
    pub fn lengths(&self) -> &[usize] {
        &self.raw.lengths
    }

    /// The drafters' names.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.raw.sources.iter().map(|s| s.name.as_str())
    }

    /// Seconds of a verify pass of rows with `length` drafts each.
    pub fn verify_seconds(&self, rows: usize, context: usize, length: usize) -> f64 {
        self.between(&self.verify, rows, context, length)
    }

    /// Seconds of a drafter to draft `length` tokens for each of `rows` rows; 0 for a drafter that
    /// does not exist.
    pub fn draft_seconds(&self, source: usize, rows: usize, context: usize, length: usize) -> f64 {
        let cells = self.drafts.get(source);
        cells.map_or(0.0, |cells| self.between(cells, rows, context, length))
    }

    /// Seconds for a drafter to take in `tokens` it has not seen.
    pub fn catch_up_seconds(&self, source: usize, tokens: usize) -> f64 {
        let source = self.raw.sources.get(source);
        source.map_or(0.0, |s| s.catch_up.at(tokens))
    }

    /// Seconds to prefill positions `from..to`.
    pub fn prefill_seconds(&self, from: usize, to: usize) -> f64 {
        self.raw.prefill.between(from, to)
    }

    /// Seconds to take in stored entries of this size.
    pub fn restore_seconds(&self, bytes: usize, tier: Tier) -> f64 {
        let restore = self.raw.restore.at(bytes);
        match tier {
            Tier::Memory => restore,
            Tier::Disk => restore + self.raw.read.at(bytes),
        }
    }

    /// Tokens' worth of a cycle: its seconds in plain steps at the same rows and context.
    pub fn cycle(&self, source: usize, rows: usize, context: usize, length: usize) -> f64 {
        let plain = self.verify_seconds(rows, context, 0);
        (self.verify_seconds(rows, context, length)
            + self.draft_seconds(source, rows, context, length))
            / plain
    }

    /// The share of drafted tokens that must be right for drafts of `length` to pay
    /// ([`super::break_even`]); `None` when no share suffices.
    pub fn break_even(
        &self,
        source: usize,
        rows: usize,
        context: usize,
        length: usize,
    ) -> Option<f64> {
        super::break_even(length, self.cycle(source, rows, context, length))
    }

    /// Seconds at given rows and context, for the whole menu.
    pub(crate) fn step(&self, rows: usize, context: usize) -> StepCosts {
        let row = locate(&self.raw.rows, rows);
        let at = locate(&self.raw.contexts, context);
        let mut step = StepCosts {
            verify: [0.0; MAX_MENU],
            draft: [[0.0; MAX_MENU]; MAX_SOURCES],
        };
        for i in 0..self.raw.lengths.len() {
            step.verify[i] = self.cell(&self.verify, row, at, i);
            for (draft, cells) in step.draft.iter_mut().zip(&self.drafts) {
                draft[i] = self.cell(cells, row, at, i);
            }
        }
        step
    }

    fn between(&self, cells: &[f64], rows: usize, context: usize, length: usize) -> f64 {
        let row = locate(&self.raw.rows, rows);
        let at = locate(&self.raw.contexts, context);
        let (i, part) = locate(&self.raw.lengths, length);
        let low = self.cell(cells, row, at, i);
        if part == 0.0 {
            return low;
        }
        let high = self.cell(cells, row, at, i + 1);
        low + (high - low).max(0.0) * part
    }

    /// A cell between rows and contexts.
    fn cell(&self, cells: &[f64], row: (usize, f64), at: (usize, f64), length: usize) -> f64 {
        let (contexts, lengths) = (self.raw.contexts.len(), self.raw.lengths.len());
        let get = |r: usize, c: usize| cells[(r * contexts + c) * lengths + length];
        let along = |r: usize| {
            let low = get(r, at.0);
            if at.1 == 0.0 {
                return low;
            }
            grown(low, get(r, at.0 + 1), at.1)
        };
        let low = along(row.0);
        if row.1 == 0.0 {
            return low;
        }
        grown(low, along(row.0 + 1), row.1)
    }
}

/// Linear between two cells and beyond the second, never below half the lower one.
fn grown(low: f64, high: f64, part: f64) -> f64 {
    (low + (high - low) * part).max(low.min(high) / 2.0)
}

/// The interval of a rising axis that `x` lies in, and how far; beyond the end more than 1, below
/// the beginning 0.
fn locate(axis: &[usize], x: usize) -> (usize, f64) {
    let last = axis.len() - 1;
    if last == 0 || x <= axis[0] {
        return (0, 0.0);
    }
    let i = axis
        .partition_point(|a| *a <= x)
        .saturating_sub(1)
        .min(last - 1);
    let (from, to) = (axis[i] as f64, axis[i + 1] as f64);
    (i, (x as f64 - from) / (to - from))
}

/// Makes the numbers rise: neighbours that fall are replaced by their mean, again and again. The
/// least-squares rising fit.
pub(crate) fn pool_adjacent_violators(values: &mut [f64]) {
    let mut blocks: Vec<(f64, usize)> = Vec::with_capacity(values.len());
    for &value in values.iter() {
        blocks.push((value, 1));
        while let [.., (a, n), (b, m)] = blocks[..]
            && a > b
        {
            blocks.truncate(blocks.len() - 2);
            let mean = (a * n as f64 + b * m as f64) / (n + m) as f64;
            blocks.push((mean, n + m));
        }
    }
    let pooled = blocks
        .into_iter()
        .flat_map(|(value, n)| std::iter::repeat_n(value, n));
    for (value, pooled) in values.iter_mut().zip(pooled) {
        *value = pooled;
    }
}
