//! What a generator holds does not grow with what it has done.

use crate::tiny_pair::pair;
use specdec::ragged::Strategy;
use specdec::{Drafting, Generator, Options, Prompt};
use specdec_testkit::hostile::{CountingAllocator, live_bytes};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: usize = 4;
const GENERATIONS: usize = 500;

/// Prompts of 3 to 42 tokens, the same ones every 40, each for 3 to 8 new tokens.
fn batch(call: usize) -> Vec<(Prompt, Options)> {
    (0..ROWS)
        .map(|row| {
            let n = (call * ROWS + row) % 40;
            let tokens = (0..3 + n).map(|i| 10 + (7 * i + n) as u32 % 60).collect();
            let options = Options::max_new_tokens(3 + n % 6).seed(n as u64);
            let temperature = if n.is_multiple_of(2) { 0.0 } else { 0.9 };
            (Prompt::Tokens(tokens), options.temperature(temperature))
        })
        .collect()
}

/// Bytes held after each call, counted where all the work happens on one thread.
fn held(strategy: Strategy, drafting: Drafting) -> Vec<usize> {
    let mut generator = Generator::builder(&pair().0)
        .drafting(drafting)
        .strategy(strategy)
        .max_rows(ROWS)
        .build()
        .expect("it fits");
    (0..GENERATIONS / ROWS)
        .map(|call| {
            let done = generator
                .generate_batch(batch(call), |_, _| {})
                .expect("steps succeed");
            assert!(done.iter().all(Result::is_ok));
            drop(done);
            live_bytes()
        })
        .collect()
}

#[test]
fn five_hundred_generations_hold_what_fifty_do() {
    let one = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .expect("a thread");
    one.install(|| {
        for strategy in Strategy::ALL {
            for model_drafts in [false, true] {
                let drafting = match model_drafts {
                    true => Drafting::Model(pair().1.clone()),
                    false => Drafting::ngram(),
                };
                let held = held(strategy, drafting);
                let cycle = 40 / ROWS;
                let early = held[cycle..2 * cycle].iter().max().expect("calls");
                let late = held[held.len() - cycle..].iter().max().expect("calls");
                assert!(
                    *late <= early + 4096,
                    "{strategy}, draft model: {model_drafts}: {early} bytes, then {late}"
                );
            }
        }
    });
}
