//! Tests of the ragged caches.

mod conformance;
mod slots;
mod state_machine;
