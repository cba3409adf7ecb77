//! Tests of the ragged caches.

mod aligned;
mod budget;
mod conformance;
mod drafting;
mod equality;
mod pitfalls;
mod pitfalls_batch;
mod row_lengths;
mod scheduling;
mod selective;
mod slots;
mod state_machine;
mod world;
