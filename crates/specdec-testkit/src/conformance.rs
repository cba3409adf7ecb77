mod cache;
mod controller;
mod drafter;
mod model_drafter;
mod report;
mod target;
mod watched;

pub use cache::{CachePromises, cache, cache_promising};
pub use controller::{ControllerPromises, controller, controller_promising};
pub use drafter::drafter;
pub use model_drafter::model_drafter;
pub use report::{Report, Violation};
pub use target::{TargetPromises, target, target_promising};
