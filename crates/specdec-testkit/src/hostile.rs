//! What a reader of files must survive: mutated input, measured in memory and time.
//!
//! A [`Campaign`] mutates valid inputs and gives each to a reader. The reader may accept or refuse;
//! it may not panic, take more memory than a limit, or go on for longer than a limit. Inputs that are
//! accepted, or refused for a reason that was not seen before, are mutated further.
//!
//! Memory is known only where the test binary counts it:
//!
//! ```
//! use specdec_testkit::hostile::{Campaign, CountingAllocator};
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//!
//! let report = Campaign::new("numbers")
//!     .cases(200)
//!     .memory(1 << 20)
//!     .input(b"[1, 2, 3]".to_vec())
//!     .run(
//!         |mutator, bytes| mutator.json(bytes),
//!         |bytes| match std::str::from_utf8(bytes) {
//!             Ok(text) if text.starts_with('[') => Ok(()),
//!             Ok(_) => Err("no list".into()),
//!             Err(error) => Err(error.to_string()),
//!         },
//!     );
//! assert_eq!(report.cases, 200);
//! assert!(report.accepted > 0 && report.reasons > 0, "{report}");
//! ```

mod allocations;
mod campaign;
mod mutator;

pub use allocations::{CountingAllocator, live_bytes, measured};
pub use campaign::{Campaign, CampaignReport};
pub use mutator::Mutator;
