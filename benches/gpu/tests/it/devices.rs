//! A machine without a graphics driver, made by hiding it from a process of its own.

use specdec::{Backend, DeviceChoice};
use std::process::{Command, ExitCode};

const PROBE: &str = "SPECDEC_PROBE";

/// Whether this process is the one that looks.
pub(crate) fn is_probe() -> bool {
    std::env::var_os(PROBE).is_some()
}

/// Looks for a device of every GPU backend, and says what it found.
pub(crate) fn probe() -> ExitCode {
    for backend in [Backend::Wgpu, Backend::Cuda] {
        match DeviceChoice::Named(backend, 0).find() {
            Ok(chosen) => println!("{backend}: {:?}", chosen.device),
            Err(error) => println!("{backend}: error: {error}"),
        }
    }
    ExitCode::SUCCESS
}

/// Asking for a GPU where there is none gives an error that says so: no panic, and no other device.
pub(crate) fn no_adapter_is_a_typed_error() {
    let program = std::env::current_exe().expect("a running program");
    let output = Command::new(program)
        .env(PROBE, "1")
        .env("VK_DRIVER_FILES", "/nonexistent")
        .env("VK_ICD_FILENAMES", "/nonexistent")
        .env("LIBGL_DRIVERS_PATH", "/nonexistent")
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{trouble}");
    for backend in [Backend::Wgpu, Backend::Cuda] {
        let want = if backend.is_compiled() {
            format!("{backend}: error: {backend} has 0 devices on this machine")
        } else {
            format!("{backend}: error: {backend} is not in this build")
        };
        assert!(text.contains(&want), "{text}{trouble}");
    }
}

/// A software adapter has to be asked for by name: the best device is then the CPU's own backend.
pub(crate) fn software_is_not_the_best() {
    let best = DeviceChoice::Best.find().expect("the CPU is always there");
    let gpus = [Backend::Cuda, Backend::Wgpu]
        .into_iter()
        .flat_map(Backend::devices);
    let cards = gpus.filter(is_card).count();
    assert_eq!(best.backend == Backend::Flex, cards == 0, "{best:?}");
    let compiled = Backend::Cuda.is_compiled() || Backend::Wgpu.is_compiled();
    assert_eq!(best.notice.is_some(), compiled && cards == 0, "{best:?}");
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn is_card(device: &specdec::burn::prelude::Device) -> bool {
    device
        .identity()
        .is_some_and(|identity| identity.physical.is_some())
}

#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
fn is_card(_: &specdec::burn::prelude::Device) -> bool {
    false
}
