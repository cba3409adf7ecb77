//! Tests of the crate. `tNN_` names the case of the paper's behaviour that a test pins.

mod config;
mod conformance;
mod cost;
mod drafting;
mod equality;
mod exact;
mod sampling;
mod scores;
mod world;
