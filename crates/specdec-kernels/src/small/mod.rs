//! The small maps between matrix products: normalisation, rotary positions, gating, argmax.

mod argmax;
#[cfg(feature = "flex")]
pub(crate) mod host;
mod rms_norm;
mod rotary;
mod swiglu;

pub use argmax::argmax_rows;
pub use rms_norm::rms_norm;
pub use rotary::{RotaryPairing, rotary};
pub use swiglu::swiglu;
