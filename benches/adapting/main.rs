//! What stored prefixes and adaptive draft lengths gain or cost against every fixed policy, where drafting pays
//! and where it does not: generations timed from prompt to last token, in blocks of one prompt and all policies.
//!
//! The target is the tiny trained pair's, or the GGUF file in `SPECDEC_ADAPTING_MODEL`. Drafters: the pair's draft
//! model, and replay drafters, which run a model for their time and then say the right token with a set probability:
//! dear ones run the draft model, cheap ones the first of its two layers; of a GGUF file, dear ones its first four
//! layers, cheap ones nothing. Everything decodes on one thread, greedily, one prompt at a time, and every output must
//! equal the plain one. Prompts are drawn from the target at temperature 1.
//!
//! `cargo bench -p specdec-benches --bench adapting [-- grid|break-even|extremes|decision] [-- --quick]`

mod break_even;
mod decision;
mod extremes;
mod grid;
mod replay;
mod report;
mod statistics;
mod timed;
mod world;

use grid::Plan;
use std::path::Path;
use world::World;

fn main() {
    // Cargo passes --bench.
    let (flags, wanted): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with('-'));
    let quick = flags.iter().any(|flag| flag == "--quick");
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    specdec::kernels::set_threads(1);
    let (world, plan) = match std::env::var_os("SPECDEC_ADAPTING_MODEL") {
        None => (World::tiny(), Plan::tiny(if quick { 5 } else { 25 })),
        Some(file) => (
            World::of(Path::new(&file)),
            Plan::large(if quick { 2 } else { 8 }),
        ),
    };
    if runs("grid") {
        report::print(&grid::run(&world, &plan));
    }
    if runs("break-even") {
        break_even::run(&world, if quick { 4 } else { 12 });
    }
    if runs("extremes") {
        extremes::run(&world, if quick { 15 } else { 60 });
    }
    if runs("decision") {
        decision::run(&world);
    }
}
