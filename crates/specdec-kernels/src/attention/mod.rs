//! Attention of packed rows of different lengths over keys and values that stay where they are.

mod pass;
mod store;
mod tensor_store;

pub use pass::{AttentionPass, AttentionRow};
pub use store::{Attended, SlotStore};
