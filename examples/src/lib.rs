//! What the examples share: finding a model, and options they all take.

mod args;
mod memory;
mod plot;
mod resolve;

pub use args::{AcceptRule, ActivationArg, Dtype, ModelArgs};
pub use memory::peak_memory_bytes;
pub use plot::{Curve, plot};
pub use resolve::{Found, find_model, smollm2_drafter};
