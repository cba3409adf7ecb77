mod builder;
mod live;
mod memory;
mod prefill;
mod reuse;
mod stream;
mod verdicts;
mod verify;

pub use builder::DecoderBuilder;
pub use stream::Stream;

use crate::accept::Acceptance;
use crate::sampling::Sampler;
use crate::{
    Completion, Controller, Drafter, Error, Event, FinishReason, KvCache, PoolView, PrefixCache,
    Request, RequestError, Result, Reuse, Scheduler, SeqId, Stats, TargetModel, Token,
};
use burn::prelude::*;
use live::Live;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Decodes any number of sequences, each at its own pace, with or without drafts.
///
/// One [`step`](Self::step) is: choose rows, prefill some prompt tokens, plan draft lengths, draft,
/// verify all rows in one packed block, accept, commit. Before and after each step, for every live
/// sequence: `cache.len == tokens - 1`, the newest token (the anchor) is emitted and not cached.
/// Plain decoding is the same step with every draft empty.
pub struct Decoder {
    target: Arc<dyn TargetModel>,
    cache: Box<dyn KvCache>,
    drafter: Option<Box<dyn Drafter>>,
    prefixes: Option<Box<dyn PrefixCache>>,
    controller: Box<dyn Controller>,
    scheduler: Box<dyn Scheduler>,
    acceptance: Arc<dyn Acceptance>,
    prefill_chunk: usize,
    max_sequences: Option<usize>,
    tie_margin: Option<f32>,
    suppressed: Arc<[Token]>,
    /// `[1, V]`, minus infinity at suppressed tokens; only when there are some.
    suppress_mask: Option<Tensor<2>>,
    taps: Vec<usize>,
    pool: BTreeMap<SeqId, Live>,
    events: VecDeque<Event>,
    next_id: u64,
    steps: u64,
    total: Stats,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("live", &self.pool.len())
            .field("steps", &self.steps)
            .field("drafter", &self.drafter_name())
            .field("acceptance", &self.acceptance.name())
            .finish_non_exhaustive()
    }
}

impl Decoder {
    /// Starts building a decoder for this target.
    pub fn builder(target: Arc<dyn TargetModel>) -> DecoderBuilder {
        DecoderBuilder::new(target)
    }

    /// The target.
    pub fn target(&self) -> &Arc<dyn TargetModel> {
        &self.target
    }

    /// The cache.
    pub fn cache(&self) -> &dyn KvCache {
        &*self.cache
    }

    /// The drafter's name, `None` for plain decoding.
    pub fn drafter_name(&self) -> Option<&'static str> {
        self.drafter.as_ref().map(|d| d.name())
    }

    /// The acceptance rule.
    pub fn acceptance(&self) -> &Arc<dyn Acceptance> {
        &self.acceptance
    }

    /// Counts and times of all sequences together, ended ones included.
    pub fn stats(&self) -> &Stats {
        &self.total
    }

    /// Whether nothing is left to do and no event left to read.
    pub fn is_idle(&self) -> bool {
        self.pool.is_empty() && self.events.is_empty()
    }

    /// The live sequences, oldest first.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.pool.keys().copied()
    }

    /// Prompt and emitted tokens of a live sequence.
    pub fn tokens(&self, seq: SeqId) -> Option<&[Token]> {
        self.pool.get(&seq).map(|live| live.content.as_slice())
    }

    /// Takes a request in. It waits until the scheduler gives it a place.
    ///
    /// # Errors
    /// [`crate::RequestError`]: the request is refused, nothing else has changed. With
    /// [`crate::RequestError::Busy`] it may be taken later.
    pub fn submit(&mut self, request: Request) -> Result<SeqId> {
        let spec = self.target.spec();
        // The newest token needs no place in the cache.
        let held = self
            .cache
            .capacity()
            .map_or(usize::MAX, |n| n.saturating_add(1));
        let context = spec.context.min(held);
        request.check(spec.vocab, context)?;
        self.acceptance.check(&request.sampling)?;
        if let Some(limit) = self.max_sequences.filter(|limit| self.pool.len() >= *limit) {
            return Err(RequestError::Busy {
                live: self.pool.len(),
                limit,
            }
            .into());
        }
        let seed = request.sampling.seed.unwrap_or_else(rand::random);
        let seq = SeqId(self.next_id);
        self.next_id += 1;
        let sampler = Sampler::new(
            request.sampling.clone(),
            request.rules.clone(),
            Arc::clone(&self.acceptance),
            seed,
        )
        .with_minimum(request.limits.min_new_tokens, request.end_tokens.clone());
        let live = Live::new(seq, request, sampler, seed, context, self.steps);
        if live.budget().left() == 0 {
            let completion = live.complete(FinishReason::Length, self.drafter_name());
            self.events.push_back(Event::Finished(completion));
        } else {
            self.pool.insert(seq, live);
        }
        Ok(seq)
    }

    /// Ends a sequence now; its tokens so far are in the result. The others go on.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`] when it is not live.
    pub fn cancel(&mut self, seq: SeqId) -> Result<Completion> {
        let live = self.remove(seq).ok_or(Error::UnknownSequence(seq))?;
        Ok(live.complete(FinishReason::Cancelled, self.drafter_name()))
    }

    /// Does one step and returns what happened. Without work it returns what is left to tell.
    ///
    /// # Errors
    /// When the target, the cache or the drafter fails. The pass that failed is undone and calling
    /// again tries it again. A pass the drafter could not learn from stands: what it emitted comes
    /// with the next call.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.reap_cancelled();
        if !self.pool.is_empty() {
            let rows = self.select();
            let ran = self.prefill(&rows)? | self.decode(&rows)?;
            if let (false, Some(&oldest)) = (ran, self.pool.keys().next()) {
                // The rows chosen wait for memory that others hold; the oldest can always go on.
                self.prefill(&[oldest])?;
                self.decode(&[oldest])?;
            }
            self.steps += 1;
        }
        Ok(self.events.drain(..).collect())
    }

    /// Steps until every sequence has ended; the results in order of submission. A sequence that
    /// could not go on is among them, with [`FinishReason::Failed`] and what it had emitted.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn run(&mut self) -> Result<Vec<Completion>> {
        let mut done = BTreeMap::new();
        while !self.is_idle() {
            for event in self.step()? {
                match event {
                    Event::Finished(completion) | Event::Failed { completion, .. } => {
                        done.insert(completion.seq, completion);
                    }
                    Event::Tokens { .. } => {}
                }
            }
        }
        Ok(done.into_values().collect())
    }

    /// Submits a request and steps until it has ended.
    ///
    /// # Errors
    /// As [`submit`](Self::submit) and [`step`](Self::step).
    pub fn generate(&mut self, request: Request) -> Result<Completion> {
        let mut completion = None;
        for event in self.stream(request)? {
            if let Event::Finished(done) = event? {
                completion = Some(done);
            }
        }
        completion.ok_or_else(|| Error::Contract {
            part: "decoder",
            what: "a stream ended without its last event".into(),
        })
    }

    /// Submits a request and gives its events as an iterator. Dropping it cancels the request.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn stream(&mut self, request: Request) -> Result<Stream<'_>> {
        let seq = self.submit(request)?;
        Ok(Stream::new(self, seq))
    }

    /// The rows of this step: the scheduler's choice, made sane.
    fn select(&mut self) -> Vec<SeqId> {
        let view = self.view(self.pool.keys().copied());
        let mut seen = BTreeSet::new();
        let mut rows = self.scheduler.select(&view);
        rows.retain(|seq| self.pool.contains_key(seq) && seen.insert(*seq));
        if rows.is_empty() {
            rows.extend(self.pool.keys().next());
        }
        for seq in &rows {
            if let Some(live) = self.pool.get_mut(seq) {
                live.last_run = self.steps;
            }
        }
        rows
    }

    fn view(&self, seqs: impl Iterator<Item = SeqId>) -> PoolView {
        let speculating = self.drafter.is_some();
        let rows = seqs
            .filter_map(|seq| self.pool.get(&seq).map(|live| live.view(speculating)))
            .collect();
        PoolView::new(rows, self.steps)
    }

    fn reap_cancelled(&mut self) {
        let cancelled: Vec<SeqId> = self
            .pool
            .values()
            .filter(|l| l.is_cancelled())
            .map(|l| l.seq)
            .collect();
        for seq in cancelled {
            self.finish(seq, FinishReason::Cancelled);
        }
    }

    fn finish(&mut self, seq: SeqId, reason: FinishReason) {
        if let Some(live) = self.remove(seq) {
            let completion = live.complete(reason, self.drafter_name());
            self.events.push_back(Event::Finished(completion));
        }
    }

    fn fail(&mut self, seq: SeqId, error: Error) {
        // What a sequence that went wrong computed is nobody else's.
        if let Some(live) = self.pool.get_mut(&seq) {
            live.reuse = Reuse::Off;
        }
        if let Some(live) = self.remove(seq) {
            let mut completion = live.complete(FinishReason::Failed, self.drafter_name());
            completion.failure = Some(error.to_string());
            self.events.push_back(Event::Failed { error, completion });
        }
    }

    fn remove(&mut self, seq: SeqId) -> Option<Live> {
        self.publish(seq);
        let live = self.pool.remove(&seq)?;
        self.cache.evict(seq);
        self.controller.evict(seq);
        if let Some(drafter) = &mut self.drafter {
            drafter.evict(seq);
        }
        Some(live)
    }
}
