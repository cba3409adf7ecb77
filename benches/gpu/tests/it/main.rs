//! The equivalence suite, once for every backend: `SPECDEC_DEVICE=wgpu|cuda|flex`.
//!
//! Without a name it takes the GPU backend of the build, and skips where that finds no device. Nothing here is decided by a random seed of its own: a failure comes again.

mod caches;
mod devices;
mod drafters;
mod hash_lm;
mod in_place;
mod kernels;
mod margin;
mod options;
mod prefixes;
mod reads;
mod trained;
mod transformers;
mod world;

use burn::prelude::Device;
use burn::tensor::DeviceConfig;
use libtest_mimic::{Arguments, Trial};
use specdec::Backend;
use specdec_gpu::DEVICE;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};

/// A check of one device. It panics when something is wrong.
type Check = fn(&Device);

/// The checks that need the device, by name.
fn checks() -> Vec<(String, Check)> {
    let modules: [(&str, &[(&str, Check)]); 10] = [
        ("caches", caches::CHECKS),
        ("drafters", drafters::CHECKS),
        ("hash_lm", hash_lm::CHECKS),
        ("in_place", in_place::CHECKS),
        ("kernels", kernels::CHECKS),
        ("options", options::CHECKS),
        ("prefixes", prefixes::CHECKS),
        ("reads", reads::CHECKS),
        ("trained", trained::CHECKS),
        ("transformers", transformers::CHECKS),
    ];
    let named = |(module, checks): (&str, &'static [(&str, Check)])| {
        let checks = checks.iter();
        checks
            .map(move |(name, check)| (format!("{module}::{name}"), *check))
            .collect::<Vec<_>>()
    };
    modules.into_iter().flat_map(named).collect()
}

/// Runs a check beside others, or, where it looks at the whole process, by itself.
fn alone_or_beside(name: &str, check: impl FnOnce()) {
    static ALONE: RwLock<()> = RwLock::new(());
    if name.starts_with("reads") {
        let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
        check();
    } else {
        let _beside = ALONE.read().unwrap_or_else(PoisonError::into_inner);
        check();
    }
}

fn main() -> ExitCode {
    if devices::is_probe() {
        return devices::probe();
    }
    let mut found = match specdec_gpu::device() {
        // What was asked for by name has to be there; else its absence is told, and no failure.
        Err(error) if !error.is_missing_hardware() || std::env::var_os(DEVICE).is_some() => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
        found => found,
    };
    if let Ok(chosen) = &mut found
        && let Some(dtype) = in_place::float()
    {
        let config = DeviceConfig::default().float_dtype(dtype);
        let configured = chosen.device.configure(config);
        configured.expect("a device that nothing has used");
    }
    let mut trials: Vec<Trial> = checks()
        .into_iter()
        .map(|(name, check)| match &found {
            // The log that tells of reads is wgpu's.
            Ok(chosen) if name.starts_with("reads") && chosen.backend != Backend::Wgpu => {
                Trial::test(name, || Ok(()))
                    .with_kind("only on wgpu")
                    .with_ignored_flag(true)
            }
            Ok(chosen) => {
                let device = chosen.device.clone();
                Trial::test(name.clone(), move || {
                    alone_or_beside(&name, || check(&device));
                    Ok(())
                })
            }
            Err(_) => Trial::test(name, || Ok(()))
                .with_kind("skipped: no adapter")
                .with_ignored_flag(true),
        })
        .collect();
    let skipped = trials.len();
    let without: [(&str, fn()); 2] = [
        (
            "devices::no_adapter_is_a_typed_error",
            devices::no_adapter_is_a_typed_error,
        ),
        (
            "devices::software_is_not_the_best",
            devices::software_is_not_the_best,
        ),
    ];
    trials.extend(without.map(|(name, check)| {
        Trial::test(name, move || {
            check();
            Ok(())
        })
    }));
    match &found {
        Ok(chosen) => println!("{} ({:?})", chosen.backend, chosen.device),
        Err(_) => println!("no adapter"),
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    match &found {
        Ok(_) => println!("{}", margin::summary()),
        Err(error) => println!("skipped: no adapter ({error}): {skipped} checks did not run"),
    }
    conclusion.exit_code()
}
