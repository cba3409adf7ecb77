//! Choosing where to compute, without a panic and without surprise.

use burn::prelude::Device;
use std::fmt;
use thiserror::Error;

/// A backend by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Pure Rust on the CPU; needs nothing installed.
    Flex,
    /// NVIDIA GPUs.
    Cuda,
    /// GPUs through WebGPU, Vulkan, Metal or DirectX.
    Wgpu,
    /// GPUs through Vulkan with SPIR-V kernels.
    Vulkan,
    /// Apple GPUs with Metal kernels.
    Metal,
}

impl Backend {
    /// Best first.
    const ALL: [Self; 5] = [
        Self::Cuda,
        Self::Metal,
        Self::Vulkan,
        Self::Wgpu,
        Self::Flex,
    ];

    /// The name, which is also the Cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
        }
    }

    /// Whether this build has the backend.
    pub fn is_compiled(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Metal => cfg!(feature = "metal"),
        }
    }

    /// The devices of this backend on this machine; none when the build has not got it.
    pub fn devices(self) -> Vec<Device> {
        #[allow(unused_imports)]
        use burn::tensor::DeviceType;
        match self {
            #[cfg(feature = "flex")]
            Self::Flex => vec![Device::flex()],
            #[cfg(feature = "cuda")]
            Self::Cuda => Device::enumerate(DeviceType::Cuda).into_vec(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Device::enumerate(DeviceType::Wgpu).into_vec(),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => Device::enumerate(DeviceType::Vulkan).into_vec(),
            #[cfg(feature = "metal")]
            Self::Metal => Device::enumerate(DeviceType::Metal).into_vec(),
            #[allow(unreachable_patterns)]
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first of CUDA, Metal, Vulkan, wgpu that has a card here, else the CPU. An adapter that
    /// computes in software, such as Mesa's, is no card: the CPU backend is far faster. It can be
    /// had by name.
    #[default]
    Best,
    /// This device of this backend, or an error.
    Named(Backend, usize),
}

/// A device, and what there is to say about how it was found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChosenDevice {
    /// The device.
    pub device: Device,
    /// Its backend.
    pub backend: Backend,
    /// Set when [`DeviceChoice::Best`] fell back to the CPU although GPU backends are compiled in:
    /// which ones had no device.
    pub notice: Option<String>,
}

/// Why a device cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The build has not got the backend.
    #[error(
        "{asked} is not in this build (enable the Cargo feature `{asked}`); there is: {available}"
    )]
    NotCompiled {
        /// The backend asked for.
        asked: Backend,
        /// What can be had instead.
        available: String,
    },
    /// The machine has no such device.
    #[error(
        "{asked} has {found} devices on this machine, number {index} was asked for; there is: {available}"
    )]
    NotFound {
        /// The backend asked for.
        asked: Backend,
        /// The device number asked for.
        index: usize,
        /// Devices of that backend.
        found: usize,
        /// What can be had instead.
        available: String,
    },
    /// The build has no backend at all.
    #[error(
        "this build has no backend: enable one of the Cargo features flex, cuda, wgpu, vulkan, metal"
    )]
    NoBackend,
}

impl DeviceChoice {
    /// Finds the device.
    ///
    /// # Errors
    /// [`DeviceError`], naming what was asked for and what there is.
    pub fn find(self) -> Result<ChosenDevice, DeviceError> {
        match self {
            Self::Best => best(),
            Self::Named(backend, index) => named(backend, index),
        }
    }
}

fn best() -> Result<ChosenDevice, DeviceError> {
    let mut without = Vec::new();
    for backend in Backend::ALL.into_iter().filter(|b| b.is_compiled()) {
        match backend.devices().into_iter().find(|d| !in_software(d)) {
            Some(device) => {
                let notice = (!without.is_empty()).then(|| {
                    format!(
                        "no device for {}: computing with {backend}",
                        without.join(", ")
                    )
                });
                return Ok(ChosenDevice {
                    device,
                    backend,
                    notice,
                });
            }
            None => without.push(backend.name()),
        }
    }
    Err(DeviceError::NoBackend)
}

/// Whether a device of a GPU backend is no card. Opens the device.
fn in_software(device: &Device) -> bool {
    #[cfg(any(
        feature = "cuda",
        feature = "wgpu",
        feature = "vulkan",
        feature = "metal"
    ))]
    {
        // The CPU backend does not say who it is.
        device
            .identity()
            .is_some_and(|identity| identity.physical.is_none())
    }
    #[cfg(not(any(
        feature = "cuda",
        feature = "wgpu",
        feature = "vulkan",
        feature = "metal"
    )))]
    {
        let _ = device;
        false
    }
}

fn named(backend: Backend, index: usize) -> Result<ChosenDevice, DeviceError> {
    if !backend.is_compiled() {
        return Err(DeviceError::NotCompiled {
            asked: backend,
            available: available(),
        });
    }
    let devices = backend.devices();
    let found = devices.len();
    match devices.into_iter().nth(index) {
        Some(device) => Ok(ChosenDevice {
            device,
            backend,
            notice: None,
        }),
        None => Err(DeviceError::NotFound {
            asked: backend,
            index,
            found,
            available: available(),
        }),
    }
}

/// What can be asked for, such as "cuda:0, flex:0".
fn available() -> String {
    let list: Vec<String> = Backend::ALL
        .into_iter()
        .flat_map(|backend| (0..backend.devices().len()).map(move |i| format!("{backend}:{i}")))
        .collect();
    if list.is_empty() {
        "nothing".into()
    } else {
        list.join(", ")
    }
}
