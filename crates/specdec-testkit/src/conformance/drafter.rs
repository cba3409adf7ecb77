//! The drafter suite: whatever it proposes, the output is the target's.

use super::report::{Report, Violation};
use super::watched::{Faults, Watched, random_prompt};
use crate::VecCache;
use crate::oracle::{difference, plain_run};
use crate::scripted::{FlakyTarget, RandomController, RandomScheduler};
use crate::seeded::Seeded;
use burn::prelude::*;
use specdec_core::{
    Acceptance, Attend, Block, Completion, Coupled, Decoder, Drafter, Event, FirstCome,
    FixedLength, Forward, KvCache, Phase, Rejection, Request, SamplingParams, SeqId, TargetModel,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Puts a drafter through its contract: alone and in pools of changing rows and draft lengths (0
/// included), greedy and sampled, with rows that end, arrive late and are cancelled, with passes of
/// the target that fail and are tried again. The output must be that of plain decoding, drafts must
/// be no longer than asked, inside the vocabulary and honest about their q, and the target's cache
/// must be left as it was.
///
/// `make` makes a fresh drafter for `target`.
///
/// # Errors
/// The first [`Violation`].
pub fn drafter<D: Drafter + 'static>(
    target: &Arc<dyn TargetModel>,
    make: impl Fn() -> D,
) -> Result<Report, Violation> {
    let mut suite = Suite {
        target,
        make,
        report: Report::new("drafter"),
        faults: Faults::default(),
    };
    suite.alone()?;
    for seed in 0..3 {
        suite.pool(seed, SamplingParams::greedy(), Arc::new(Coupled))?;
        let mut sampled = SamplingParams::sampled(1.0);
        sampled.seed = Some(seed);
        suite.pool(seed, sampled.clone(), Arc::new(Coupled))?;
        suite.honest(seed, sampled)?;
    }
    suite.frequencies()?;
    suite.failed_passes()?;
    suite.cancelled()?;
    Ok(suite.report)
}

struct Suite<'a, F> {
    target: &'a Arc<dyn TargetModel>,
    make: F,
    report: Report,
    faults: Faults,
}

impl<D: Drafter + 'static, F: Fn() -> D> Suite<'_, F> {
    fn watched(&self) -> Watched<D> {
        Watched::new((self.make)(), self.target.spec().vocab, &self.faults)
    }

    /// Prompts of different lengths, one of a single token and two that are equal.
    fn requests(&self, seed: u64, sampling: &SamplingParams) -> Vec<Request> {
        let spec = self.target.spec();
        let mut draws = Seeded::new(seed);
        let longest = spec.context.min(40);
        let mut prompts: Vec<_> = [1, 3, 7, 12]
            .iter()
            .map(|n| random_prompt(&mut draws, spec.vocab, *n.min(&longest)))
            .collect();
        prompts.push(prompts[2].clone());
        prompts.push(prompts[1].repeat(4).into_iter().take(longest).collect());
        prompts
            .into_iter()
            .enumerate()
            .map(|(i, prompt)| {
                Request::new(prompt)
                    .max_new_tokens(9 + 4 * (i % 3))
                    .sampling(sampling.clone())
            })
            .collect()
    }

    fn plain(
        &mut self,
        seed: u64,
        sampling: &SamplingParams,
    ) -> Result<Vec<Completion>, Violation> {
        let requests = self.requests(seed, sampling);
        let runs = plain_run(self.target, VecCache::new(self.target.spec()), requests);
        self.report
            .done("plain decoding works", runs, || format!("seed {seed}"))
    }

    fn blameless(&mut self) -> Result<(), Violation> {
        match self.faults.first() {
            Some((check, what)) => Err(self.report.violation(check, what)),
            None => self
                .report
                .check("drafts are as the trait says", true, String::new),
        }
    }

    fn compare(
        &mut self,
        want: &Completion,
        got: Option<&Completion>,
        what: &str,
    ) -> Result<(), Violation> {
        self.blameless()?;
        let differ = match got {
            Some(got) => difference(want, got),
            None => Some("it never ended".into()),
        };
        self.report.check(
            "the output is that of plain decoding",
            differ.is_none(),
            || format!("{what}: {}", differ.unwrap_or_default()),
        )
    }

    fn alone(&mut self) -> Result<(), Violation> {
        let sampling = SamplingParams::greedy();
        let plain = self.plain(9, &sampling)?;
        let lengths = [1, 4, 8];
        for k in lengths {
            let decoder = Decoder::builder(Arc::clone(self.target))
                .cache(VecCache::new(self.target.spec()))
                .drafter(self.watched())
                .controller(FixedLength(k))
                .build();
            let mut decoder = self
                .report
                .done("a decoder can be built", decoder, String::new)?;
            for (i, request) in self.requests(9, &sampling).into_iter().enumerate() {
                let got = decoder.generate(request);
                let what = format!("request {i} alone, k = {k}");
                self.blameless()?;
                let got = self
                    .report
                    .done("decoding does not fail", got, || what.clone())?;
                self.compare(&plain[i], Some(&got), &what)?;
            }
        }
        Ok(())
    }

    fn decoder(
        &mut self,
        target: Arc<dyn TargetModel>,
        seed: u64,
        acceptance: Arc<dyn Acceptance>,
    ) -> Result<Decoder, Violation> {
        let decoder = Decoder::builder(Arc::clone(&target))
            .cache(VecCache::new(target.spec()))
            .drafter(self.watched())
            .controller(RandomController::new(seed, 6))
            .scheduler(RandomScheduler::new(seed))
            .acceptance_shared(acceptance)
            .prefill_chunk(3 + seed as usize)
            .build();
        self.report
            .done("a decoder can be built", decoder, String::new)
    }

    /// Submits the requests one after the other while decoding, twice over, and gives the results.
    fn run(
        &mut self,
        decoder: &mut Decoder,
        requests: Vec<Request>,
        failures: usize,
        what: &str,
    ) -> Result<BTreeMap<SeqId, Completion>, Violation> {
        let mut done = BTreeMap::new();
        let mut waiting = requests.into_iter();
        let mut failed = 0;
        loop {
            if let Some(request) = waiting.next() {
                let seq = decoder.submit(request);
                self.report
                    .done("a request is taken", seq, || what.to_owned())?;
            } else if decoder.is_idle() {
                return Ok(done);
            }
            let events = match decoder.step() {
                Ok(events) => events,
                Err(_) if failed < failures => {
                    failed += 1;
                    continue;
                }
                Err(e) => {
                    self.blameless()?;
                    let check = "decoding does not fail";
                    return Err(self.report.violation(check, format!("{what}: {e}")));
                }
            };
            for event in events {
                if let Event::Finished(completion) = event {
                    done.insert(completion.seq, completion);
                }
            }
        }
    }

    fn pool(
        &mut self,
        seed: u64,
        sampling: SamplingParams,
        acceptance: Arc<dyn Acceptance>,
    ) -> Result<(), Violation> {
        let plain = self.plain(seed, &sampling)?;
        let what = format!("seed {seed}, temperature {}", sampling.temperature);
        let mut decoder = self.decoder(Arc::clone(self.target), seed, acceptance)?;
        // Twice over: the second time after everything was evicted.
        for again in 0..2 {
            let requests = self.requests(seed, &sampling);
            let done = self.run(&mut decoder, requests, 0, &what)?;
            for (i, want) in plain.iter().enumerate() {
                let got = done.get(&SeqId((again * plain.len() + i) as u64));
                let what = format!("{what}, request {i} of a pool, turn {again}");
                self.compare(want, got, &what)?;
            }
        }
        Ok(())
    }

    /// Under rejection the tokens may differ from plain ones, the q may not be false.
    fn honest(&mut self, seed: u64, sampling: SamplingParams) -> Result<(), Violation> {
        let mut decoder = self.decoder(Arc::clone(self.target), seed, Arc::new(Rejection))?;
        let requests = self.requests(seed, &sampling);
        let what = format!("seed {seed}, rejection sampling");
        self.run(&mut decoder, requests, 0, &what)?;
        self.blameless()
    }

    /// First tokens of many seeds under rejection, with one draft each, against the target's
    /// distribution.
    fn frequencies(&mut self) -> Result<(), Violation> {
        const SEEDS: usize = 1000;
        let spec = self.target.spec().clone();
        let mut draws = Seeded::new(8);
        for len in [2, 5] {
            let prompt = random_prompt(&mut draws, spec.vocab, len);
            let p = next_probabilities(&**self.target, &prompt);
            let p = self
                .report
                .done("the target can be asked", p, String::new)?;
            let decoder = Decoder::builder(Arc::clone(self.target))
                .cache(VecCache::new(&spec))
                .drafter(self.watched())
                .controller(FixedLength(1))
                .scheduler(FirstCome { max_rows: SEEDS })
                .acceptance(Rejection)
                .prefill_chunk(SEEDS * len)
                .build();
            let mut decoder = self
                .report
                .done("a decoder can be built", decoder, String::new)?;
            let requests = (0..SEEDS).map(|seed| {
                let mut sampling = SamplingParams::sampled(1.0);
                sampling.seed = Some(seed as u64);
                Request::new(prompt.clone())
                    .max_new_tokens(2)
                    .sampling(sampling)
            });
            for request in requests {
                let seq = decoder.submit(request);
                self.report.done("a request is taken", seq, String::new)?;
            }
            let done = self.run(&mut decoder, Vec::new(), 0, "many seeds")?;
            let mut counts = vec![0; spec.vocab];
            for first in done.values().filter_map(|d| d.tokens.first()) {
                counts[*first as usize] += 1;
            }
            let why = crate::oracle::unlikely(&counts, &p);
            let check = "under rejection, tokens have the target's distribution";
            self.report.check(check, why.is_none(), || {
                format!("after a prompt of {len}: {}", why.unwrap_or_default())
            })?;
        }
        Ok(())
    }

    fn failed_passes(&mut self) -> Result<(), Violation> {
        let sampling = SamplingParams::greedy();
        let plain = self.plain(5, &sampling)?;
        let fails = [0, 3, 4, 7, 11, 12, 13, 20];
        let target: Arc<dyn TargetModel> =
            Arc::new(FlakyTarget::new(Shared(Arc::clone(self.target)), fails));
        let mut decoder = self.decoder(target, 5, Arc::new(Coupled))?;
        let what = "with passes of the target that fail and are tried again";
        let requests = self.requests(5, &sampling);
        let done = self.run(&mut decoder, requests, fails.len(), what)?;
        for (i, want) in plain.iter().enumerate() {
            self.compare(want, done.get(&SeqId(i as u64)), what)?;
        }
        Ok(())
    }

    fn cancelled(&mut self) -> Result<(), Violation> {
        let sampling = SamplingParams::greedy();
        let plain = self.plain(6, &sampling)?;
        let decoder = Decoder::builder(Arc::clone(self.target))
            .cache(VecCache::new(self.target.spec()))
            .drafter(self.watched())
            .scheduler(FirstCome::default())
            .build();
        let mut decoder = self
            .report
            .done("a decoder can be built", decoder, String::new)?;
        for request in self.requests(6, &sampling) {
            let seq = decoder.submit(request);
            self.report.done("a request is taken", seq, String::new)?;
        }
        let first = decoder.step();
        self.blameless()?;
        self.report
            .done("decoding does not fail", first, || "before a cancel".into())?;
        // The second row goes; if it has ended by itself, so be it.
        let _ = decoder.cancel(SeqId(1));
        let done = self.run(&mut decoder, Vec::new(), 0, "after a cancel")?;
        for (i, want) in plain.iter().enumerate() {
            let got = done.get(&SeqId(i as u64));
            if i != 1 && got.is_some() {
                self.compare(want, got, "beside a cancelled row")?;
            }
        }
        Ok(())
    }
}

/// The target's distribution after a prompt, `[V]`, at temperature 1.
fn next_probabilities(
    target: &dyn TargetModel,
    prompt: &[specdec_core::Token],
) -> specdec_core::Result<Vec<f64>> {
    let spec = target.spec();
    let mut cache = VecCache::new(spec);
    let block = Block::single(SeqId(0), 0, prompt, &spec.device);
    let mut attend = cache.begin(block.rows(), Phase::Prefill)?;
    let hidden = target.forward(&block, &mut *attend, &[])?.hidden;
    let last = hidden.narrow(0, prompt.len() - 1, 1);
    let mut logits = super::report::numbers(target.logits(last));
    logits.truncate(spec.vocab);
    Ok(specdec_core::sampling::probabilities(&logits))
}

/// A shared target is a target.
struct Shared(Arc<dyn TargetModel>);

impl TargetModel for Shared {
    fn spec(&self) -> &specdec_core::ModelSpec {
        self.0.spec()
    }

    fn forward(
        &self,
        block: &Block,
        attend: &mut dyn Attend,
        taps: &[usize],
    ) -> specdec_core::Result<Forward> {
        self.0.forward(block, attend, taps)
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.0.logits(hidden)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        self.0.embed(tokens)
    }
}
