mod group;
mod metered;
mod static_batch;

pub use group::{Fallback, GroupByLength};
pub use metered::{BatchMeter, BatchStats, Metered};
pub use static_batch::StaticBatch;
