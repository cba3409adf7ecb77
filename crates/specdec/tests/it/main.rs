//! Tests of the facade.

mod cases;
mod devices;
mod drafters;
mod engine;
mod golden;
mod memory;
mod pairing;
mod reuse;
mod strategies;
mod streaming;
mod threads;
mod tiny_families;
mod tiny_pair;
