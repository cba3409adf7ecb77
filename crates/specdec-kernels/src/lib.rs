#![doc = include_str!("../README.md")]

mod attention;
#[cfg(feature = "burn-cubecl")]
mod cube;
mod error;
#[cfg(feature = "flex")]
mod extension;
#[cfg(feature = "flex")]
mod flex;
#[cfg(all(feature = "fusion", feature = "burn-cubecl"))]
mod fused;
mod matmul;
mod quant;
mod small;
mod threads;
#[cfg(feature = "flex")]
mod vector;

pub use attention::{Attended, AttentionPass, AttentionRow, Shift, SlotStore};
pub use error::KernelError;
pub use matmul::{Activations, WeightMatrix};
pub use quant::{BlockFormat, dequantize};
pub use small::{RotaryPairing, argmax_rows, rms_norm, rotary, swiglu};
pub use threads::{set_threads, threads};
