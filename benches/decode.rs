//! SmolLM2 on this machine: plain and n-gram decoding, and the verify cost ratio c(k), the time of a
//! block of k+1 tokens over the time of a block of one. All in one run, so that the ratios hold
//! where the times do not. Also prints the peak memory.
//!
//! `cargo bench -p specdec-benches --bench decode`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use specdec::core::{Block, KvCache, Phase, SeqId};
use specdec::kernels::Activations;
use specdec::models::WeightDtype;
use specdec::prelude::*;
use specdec::ragged::SlotCache;
use specdec::{Backend, DeviceChoice, DraftLength};
use specdec_examples::{find_model, peak_memory_bytes};
use std::time::{Duration, Instant};

const PROMPT: &str = "Repeat this list in the same order, one item a line: copper kettle, silver \
    spoon, wooden bowl, copper pan, glass jar, silver fork, wooden board, glass bottle, copper lid, \
    silver knife, wooden ladle, glass plate.";
const NEW: usize = 96;
/// Committed tokens before the block that is timed.
const CONTEXT: usize = 256;

fn open(dtype: WeightDtype, activations: Activations) -> Option<Model> {
    let found = match find_model("smollm2-135m-instruct") {
        Ok(found) => found,
        Err(error) => {
            eprintln!("skipped: {error:#}");
            return None;
        }
    };
    let device = DeviceChoice::Named(Backend::Flex, 0);
    Some(
        Model::builder(found.path)
            .device(device)
            .dtype(dtype)
            .activations(activations)
            .open()
            .expect("the model opens"),
    )
}

/// The time of one verify pass over `width` tokens, logits read, behind a context; mean of `n`.
fn verify(model: &Model, cache: &mut SlotCache, width: usize, n: u64) -> Duration {
    let target = model.target();
    let tokens: Vec<u32> = (0..width as u32).map(|i| 500 + i * 31).collect();
    let block = Block::single(SeqId(0), CONTEXT, &tokens, model.device());
    let started = Instant::now();
    for _ in 0..n {
        let mut attend = cache
            .begin(block.rows(), Phase::Verify)
            .expect("a good row");
        let hidden = target
            .forward(&block, &mut *attend, &[])
            .expect("a pass")
            .hidden;
        drop(attend);
        std::hint::black_box(target.logits(hidden).argmax(1).into_data());
        cache.rollback();
    }
    started.elapsed()
}

fn with_context(model: &Model) -> SlotCache {
    let mut cache = SlotCache::new(model.target().spec()).expect("a cache");
    let tokens: Vec<u32> = (0..CONTEXT as u32).map(|i| 300 + i * 7).collect();
    let block = Block::single(SeqId(0), 0, &tokens, model.device());
    let mut attend = cache
        .begin(block.rows(), Phase::Prefill)
        .expect("a good row");
    model
        .target()
        .forward(&block, &mut *attend, &[])
        .expect("a pass");
    drop(attend);
    cache.commit(&[CONTEXT]).expect("staged");
    cache
}

fn decode(c: &mut Criterion) {
    for (name, dtype, activations) in [
        ("Q4_1 file", WeightDtype::Stored, Activations::Float),
        (
            "Q4_1 file, int8 activations",
            WeightDtype::Stored,
            Activations::Int8,
        ),
        ("f32", WeightDtype::F32, Activations::Float),
    ] {
        let Some(model) = open(dtype, activations) else {
            return;
        };
        let mut group = c.benchmark_group(name);
        let mut cache = with_context(&model);
        for k in [0, 1, 2, 4, 7] {
            group.bench_function(BenchmarkId::new("verify", format!("k={k}")), |b| {
                b.iter_custom(|n| verify(&model, &mut cache, k + 1, n));
            });
        }
        group.throughput(Throughput::Elements(NEW as u64));
        for drafting in ["plain", "ngram"] {
            let builder = Generator::builder(&model);
            let mut generator = match drafting {
                "plain" => builder.plain(),
                _ => builder.draft_length(DraftLength::Fixed(4)),
            }
            .build()
            .expect("it fits");
            let mut options = Options::max_new_tokens(NEW);
            options.ignore_end_tokens = true;
            group.bench_function(drafting, |b| {
                b.iter_custom(|n| {
                    let before = generator.stats().decode_time();
                    for _ in 0..n {
                        generator
                            .generate(Prompt::user(PROMPT), &options)
                            .expect("good");
                    }
                    generator.stats().decode_time() - before
                });
            });
            let length = generator.stats().acceptance_length();
            println!("{name}, {drafting}: {length:?} tokens a pass");
        }
        group.finish();
        ratios(name, &model, &mut cache);
    }
    if let Some(bytes) = peak_memory_bytes() {
        println!(
            "peak memory of both models together: {} MB",
            bytes / 1_000_000
        );
    }
}

/// c(k) from interleaved passes, so that a slow moment of the machine hits all widths alike.
fn ratios(name: &str, model: &Model, cache: &mut SlotCache) {
    let widths = [1, 2, 3, 5, 8];
    let mut times = vec![Vec::new(); widths.len()];
    for _ in 0..25 {
        for (width, times) in widths.iter().zip(&mut times) {
            times.push(verify(model, cache, *width, 1));
        }
    }
    let medians: Vec<f64> = times
        .into_iter()
        .map(|mut t| {
            t.sort_unstable();
            t[t.len() / 2].as_secs_f64()
        })
        .collect();
    for (width, median) in widths.iter().zip(&medians) {
        let (k, ms, c) = (width - 1, median * 1e3, median / medians[0]);
        println!("{name}: k={k}  {ms:6.2} ms  c({k}) = {c:.2}");
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(6));
    targets = decode
}
criterion_main!(benches);
