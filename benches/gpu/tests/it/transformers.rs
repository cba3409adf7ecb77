//! Tiny transformers of each family: numbers near the CPU's, rows independent within the tolerance.

use crate::Check;
use crate::world::{close, numbers, prompt, slots, transformer};
use burn::prelude::*;
use specdec_core::{Block, KvCache, Phase, SeqId};
use specdec_testkit::conformance::{self, TargetPromises};
use specdec_testkit::weights::Family;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("llama", |device| family(device, Family::Llama)),
    ("qwen2", |device| family(device, Family::Qwen2)),
    ("qwen3", |device| family(device, Family::Qwen3)),
];

/// Relative to the largest number of a state: f32 sums of 64 to 288 terms in another order.
const TOLERANCE: f32 = 1e-4;

fn family(device: &Device, family: Family) {
    let target = transformer(family, 5, device);
    let mut promises = TargetPromises::default();
    promises.tolerance = TOLERANCE;
    conformance::target_promising(&promises, &*target, slots)
        .unwrap_or_else(|violation| panic!("{violation}"));

    let states = |device: &Device| {
        let target = transformer(family, 5, device);
        let tokens = prompt(40, 288);
        let mut cache = slots(target.spec());
        let mut block = Block::new(device);
        block.push(SeqId(0), 0, &tokens);
        block.push(SeqId(1), 0, &tokens[..7]);
        let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("rows");
        let forward = target
            .forward(&block, &mut *attend, &[0, 1])
            .expect("a pass");
        drop(attend);
        let mut all = vec![forward.hidden.clone(), target.logits(forward.hidden)];
        all.extend(forward.taps);
        all.into_iter().map(numbers).collect::<Vec<_>>()
    };
    for (want, got) in states(&Device::flex()).iter().zip(states(device)) {
        close(want, &got, TOLERANCE, "hidden states, logits or taps");
    }
}
