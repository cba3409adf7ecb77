//! One GPU in under ten minutes: what it can do at best, and what decoding does with it.

mod bench;

use bench::decode::Batch;
use bench::synthetic::{LARGE, SMALL, Shape, TINY};
use bench::table::Table;
use bench::{attend, bounds, decode, parts, passes};
use clap::{Parser, ValueEnum};
use specdec::burn::tensor::{DeviceConfig, FloatDType};
use specdec::core::TargetModel;
use specdec::models::LoadOptions;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The type weights, keys and values are held in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Float {
    F32,
    Bf16,
}

/// Measures one device and prints one table. SPECDEC_DEVICE=cuda|wgpu|flex chooses it.
#[derive(Debug, Parser)]
struct Args {
    /// A GGUF file of SmolLM2 135M, or of any other model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Small sizes, to see that everything runs.
    #[arg(long)]
    quick: bool,
    /// The type weights, keys and values are held in, where the device has it.
    #[arg(long, value_enum, default_value_t = Float::F32)]
    float: Float,
    /// Leave out the model of 8 billion parameters.
    #[arg(long)]
    small: bool,
    /// Memory that models and contexts may take.
    #[arg(long, default_value_t = 100)]
    memory_gib: usize,
    /// After so long no measurement begins.
    #[arg(long, default_value_t = 480)]
    seconds: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut table = Table::new(Duration::from_secs(args.seconds));
    let result = run(&args, &mut table);
    table.print();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, table: &mut Table) -> Result<(), Box<dyn Error>> {
    let mut device = specdec_gpu::device()?.device;
    if args.float == Float::Bf16 {
        device.configure(DeviceConfig::default().float_dtype(FloatDType::BF16))?;
    }
    println!("{device:?}, {:?}\n", device.settings().float_dtype);
    bounds::measure(table, &device, args.quick);

    let contexts: [usize; 2] = if args.quick {
        [64, 256]
    } else {
        [1024, 16_384]
    };
    let batches: &[usize] = if args.quick { &[1, 3] } else { &[1, 8, 32] };
    if let Some(path) = &args.model {
        let loaded = specdec::models::open(path, &LoadOptions::default(), &device)?;
        let target: Arc<dyn TargetModel> = Arc::new(loaded.model);
        // Its context is shorter than the longer one.
        let contexts =
            contexts.map(|context| context.min(target.spec().context.saturating_sub(200).max(1)));
        measure(args, table, ("SmolLM2", &target), &contexts, batches)?;
    }
    let shapes: &[Shape] = match (args.quick, args.small) {
        (true, _) => &[TINY],
        (false, true) => &[SMALL],
        (false, false) => &[SMALL, LARGE],
    };
    for shape in shapes {
        if !table.has_time("everything", shape.name, "-") {
            continue;
        }
        let number = if args.float == Float::Bf16 { 2 } else { 4 };
        let weights = shape.parameters() * number;
        let target: Arc<dyn TargetModel> = Arc::new(shape.model(&device)?);
        let free = (args.memory_gib << 30).saturating_sub(weights);
        for &context in &contexts {
            let fits = |rows: &&usize| **rows * context * shape.position_bytes(number) < free;
            let fitting: Vec<usize> = batches.iter().filter(fits).copied().collect();
            for rows in batches.iter().filter(|rows| !fitting.contains(rows)) {
                table.row(
                    "plain",
                    shape.name,
                    format!("{rows} rows, {context} tokens of context"),
                    "not measured: no memory",
                );
            }
            measure(args, table, (shape.name, &target), &[context], &fitting)?;
        }
    }
    Ok(())
}

/// Everything there is to know of one model.
fn measure(
    args: &Args,
    table: &mut Table,
    (name, target): (&str, &Arc<dyn TargetModel>),
    contexts: &[usize],
    batches: &[usize],
) -> Result<(), Box<dyn Error>> {
    let new = if args.quick { 12 } else { 24 };
    for &context in contexts {
        let place = format!("{context} tokens of context");
        if table.has_time("c(k)", name, &place) {
            passes::cost_by_length(table, name, &**target, context)?;
        }
        for &rows in batches {
            if table.has_time("attention of a layer", name, &place) {
                attend::measure(table, name, target.spec(), rows, context)?;
            }
            if table.has_time("plain", name, format!("{rows} rows, {place}")) {
                decode::compare(table, name, target, Batch { rows, context, new })?;
            }
        }
        if table.has_time("Vegas", name, &place) {
            parts::vegas(table, name, target, context)?;
        }
    }
    let rows = batches
        .iter()
        .copied()
        .filter(|rows| *rows <= 8)
        .max()
        .unwrap_or(1);
    if table.has_time("realigning", name, "-") {
        passes::realign(table, name, &**target, rows, contexts[0])?;
    }
    if table.has_time("LiLiCorr", name, "-") {
        parts::lilicorr(table, name, target, 128)?;
    }
    Ok(())
}
