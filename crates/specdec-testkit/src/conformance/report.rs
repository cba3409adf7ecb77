use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// What a suite checked, all of it found right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    suite: &'static str,
    checks: BTreeMap<&'static str, usize>,
}

impl Report {
    pub(super) fn new(suite: &'static str) -> Self {
        Self {
            suite,
            checks: BTreeMap::new(),
        }
    }

    /// The suite's name.
    pub fn suite(&self) -> &'static str {
        self.suite
    }

    /// Each check by name, with how often it was made.
    pub fn checks(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.checks.iter().map(|(name, n)| (*name, *n))
    }

    /// Notes that a check was made and what came of it.
    pub(super) fn check(
        &mut self,
        check: &'static str,
        right: bool,
        what: impl FnOnce() -> String,
    ) -> Result<(), Violation> {
        *self.checks.entry(check).or_default() += 1;
        if right {
            Ok(())
        } else {
            Err(self.violation(check, what()))
        }
    }

    /// The value, or the violation that it failed.
    pub(super) fn done<T>(
        &mut self,
        check: &'static str,
        result: specdec_core::Result<T>,
        what: impl FnOnce() -> String,
    ) -> Result<T, Violation> {
        *self.checks.entry(check).or_default() += 1;
        result.map_err(|e| self.violation(check, format!("{}: {e}", what())))
    }

    pub(super) fn violation(&self, check: &'static str, what: String) -> Violation {
        let suite = self.suite;
        Violation { suite, check, what }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: every check holds", self.suite)?;
        self.checks()
            .try_for_each(|(name, n)| writeln!(f, "{n:6} x {name}"))
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{suite} conformance, {check}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The suite.
    pub suite: &'static str,
    /// The check's name.
    pub check: &'static str,
    /// What happened, with the numbers needed to see it again.
    pub what: String,
}

/// The largest difference of two slices; infinite when lengths differ or a number is not finite.
pub(super) fn distance(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    a.iter().zip(b).fold(0.0, |worst, (x, y)| {
        let d = (x - y).abs();
        if d.is_nan() {
            f32::INFINITY
        } else {
            worst.max(d)
        }
    })
}

/// A tensor's numbers.
pub(super) fn numbers<const D: usize>(tensor: burn::prelude::Tensor<D>) -> Vec<f32> {
    tensor
        .into_data()
        .try_into_vec_as::<f32>()
        .unwrap_or_default()
}
