//! Tests of the plain drafters.

mod conformance;
mod model;
mod ngram;
