//! The suites must pass what is right and find what is wrong: every mutant here has one planted bug.

mod cache_mutants;
mod controller_mutants;
mod drafter_mutants;
mod hash_lm;
mod scripted;
mod target_mutants;
mod weights;

use burn::prelude::Device;

fn device() -> Device {
    Device::flex()
}
