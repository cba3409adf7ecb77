//! What a step costs beside the model: HashLm does next to no arithmetic, so the time is that of
//! scheduling, planning, drafting, packing, accepting and committing, and of its seven attention
//! calls.
//!
//! `cargo bench -p specdec-benches --bench step`

use criterion::{BenchmarkId, Criterion, Throughput};
use specdec::burn::prelude::Device;
use specdec::core::{Decoder, FirstCome, FixedLength, Request, TargetModel};
use specdec::ragged::SlotCache;
use specdec_testkit::{HashLm, oracle::Continuations, scripted::ScriptedDrafter};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const NEW: usize = 64;

fn decoder(model: &HashLm, rows: usize, k: usize) -> Decoder {
    let known = Continuations::new(prompts(rows).map(|p| (p.clone(), model.greedy(&p, NEW))));
    let builder = Decoder::builder(Arc::new(model.clone()))
        .cache(SlotCache::new(model.spec()).expect("a cache"))
        .scheduler(FirstCome { max_rows: rows })
        .controller(FixedLength(k));
    match k {
        0 => builder,
        _ => builder.drafter(ScriptedDrafter::sometimes(known, 20, 0.7, 1)),
    }
    .build()
    .expect("it fits")
}

fn prompts(rows: usize) -> impl Iterator<Item = Vec<u32>> {
    (0..rows as u32).map(|i| vec![i % 20, (i / 20) % 20, 3])
}

fn step(c: &mut Criterion) {
    let model = HashLm::new(20, &Device::flex());
    let mut group = c.benchmark_group("step");
    for (rows, k) in [(1, 0), (1, 4), (8, 0), (8, 4), (64, 0), (64, 4)] {
        let mut decoder = decoder(&model, rows, k);
        // One iteration is a whole pool; the throughput is in tokens.
        group.throughput(Throughput::Elements((rows * NEW) as u64));
        group.bench_function(
            BenchmarkId::new(format!("k={k}"), format!("{rows} rows")),
            |b| {
                b.iter(|| {
                    for prompt in prompts(rows) {
                        decoder
                            .submit(Request::new(prompt).max_new_tokens(NEW))
                            .expect("good");
                    }
                    decoder.run().expect("steps succeed")
                });
            },
        );
    }
    group.finish();
}

/// What a step of a full pool takes beside drafting, prefill and verifying: scheduling, planning, packing, judging,
/// committing, and telling drafter, controller and caller. Microseconds, median.
fn beside(model: &HashLm, rows: usize, k: usize) -> f64 {
    let mut decoder = decoder(model, rows, k);
    let mut times = Vec::new();
    for _ in 0..5 {
        for prompt in prompts(rows) {
            decoder
                .submit(Request::new(prompt).max_new_tokens(NEW))
                .expect("good");
        }
        while !decoder.is_idle() {
            let parts = |decoder: &Decoder| {
                let stats = decoder.stats();
                stats.prefill_time + stats.draft_time + stats.verify_time
            };
            let (before, rounds) = (parts(&decoder), decoder.stats().rounds);
            let started = Instant::now();
            let events = decoder.step().expect("steps succeed");
            let all = started.elapsed();
            if decoder.stats().rounds - rounds == rows as u64 {
                times.push(all.saturating_sub(parts(&decoder) - before));
            }
            black_box(events);
        }
    }
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    step(&mut criterion);
    criterion.final_summary();
    let model = HashLm::new(20, &Device::flex());
    println!("\n| rows | k | us of a step beside drafting and passes |\n|---|---|---|");
    for (rows, k) in [(1, 0), (1, 4), (8, 0), (8, 4), (64, 0), (64, 4)] {
        println!("| {rows} | {k} | {:.1} |", beside(&model, rows, k));
    }
}
