//! The suite for drafters that run a model: output equality never shows one that has lost its way,
//! because the target corrects it. The trace of its acceptance does.

use super::report::{Report, Violation};
use super::watched::random_prompt;
use crate::oracle::{Round, Traced, plan};
use crate::scripted::Lengths;
use crate::seeded::{Seeded, digest};
use crate::{HashLm, VecCache};
use burn::prelude::Device;
use specdec_core::{Decoder, Drafter, Request, SeqId, TargetModel};
use std::sync::Arc;

/// Checks the whole acceptance trace of a drafter that runs a model of its own.
///
/// The draft model is an exact copy of the target that is wrong at content positions chosen by a
/// hash, so the number of accepted drafts of every row and round is known beforehand. A drafter
/// whose cache has a hole after full acceptance, keeps what was rejected, is not fed in rounds
/// without drafts, or mixes rows accepts less than that, and is found out.
///
/// `make` makes a drafter that runs the given model, whatever its controller asks for.
///
/// # Errors
/// The first [`Violation`].
pub fn model_drafter<D: Drafter + 'static>(
    device: &Device,
    make: impl Fn(Arc<dyn TargetModel>) -> D,
) -> Result<Report, Violation> {
    let mut report = Report::new("model drafter");
    let target = HashLm::new(20, device);
    for (seed, rate) in [(0, 0.0), (1, 0.3), (2, 0.3), (3, 0.6), (4, 1.0)] {
        for pattern in [Pattern::Fixed, Pattern::OnAndOff, Pattern::Ragged] {
            let draft: Arc<dyn TargetModel> = Arc::new(target.clone().with_mistakes(rate, seed));
            let run = Run {
                seed,
                rate,
                pattern,
            };
            run.check(&target, make(draft), &mut report)?;
        }
    }
    Ok(report)
}

/// Draft lengths of a row's rounds.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// 3 always.
    Fixed,
    /// 0 and 3 in turn.
    OnAndOff,
    /// 0 to 5, different for every row and round.
    Ragged,
}

impl Pattern {
    fn length(self, seq: u64, round: usize) -> usize {
        match self {
            Self::Fixed => 3,
            Self::OnAndOff => 3 * (round % 2),
            Self::Ragged => (digest([seq, round as u64]) % 6) as usize,
        }
    }
}

struct Run {
    seed: u64,
    rate: f64,
    pattern: Pattern,
}

impl Run {
    fn check(
        &self,
        target: &HashLm,
        drafter: impl Drafter + 'static,
        report: &mut Report,
    ) -> Result<(), Violation> {
        let what = || {
            format!(
                "mistakes {} of seed {}, {:?}",
                self.rate, self.seed, self.pattern
            )
        };
        let mut draws = Seeded::new(self.seed);
        let pattern = self.pattern;
        let controller = Traced::new(Lengths::new(move |seq: SeqId, round| {
            pattern.length(seq.0, round)
        }));
        let trace = controller.trace();
        let decoder = Decoder::builder(Arc::new(target.clone()))
            .cache(VecCache::new(target.spec()))
            .drafter(drafter)
            .controller(controller)
            .prefill_chunk(4)
            .build();
        let mut decoder = report.done("a decoder can be built", decoder, what)?;
        let mut rows = Vec::new();
        for (len, max_new) in [(1, 14), (7, 20), (3, 9), (12, 17)] {
            let prompt = random_prompt(&mut draws, target.spec().vocab, len);
            let seq = decoder.submit(Request::new(prompt.clone()).max_new_tokens(max_new));
            rows.push((
                report.done("a request is taken", seq, what)?,
                prompt,
                max_new,
            ));
        }
        let done = decoder.run();
        let done = report.done("decoding does not fail", done, what)?;
        for ((seq, prompt, max_new), done) in rows.iter().zip(&done) {
            let right = done.tokens == target.greedy(prompt, *max_new);
            report.check("the output is that of plain decoding", right, || {
                format!("{}, row {seq}: {:?}", what(), done.tokens)
            })?;
            let want: Vec<Round> = plan(
                *max_new,
                |round| pattern.length(seq.0, round),
                |i| HashLm::mistaken(self.rate, self.seed, prompt.len() + i),
            );
            let got = trace.of(*seq);
            report.check("drafts are the draft model's own", want == got, || {
                let at = want.iter().zip(&got).take_while(|(a, b)| a == b).count();
                format!(
                    "{}, row {seq} (prompt of {}): round {at} is {:?} instead of {:?}",
                    what(),
                    prompt.len(),
                    got.get(at),
                    want.get(at)
                )
            })?;
        }
        Ok(())
    }
}
