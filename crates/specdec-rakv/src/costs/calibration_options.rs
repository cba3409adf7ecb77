use super::table::MAX_MENU;
use crate::error::{RakvError, Result};

/// Most rows that are measured.
const MAX_ROWS: usize = 1024;

/// What to measure, and how often.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `rows` | 1 | numbers of rows, rising from 1 or more, at most 1024 |
/// | `contexts` | 64, 256 | committed tokens of each row, rising from 1 or more |
/// | `lengths` | 0, 1, 2, 4, 8 | the menu, rising from 0, at most 8 entries |
/// | `warm_up` | 3 | passes of each cell that do not count (compilation, autotuning) |
/// | `rounds` | 9 | passes of each cell that count; 1 or more |
/// | `chunk` | 64 | prompt tokens of a prefill pass; 1 or more |
/// | `computed` | none | last tokens of each context that are computed; 1 or more |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationOptions {
    /// Numbers of rows.
    pub rows: Vec<usize>,
    /// Committed tokens of each row.
    pub contexts: Vec<usize>,
    /// The menu.
    pub lengths: Vec<usize>,
    /// Passes that do not count.
    pub warm_up: usize,
    /// Passes that count.
    pub rounds: usize,
    /// Prompt tokens of a prefill pass.
    pub chunk: usize,
    /// Last tokens of each context that are computed; the keys and values before them are made up, which
    /// makes long contexts quick to measure. For drafters that read nothing but the target's cache:
    /// those that follow the text themselves would have the rest to catch up with, and those with taps
    /// would miss it. `None` computes all.
    pub computed: Option<usize>,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self {
            rows: vec![1],
            contexts: vec![64, 256],
            lengths: vec![0, 1, 2, 4, 8],
            warm_up: 3,
            rounds: 9,
            chunk: 64,
            computed: None,
        }
    }
}

impl CalibrationOptions {
    pub(super) fn check(&self) -> Result<()> {
        let rising = |axis: &[usize], least: usize| {
            axis.first().is_some_and(|a| *a >= least) && axis.windows(2).all(|w| w[0] < w[1])
        };
        let menu = &self.lengths;
        let good_menu = rising(menu, 0) && menu[0] == 0 && menu.len() <= MAX_MENU;
        let checks = [
            (
                "rows",
                format!("{:?}", self.rows),
                rising(&self.rows, 1) && self.rows.iter().all(|rows| *rows <= MAX_ROWS),
                "rising, 1 to 1024",
            ),
            (
                "contexts",
                format!("{:?}", self.contexts),
                rising(&self.contexts, 1),
                "rising, 1 or more",
            ),
            (
                "lengths",
                format!("{menu:?}"),
                good_menu,
                "rising from 0, at most 8",
            ),
            (
                "rounds",
                self.rounds.to_string(),
                self.rounds > 0,
                "1 or more",
            ),
            ("chunk", self.chunk.to_string(), self.chunk > 0, "1 or more"),
            (
                "computed",
                format!("{:?}", self.computed),
                self.computed != Some(0),
                "1 or more",
            ),
        ];
        match checks.into_iter().find(|(_, _, good, _)| !good) {
            None => Ok(()),
            Some((setting, value, _, allowed)) => Err(RakvError::Setting {
                setting,
                value,
                allowed,
            }),
        }
    }
}
