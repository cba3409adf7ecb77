//! The crate's tests: every kernel against slow code that cannot be wrong in the same way.

mod attention;
mod oracle;
