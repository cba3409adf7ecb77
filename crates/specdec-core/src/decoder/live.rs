//! A sequence while it is being decoded.

use crate::accept::Budget;
use crate::sampling::Sampler;
use crate::{
    CancelToken, Completion, Emitted, FinishReason, Granularity, Limits, Request, Reuse, SeqId,
    SeqView, Speculation, Stats, StopRule, Token,
};
use std::collections::BTreeSet;

pub(super) struct Live {
    pub(super) seq: SeqId,
    /// Prompt and emitted tokens; the last one is the anchor.
    pub(super) content: Vec<Token>,
    pub(super) prompt_len: usize,
    /// Committed entries in the cache; `content.len() - 1` once prefilled.
    pub(super) cached: usize,
    pub(super) sampler: Sampler,
    pub(super) stats: Stats,
    pub(super) last_run: u64,
    pub(super) granularity: Granularity,
    pub(super) logprobs: Vec<Emitted>,
    pub(super) reuse: Reuse,
    /// Whether the prefix cache was asked since it last had no entries.
    pub(super) asked: bool,
    limits: Limits,
    ends: BTreeSet<Token>,
    stop: Option<Box<dyn StopRule>>,
    speculation: Speculation,
    cancel: Option<CancelToken>,
    context: usize,
    seed: u64,
}

impl Live {
    pub(super) fn new(
        seq: SeqId,
        request: Request,
        sampler: Sampler,
        seed: u64,
        context: usize,
        step: u64,
    ) -> Self {
        Self {
            seq,
            prompt_len: request.prompt.len(),
            content: request.prompt,
            cached: 0,
            sampler,
            stats: Stats::default(),
            last_run: step,
            granularity: request.granularity,
            logprobs: Vec::new(),
            reuse: request.reuse,
            asked: false,
            limits: request.limits,
            ends: request.end_tokens,
            stop: request.stop,
            speculation: request.speculation,
            cancel: request.cancel,
            context,
            seed,
        }
    }

    pub(super) fn emitted(&self) -> usize {
        self.content.len() - self.prompt_len
    }

    pub(super) fn is_prefilled(&self) -> bool {
        self.cached + 1 >= self.content.len()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    pub(super) fn budget(&self) -> Budget {
        Budget {
            emitted: self.emitted(),
            max_new: self.limits.max_new_tokens,
            room: self.context.saturating_sub(self.content.len()),
        }
    }

    fn max_draft(&self) -> usize {
        let most = self.budget().max_draft();
        match self.speculation {
            Speculation::On => most,
            Speculation::Off => 0,
            Speculation::AtMost(k) => most.min(k),
        }
    }

    pub(super) fn view(&self, speculating: bool) -> SeqView {
        let mut view = SeqView::new(self.seq, self.content.len(), self.cached, self.emitted());
        view.last_run = self.last_run;
        view.left = self.budget().left();
        view.reused = self.stats.reused as usize;
        view.max_draft = if speculating { self.max_draft() } else { 0 };
        view
    }

    /// Why the sequence ends with this token, if it does. Called once for each token that is kept,
    /// with the number of tokens emitted before it.
    pub(super) fn ends_with(&mut self, token: Token, before: usize) -> Option<FinishReason> {
        let stopped = self.stop.as_mut().is_some_and(|stop| stop.hits(token));
        if self.ends.contains(&token) {
            Some(FinishReason::EndToken)
        } else if stopped && before + 1 >= self.limits.min_new_tokens {
            Some(FinishReason::Stop)
        } else {
            None
        }
    }

    pub(super) fn complete(
        self,
        finish: FinishReason,
        drafter: Option<&'static str>,
    ) -> Completion {
        Completion {
            seq: self.seq,
            prompt_tokens: self.prompt_len,
            tokens: self.content[self.prompt_len..].to_vec(),
            logprobs: self.logprobs,
            finish,
            failure: None,
            stats: self.stats,
            seed: self.seed,
            drafter,
        }
    }
}
