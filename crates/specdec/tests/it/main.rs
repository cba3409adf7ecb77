//! Tests of the facade.

mod golden;
mod tiny_pair;
