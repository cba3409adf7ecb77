//! Tiny transformers with weights from a seed, one of each family, to the bit on the CPU.

use specdec::burn::prelude::Device;
use specdec::core::{
    Completion, Decoder, FirstCome, FixedLength, Request, SamplingParams, TargetModel,
};
use specdec::draft::{ModelDrafter, NgramDrafter};
use specdec::models::{MemoryTensors, ModelConfig, Transformer};
use specdec::ragged::{SlotCache, SlotOptions};
use specdec_testkit::conformance::{self, TargetPromises};
use specdec_testkit::weights::{Family, tiny};
use std::sync::Arc;

const FAMILIES: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];

fn model(family: Family, seed: u64) -> Arc<Transformer> {
    let tiny = tiny(family, seed);
    let config = ModelConfig::from_json(&tiny.config).expect("a good config");
    let tensors: MemoryTensors = tiny.tensors.into_iter().collect();
    let model = Transformer::from_tensors(&config, &tensors, &Device::flex());
    Arc::new(model.expect("good tensors"))
}

fn cache(model: &Transformer) -> SlotCache {
    let options = SlotOptions {
        chunk: 32,
        ..SlotOptions::default()
    };
    SlotCache::with_options(model.spec(), &options).expect("good options")
}

/// Promise 2: hidden states, taps and logits of a token are the same bits whatever its neighbours,
/// the width of its block and the pieces its prompt came in.
#[test]
fn every_family_is_row_independent_to_the_bit() {
    let mut promises = TargetPromises::default();
    promises.tolerance = 0.0;
    for family in FAMILIES {
        let model = model(family, 5);
        let make = |_: &_| cache(&model);
        let report = conformance::target_promising(&promises, &*model, make);
        report.unwrap_or_else(|violation| panic!("{family:?}: {violation}"));
    }
}

fn prompts() -> Vec<Vec<u32>> {
    (0..50u32)
        .map(|i| {
            let len = 1 + (i * 7) % 23;
            // A third of them repeat themselves, so that look-up has something to find.
            let period = if i % 3 == 0 { 4 } else { 97 };
            (0..len)
                .map(|j| (i * 31 + (j % period) * 17) % 288)
                .collect()
        })
        .collect()
}

fn run(builder: specdec::core::DecoderBuilder, sampling: &SamplingParams) -> Vec<Completion> {
    let mut decoder = builder.build().expect("the parts fit");
    for (i, prompt) in prompts().into_iter().enumerate() {
        let request = Request::new(prompt)
            .max_new_tokens(10 + i % 9)
            .sampling(sampling.clone());
        decoder.submit(request).expect("a good prompt");
    }
    decoder.run().expect("steps succeed")
}

/// Field case A1: 50 prompts, every drafter, batches of 1, 3 and 8, greedy and sampled: the same
/// tokens and ends as plainly and alone.
#[test]
fn a1_fifty_prompts_every_drafter_every_batch() {
    let mut sampled = SamplingParams::sampled(0.8);
    sampled.seed = Some(3);
    sampled.top_k = Some(40);
    for family in FAMILIES {
        let (target, draft) = (model(family, 5), model(family, 6));
        let decoder = |rows| {
            Decoder::builder(target.clone())
                .cache(cache(&target))
                .scheduler(FirstCome { max_rows: rows })
                .prefill_chunk(16)
        };
        for sampling in [SamplingParams::greedy(), sampled.clone()] {
            let plain = run(decoder(1), &sampling);
            for rows in [1, 3, 8] {
                // A copy of the target (all accepted when greedy), a stranger, and look-up.
                let drafters = [
                    ("look-up", decoder(rows).drafter(NgramDrafter::default())),
                    ("twin", {
                        let twin = ModelDrafter::new(target.clone(), cache(&target));
                        decoder(rows).drafter(twin)
                    }),
                    ("stranger", {
                        let stranger = ModelDrafter::new(draft.clone(), cache(&draft));
                        decoder(rows).drafter(stranger)
                    }),
                ];
                for (name, builder) in drafters {
                    let fast = run(builder.controller(FixedLength(5)), &sampling);
                    let (mut drafted, mut accepted) = (0, 0);
                    for (a, b) in plain.iter().zip(&fast) {
                        let what = format!("{family:?}, {name}, {rows} rows, {}", b.seq);
                        assert_eq!((&a.tokens, a.finish), (&b.tokens, b.finish), "{what}");
                        drafted += b.stats.drafted;
                        accepted += b.stats.accepted;
                    }
                    assert!(drafted > 0, "{family:?}: {name} never drafted");
                    // With the same weights and the same noise every draft is right.
                    assert!(
                        name != "twin" || accepted == drafted,
                        "{accepted} of {drafted}"
                    );
                }
            }
        }
    }
}
