mod drafter;
mod faults;
mod sampling;
mod schedule;
mod target;

pub use drafter::{Listed, Mistakes, ScriptedDrafter};
pub use faults::{FailingDrafter, FlakyTarget};
pub use sampling::{QForm, SamplingDrafter};
pub use schedule::{Lengths, RandomController, RandomScheduler};
pub use target::{ScriptedTarget, Seen};
