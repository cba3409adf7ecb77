//! Attention of packed rows of different lengths over keys and values that stay where they are.

#[cfg(feature = "flex")]
mod band;
#[cfg(feature = "flex")]
mod block;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod host;
#[cfg(feature = "flex")]
mod host_store;
mod pass;
mod store;
mod tensor_store;

pub use pass::{AttentionPass, AttentionRow};
pub use store::{Attended, Shift, SlotStore};
