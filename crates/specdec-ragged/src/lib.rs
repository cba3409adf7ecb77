#![doc = include_str!("../README.md")]

mod aligned;
mod attend;
mod chunks;
mod model_shape;
mod row_lengths;
mod schedule;
mod selective;
mod slots;
mod strategy;
mod transaction;

pub use aligned::{AlignMeter, AlignStats, AlignedCache, AlignedRow, Alignment};
pub use row_lengths::{RowLengths, RowLengthsOptions};
pub use schedule::{BatchMeter, BatchStats, Fallback, GroupByLength, Metered, StaticBatch};
pub use slots::{SlotCache, SlotOptions};
pub use strategy::{BatchCache, BatchMeters, BatchParts, Strategy};
