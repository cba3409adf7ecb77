//! The block formats of GGUF files: what they are, and their exact values.

mod dequantize;
mod format;
mod unpack;

pub use dequantize::dequantize;
pub use format::BlockFormat;
#[cfg(any(feature = "flex", feature = "burn-cubecl"))]
pub(crate) use unpack::Unpacked;
