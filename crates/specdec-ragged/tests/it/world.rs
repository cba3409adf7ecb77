//! Small worlds under every strategy.

use burn::prelude::*;
use specdec_core::{
    Attend, Completion, Controller, Decoder, Drafter, KvCache, KvSegment, Phase, Request, Result,
    RowSpan, Scheduler, SeqId, TargetModel, Token,
};
use specdec_ragged::{AlignedRow, BatchCache, BatchMeters, SlotOptions, Strategy};
use specdec_testkit::oracle::{Continuations, Round, Traced};
use specdec_testkit::scripted::{Mistakes, ScriptedDrafter, ScriptedTarget};
use specdec_testkit::{HashLm, VecCache};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) type Target = Arc<dyn TargetModel>;

pub(crate) fn device() -> Device {
    Device::flex()
}

pub(crate) fn hash_lm(vocab: usize) -> HashLm {
    HashLm::new(vocab, &device())
}

/// A strategy and the most rows of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) strategy: Strategy,
    pub(crate) rows: usize,
}

/// Every strategy, for batches smaller and larger than most pools here.
pub(crate) fn setups() -> impl Iterator<Item = Setup> {
    [
        Strategy::Slots,
        Strategy::EqSpec,
        Strategy::EqSpecRefill,
        Strategy::ExSpec { window: 6 },
    ]
    .into_iter()
    .flat_map(|strategy| [2, 8].map(|rows| Setup { strategy, rows }))
}

impl Setup {
    pub(crate) fn is_aligned(self) -> bool {
        self.strategy != Strategy::Slots
    }

    /// Small chunks, so that rows cross their borders and memory is given back.
    pub(crate) fn memory() -> SlotOptions {
        SlotOptions {
            chunk: 5,
            ..SlotOptions::default()
        }
    }

    /// A decoder whose cache asserts the invariants of the rectangle in every pass.
    pub(crate) fn decoder(
        self,
        target: &Target,
        drafter: impl Drafter + 'static,
        controller: impl Controller + 'static,
    ) -> Decoder {
        self.measured(target, drafter, controller).0
    }

    pub(crate) fn measured(
        self,
        target: &Target,
        drafter: impl Drafter + 'static,
        controller: impl Controller + 'static,
    ) -> (Decoder, BatchMeters) {
        let parts = self
            .strategy
            .parts(target.spec(), self.rows, &Self::memory())
            .expect("good options");
        let decoder = self.build(target, parts.cache, parts.scheduler, (drafter, controller));
        (decoder, parts.meters)
    }

    pub(crate) fn build(
        self,
        target: &Target,
        cache: BatchCache,
        scheduler: impl Scheduler + 'static,
        (drafter, controller): (impl Drafter + 'static, impl Controller + 'static),
    ) -> Decoder {
        Decoder::builder(Arc::clone(target))
            .cache(Watched::new(cache, self.strategy))
            .scheduler(scheduler)
            .drafter(drafter)
            .controller(controller)
            .prefill_chunk(11)
            .build()
            .expect("the parts fit")
    }

    /// Decodes the rows together; results and rounds of each, in order.
    pub(crate) fn play(
        self,
        rows: &[Row],
        controller: impl Controller + 'static,
        ends: &[Token],
    ) -> Vec<(Completion, Rounds)> {
        let target: Target = Arc::new(script(rows));
        self.play_with(&target, script_drafter(rows), rows, (controller, ends))
    }

    pub(crate) fn play_with(
        self,
        target: &Target,
        drafter: impl Drafter + 'static,
        rows: &[Row],
        (controller, ends): (impl Controller + 'static, &[Token]),
    ) -> Vec<(Completion, Rounds)> {
        let controller = Traced::new(controller);
        let trace = controller.trace();
        let mut decoder = self.decoder(target, drafter, controller);
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

    /// One row alone.
    pub(crate) fn one(
        self,
        row: Row,
        k: usize,
        ends: &[Token],
    ) -> (Vec<Token>, specdec_core::FinishReason, Rounds) {
        let controller = specdec_core::FixedLength(k);
        let (done, rounds) = self.play(&[row], controller, ends).remove(0);
        (done.tokens, done.finish, rounds)
    }
}

/// A cache that asserts in every pass what a rectangle must be (INV-1 and case C42), and is
/// otherwise the one inside.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: BatchCache,
    strategy: Strategy,
    /// Rows of the open pass (and of the draft it goes on with) and its phase.
    pass: Option<(Vec<RowSpan>, Phase)>,
}

impl Watched {
    pub(crate) fn new(inner: BatchCache, strategy: Strategy) -> Self {
        Self {
            inner,
            strategy,
            pass: None,
        }
    }

    /// The open pass, as it was aligned when it began.
    fn check(&self) {
        let (BatchCache::Aligned(cache), Some((rows, phase))) = (&self.inner, &self.pass) else {
            return;
        };
        let span = |seq| rows.iter().find(|row| row.seq == seq);
        let all = !matches!(self.strategy, Strategy::ExSpec { .. });
        let aligned: Vec<(AlignedRow, usize)> = cache
            .layout()
            .into_iter()
            .filter(|row| span(row.seq).is_some() || (all && row.len > 0))
            .map(|row| {
                let new = span(row.seq).map_or(0, |span| span.len);
                let prefilled = if *phase == Phase::Prefill { new } else { 0 };
                (row, row.padding + row.len + prefilled)
            })
            .collect();
        let ends: Vec<usize> = aligned.iter().map(|(_, end)| *end).collect();
        assert!(
            ends.windows(2).all(|w| w[0] == w[1]),
            "no rectangle: {aligned:?}"
        );
        let least = aligned.iter().map(|(row, _)| row.padding).min();
        assert!(
            least.is_none_or(|pad| pad == 0),
            "padding piles up: {aligned:?}"
        );
    }
}

impl KvCache for Watched {
    fn len(&self, seq: SeqId) -> usize {
        self.inner.len(seq)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        let attend = self.inner.begin(rows, phase)?;
        let mut rows = rows.to_vec();
        if let Some((earlier, _)) = self.pass.take() {
            // A draft goes on: rows that dropped out keep their places.
            let dropped = |row: &RowSpan| rows.iter().all(|new| new.seq != row.seq);
            let dropped: Vec<RowSpan> = earlier.into_iter().filter(dropped).collect();
            rows.extend(dropped);
        }
        self.pass = Some((rows, phase));
        Ok(attend)
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.check();
        self.pass = None;
        self.inner.commit(keep)
    }

    fn rollback(&mut self) {
        self.check();
        self.pass = None;
        self.inner.rollback();
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        self.inner.export(seq, range)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        self.inner.import(seq, segment)
    }

    fn fits(&self, rows: &[RowSpan]) -> bool {
        self.inner.fits(rows)
    }

    fn capacity(&self) -> Option<usize> {
        self.inner.capacity()
    }

    fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes()
    }
}

/// Between rounds, for every live row: the newest token is pending (INV-5), and each entry is what
/// a fresh prefill of the row alone gives, key by key (positions are in the keys: INV-2 to INV-4).
pub(crate) fn check_round(decoder: &Decoder, target: &Target) {
    for seq in decoder.live().collect::<Vec<_>>() {
        let tokens = decoder.tokens(seq).expect("it is live");
        let len = decoder.cache().len(seq);
        assert!(len < tokens.len(), "the newest token is pending");
        if len == 0 {
            continue;
        }
        let held = decoder.cache().export(seq, 0..len).expect("committed");
        let fresh = fresh(target, seq, &tokens[..len]);
        for (layer, (got, want)) in held.layers.iter().zip(&fresh.layers).enumerate() {
            assert_eq!(
                got.0.to_data(),
                want.0.to_data(),
                "keys of {seq}, layer {layer}"
            );
            assert_eq!(
                got.1.to_data(),
                want.1.to_data(),
                "values of {seq}, layer {layer}"
            );
        }
    }
}

fn fresh(target: &Target, seq: SeqId, tokens: &[Token]) -> KvSegment {
    let mut cache = VecCache::new(target.spec());
    let block = specdec_core::Block::single(seq, 0, tokens, &device());
    let mut attend = cache.begin(block.rows(), Phase::Prefill).expect("a row");
    target.forward(&block, &mut *attend, &[]).expect("a pass");
    drop(attend);
    cache.commit(&[tokens.len()]).expect("staged");
    cache.export(seq, 0..tokens.len()).expect("committed")
}

/// One row of a scripted world.
#[derive(Debug, Clone)]
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

pub(crate) fn rounds(of: &[Round]) -> Rounds {
    of.iter().map(|r| (r.k, r.n, r.kept)).collect()
}

/// A prompt of this length, another one for each.
pub(crate) fn prompt(len: usize) -> Vec<Token> {
    (0..len as Token)
        .map(|i| (i * i + 3 * len as Token) % 20)
        .collect()
}

/// A drafter that is right about the 20-token language with this probability.
pub(crate) fn often_right(prompts: &[Vec<Token>], right: f64) -> ScriptedDrafter {
    let model = hash_lm(20);
    let known = prompts.iter().map(|p| (p.clone(), model.greedy(p, 60)));
    ScriptedDrafter::sometimes(Continuations::new(known), 20, right, 4)
}

/// Submits the prompts and decodes to the end, checking every row after every step; results by
/// sequence.
pub(crate) fn decode_all(
    decoder: &mut Decoder,
    target: &Target,
    prompts: &[Vec<Token>],
    max_new: impl Fn(usize) -> usize,
) -> BTreeMap<SeqId, Completion> {
    for (i, prompt) in prompts.iter().enumerate() {
        let request = Request::new(prompt.clone()).max_new_tokens(max_new(i));
        decoder.submit(request).expect("a good request");
    }
    let mut done = BTreeMap::new();
    while !decoder.is_idle() {
        for event in decoder.step().expect("decoding") {
            if let specdec_core::Event::Finished(completion) = event {
                done.insert(completion.seq, completion);
            }
        }
        check_round(decoder, target);
    }
    done
}
