#![doc = include_str!("../README.md")]

mod chunks;
mod slots;

pub use slots::{SlotCache, SlotOptions};
