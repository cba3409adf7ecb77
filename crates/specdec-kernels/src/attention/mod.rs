//! Attention of packed rows of different lengths over keys and values that stay where they are.

#[cfg(feature = "flex")]
mod add;
#[cfg(feature = "flex")]
mod band;
#[cfg(feature = "flex")]
mod block;
#[cfg(feature = "flex")]
mod columns;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod host;
#[cfg(feature = "flex")]
mod host_store;
mod keys;
mod pass;
#[cfg(feature = "flex")]
mod score;
mod store;
mod tensor_store;

pub use pass::{AttentionPass, AttentionRow};
pub use store::{Attended, Shift, SlotStore};
