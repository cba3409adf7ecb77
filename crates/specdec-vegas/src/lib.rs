#![doc = include_str!("../README.md")]

mod cache;
mod collect;
mod config;
mod cost;
mod drafter;
mod known;
mod meter;
mod select;

pub use cache::Vegas;
pub use config::{CheckedConfig, Collect, HeadSets, VegasConfig};
pub use cost::{BreakEven, CostModel, acceptance_length};
pub use drafter::VegasDrafter;
pub use meter::{VegasMeter, VegasStats};
pub use select::{Candidates, Everything, Random, Ranked, Select, Streaming};
pub use specdec_core::Score;
