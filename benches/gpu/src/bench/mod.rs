//! The parts of the benchmark.

pub mod attend;
pub mod bounds;
pub mod decode;
pub mod filled;
pub mod parts;
pub mod passes;
pub mod synthetic;
pub mod table;
