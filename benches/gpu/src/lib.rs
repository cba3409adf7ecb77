//! The device that the checks and the benchmark of this package run on.

use specdec::{Backend, ChosenDevice, DeviceChoice, DeviceError};

/// Names a backend, and a device of it after a colon: `cuda`, `wgpu:1`, `flex`.
pub const DEVICE: &str = "SPECDEC_DEVICE";

/// Why there is nothing to run on.
#[derive(Debug, thiserror::Error)]
pub enum NoDevice {
    /// What was asked for is no backend.
    #[error("{DEVICE}={asked}: want cuda, wgpu or flex, or one with a number as in `wgpu:1`")]
    Name {
        /// What was asked for.
        asked: String,
    },
    /// The machine or this build has not got it.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl NoDevice {
    /// Whether the build could use such a device and the machine has none.
    pub fn is_missing_hardware(&self) -> bool {
        matches!(self, Self::Device(DeviceError::NotFound { .. }))
    }
}

/// The device that the environment names; without a name the first one of the build's GPU backend, or
/// the CPU in a build without one.
///
/// # Errors
/// [`NoDevice::Name`], when the environment names no backend.
pub fn choice() -> Result<DeviceChoice, NoDevice> {
    match std::env::var(DEVICE) {
        Ok(name) => named(&name).ok_or(NoDevice::Name { asked: name }),
        Err(_) => {
            let mut gpus = [Backend::Cuda, Backend::Wgpu].into_iter();
            let backend = gpus.find(|backend| backend.is_compiled());
            Ok(DeviceChoice::Named(backend.unwrap_or(Backend::Flex), 0))
        }
    }
}

/// The device that is to be used.
///
/// # Errors
/// [`NoDevice`], when there is none: the CPU never stands in for a GPU.
pub fn device() -> Result<ChosenDevice, NoDevice> {
    Ok(choice()?.find()?)
}

fn named(name: &str) -> Option<DeviceChoice> {
    let (backend, index) = name.split_once(':').unwrap_or((name, "0"));
    let mut known = [Backend::Cuda, Backend::Wgpu, Backend::Flex].into_iter();
    let backend = known.find(|known| known.name() == backend)?;
    Some(DeviceChoice::Named(backend, index.parse().ok()?))
}
