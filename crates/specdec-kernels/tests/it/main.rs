//! The crate's tests: every kernel against slow code that cannot be wrong in the same way.

mod attention;
#[cfg(feature = "flex")]
mod fixed;
#[cfg(feature = "flex")]
mod independence;
mod oracle;
mod padding;
mod problem;
mod products;
mod quants;
mod selection;
mod small;
