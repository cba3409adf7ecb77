//! Tests of the ragged caches.

mod slots;
mod state_machine;
