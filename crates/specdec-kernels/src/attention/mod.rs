//! Attention of packed rows of different lengths over keys and values that stay where they are.

#[cfg(feature = "flex")]
mod add;
#[cfg(feature = "flex")]
mod band;
#[cfg(feature = "flex")]
mod block;
#[cfg(feature = "flex")]
mod columns;
#[cfg(feature = "burn-cubecl")]
mod cube;
mod derived;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod host;
#[cfg(feature = "flex")]
mod host_store;
mod keys;
mod pass;
#[cfg(feature = "flex")]
mod report;
#[cfg(feature = "flex")]
mod score;
mod store;
mod tensor_store;

#[cfg(feature = "burn-cubecl")]
use cube::in_place;
pub use pass::{AttentionPass, AttentionRow};
pub use store::{Attended, Shift, SlotStore};

/// No build without a GPU backend has a kernel that reads a store's tensors in place.
#[cfg(not(feature = "burn-cubecl"))]
fn in_place(
    _layer: usize,
    _q: &burn::tensor::Tensor<3>,
    _held: &[burn::tensor::Tensor<3>; 2],
    _pass: &AttentionPass,
) -> Option<Attended> {
    None
}
