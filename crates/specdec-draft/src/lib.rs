#![doc = include_str!("../README.md")]

mod model;
mod ngram;

pub use model::ModelDrafter;
pub use ngram::{NgramDrafter, NgramSettings};
