//! Tests of the ragged caches.

mod budget;
mod conformance;
mod slots;
mod state_machine;
