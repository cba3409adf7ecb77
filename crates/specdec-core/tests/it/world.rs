//! Small worlds: a target, what it is known to say, and decoders over the plain cache.

use burn::prelude::Device;
use specdec_core::{
    Completion, Controller, Decoder, Drafter, Request, SamplingParams, SeqId, TargetModel, Token,
};
use specdec_testkit::oracle::{Continuations, Round, Traced, plain_run};
use specdec_testkit::scripted::{Mistakes, ScriptedDrafter, ScriptedTarget};
use specdec_testkit::{HashLm, VecCache};
use std::sync::Arc;

pub(crate) type Target = Arc<dyn TargetModel>;

pub(crate) fn device() -> Device {
    Device::flex()
}

pub(crate) fn hash_lm(vocab: usize) -> HashLm {
    HashLm::new(vocab, &device())
}

pub(crate) fn share(target: impl TargetModel + 'static) -> Target {
    Arc::new(target)
}

pub(crate) fn decoder(
    target: &Target,
    drafter: impl Drafter + 'static,
    controller: impl Controller + 'static,
) -> Decoder {
    Decoder::builder(Arc::clone(target))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter)
        .controller(controller)
        .build()
        .expect("the parts fit")
}

pub(crate) fn plain_decoder(target: &Target) -> Decoder {
    Decoder::builder(Arc::clone(target))
        .cache(VecCache::new(target.spec()))
        .build()
        .expect("the parts fit")
}

/// Plain decoding of one request.
pub(crate) fn plain(target: &Target, request: Request) -> Completion {
    let runs = plain_run(target, VecCache::new(target.spec()), [request]);
    runs.expect("plain decoding").remove(0)
}

/// Oracle, half-right drafter and adversary for a prompt whose plain output is known.
pub(crate) fn drafters(
    target: &Target,
    prompt: &[Token],
    tokens: &[Token],
) -> Vec<ScriptedDrafter> {
    let known = Continuations::new([(prompt, tokens)]);
    let vocab = target.spec().vocab;
    vec![
        ScriptedDrafter::oracle(known.clone()),
        ScriptedDrafter::sometimes(known.clone(), vocab, 0.5, 1),
        ScriptedDrafter::adversary(known, vocab),
    ]
}

pub(crate) fn sampled(temperature: f32, seed: u64) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        ..SamplingParams::sampled(temperature)
    }
}

/// One row of a scripted world.
pub(crate) struct Row {
    pub(crate) prompt: Vec<Token>,
    pub(crate) wants: Vec<Token>,
    pub(crate) mistakes: Mistakes,
    pub(crate) max_new: usize,
}

/// A row that wants 10, 11, 12, ... and whose drafts are wrong at these output indices.
pub(crate) fn row(first: Token, max_new: usize, wrong: &[usize]) -> Row {
    Row {
        prompt: vec![first, 1],
        wants: (10..30).collect(),
        mistakes: Mistakes::At(wrong.iter().copied().collect()),
        max_new,
    }
}

impl Row {
    pub(crate) fn wants(mut self, tokens: &[Token]) -> Self {
        self.wants = tokens.to_vec();
        self
    }

    pub(crate) fn prompt(mut self, tokens: &[Token]) -> Self {
        self.prompt = tokens.to_vec();
        self
    }

    pub(crate) fn always_wrong(mut self) -> Self {
        self.mistakes = Mistakes::Always;
        self
    }
}

/// Rounds as the tables of the cases write them: (k, n, kept).
pub(crate) type Rounds = Vec<(usize, usize, usize)>;

pub(crate) const VOCAB: usize = 40;

/// The scripted target of these rows (told apart by their first token).
pub(crate) fn script(rows: &[Row]) -> ScriptedTarget {
    let scripts = rows
        .iter()
        .map(|row| (row.prompt.clone(), row.wants.clone()));
    ScriptedTarget::following(VOCAB, &device(), scripts)
}

/// A drafter that knows the scripts and errs where the rows say.
pub(crate) fn script_drafter(rows: &[Row]) -> ScriptedDrafter {
    let known = rows
        .iter()
        .map(|row| (row.prompt.clone(), row.wants.clone()));
    rows.iter().fold(
        ScriptedDrafter::new(Continuations::new(known), VOCAB, Mistakes::Never),
        |drafter, row| drafter.with_prompt(row.prompt.clone(), row.mistakes.clone()),
    )
}

/// Decodes the rows together with these end tokens; results and rounds of each, in order.
pub(crate) fn play(
    rows: &[Row],
    controller: impl Controller + 'static,
    ends: &[Token],
) -> Vec<(Completion, Rounds)> {
    play_with(
        &share(script(rows)),
        script_drafter(rows),
        rows,
        controller,
        ends,
    )
}

pub(crate) fn play_with(
    target: &Target,
    drafter: impl Drafter + 'static,
    rows: &[Row],
    controller: impl Controller + 'static,
    ends: &[Token],
) -> Vec<(Completion, Rounds)> {
    let controller = Traced::new(controller);
    let trace = controller.trace();
    let mut decoder = decoder(target, drafter, controller);
    for row in rows {
        let request = Request::new(row.prompt.clone())
            .max_new_tokens(row.max_new)
            .end_tokens(ends.iter().copied());
        decoder.submit(request).expect("a good request");
    }
    let done = decoder.run().expect("decoding");
    done.into_iter()
        .map(|done| {
            let rounds = rounds(&trace.of(done.seq));
            (done, rounds)
        })
        .collect()
}

pub(crate) fn rounds(of: &[Round]) -> Rounds {
    of.iter().map(|r| (r.k, r.n, r.kept)).collect()
}

/// Steps until the decoder is idle; the results by sequence, in order.
pub(crate) fn finish(decoder: &mut Decoder) -> Vec<Completion> {
    let mut done = decoder.run().expect("decoding");
    done.sort_by_key(|d| d.seq);
    done
}

pub(crate) fn seq(n: u64) -> SeqId {
    SeqId(n)
}
