use crate::find_model;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use specdec::core::{Acceptance, Coupled, Greedy, Rejection};
use specdec::kernels::Activations;
use specdec::models::WeightDtype;
use specdec::{Backend, DeviceChoice, Model};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Which model, where, and how.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// A GGUF file, a Hugging Face folder, or a name
    #[arg(long, default_value = "smollm2-135m-instruct")]
    pub model: String,
    /// best, or a backend and a device number such as cuda:0
    #[arg(long, default_value = "best", value_parser = device)]
    pub device: DeviceChoice,
    /// How the weights are held in memory
    #[arg(long, value_enum, default_value_t = Dtype::Stored)]
    pub dtype: Dtype,
    /// What quantised weights are multiplied with on the CPU
    #[arg(long, value_enum, default_value_t = ActivationArg::Float)]
    pub activations: ActivationArg,
    /// CPU threads [default: all cores]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// How weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// As in the file: quantised weights stay quantised
    Stored,
    /// 32-bit floats
    F32,
    /// 16-bit brain floats
    Bf16,
}

/// What activations are multiplied as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationArg {
    /// f32
    Float,
    /// 8-bit integers with a scale for each group: faster, with a rounding error
    Int8,
}

/// How drafts are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AcceptRule {
    /// The best token; refuses a temperature
    Greedy,
    /// Seeded sampling that drafts cannot change
    Coupled,
    /// Speculative sampling: the same distribution, more acceptance
    Rejection,
}

impl AcceptRule {
    /// The rule itself.
    pub fn rule(self) -> Arc<dyn Acceptance> {
        match self {
            Self::Greedy => Arc::new(Greedy),
            Self::Coupled => Arc::new(Coupled),
            Self::Rejection => Arc::new(Rejection),
        }
    }
}

impl ModelArgs {
    /// Finds and opens the model, with a progress bar and a line on what is used, both on stderr.
    pub fn open(&self) -> Result<Model> {
        if let Some(threads) = self.threads.map(usize::from) {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build_global()?;
            specdec::kernels::set_threads(threads);
        }
        self.open_as(&self.model, self.dtype, self.activations)
    }

    /// Opens another model on the same device, such as a drafter.
    pub fn open_as(&self, name: &str, dtype: Dtype, activations: ActivationArg) -> Result<Model> {
        let found = find_model(name)?;
        eprintln!("model: {found}");
        let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
            "loading {bar:30} {bytes}/{total_bytes}",
        )?);
        let shown = bar.clone();
        let model = Model::builder(&found.path)
            .device(self.device)
            .dtype(match dtype {
                Dtype::Stored => WeightDtype::Stored,
                Dtype::F32 => WeightDtype::F32,
                Dtype::Bf16 => WeightDtype::Bf16,
            })
            .activations(match activations {
                ActivationArg::Float => Activations::Float,
                ActivationArg::Int8 => Activations::Int8,
            })
            .progress(move |done, total| {
                shown.set_length(total);
                shown.set_position(done);
                ControlFlow::Continue(())
            })
            .open()
            .with_context(|| format!("cannot open {}", found.path.display()))?;
        bar.finish_and_clear();
        if let Some(notice) = model.notice() {
            eprintln!("{notice}");
        }
        Ok(model)
    }
}

fn device(text: &str) -> Result<DeviceChoice, String> {
    if text == "best" {
        return Ok(DeviceChoice::Best);
    }
    let (name, index) = text.split_once(':').unwrap_or((text, "0"));
    let index = index
        .parse()
        .map_err(|_| format!("{index} is no device number"))?;
    let backend = match name {
        "flex" | "cpu" => Backend::Flex,
        "cuda" => Backend::Cuda,
        "wgpu" => Backend::Wgpu,
        "vulkan" => Backend::Vulkan,
        "metal" => Backend::Metal,
        _ => return Err(format!("{name} is none of flex, cuda, wgpu, vulkan, metal")),
    };
    Ok(DeviceChoice::Named(backend, index))
}
