//! The second half of a step: draft, verify, accept, commit.

use super::Decoder;
use super::live::Live;
use super::verdicts::{Verdicts, is_tie};
use crate::accept::{DraftedToken, commit};
use crate::sampling::{History, logprobs};
use crate::{
    Block, DraftContext, DraftRow, Emitted, Error, Event, FinishReason, Granularity, Observation,
    ObservedRow, Outcome, Phase, Proposal, Result, RowDraft, RowOutcome, RowSpan, SeqId, Token,
};
use burn::prelude::*;
use std::ops::Range;
use std::time::{Duration, Instant};

/// One row's part of the block and what came of it.
struct Judged {
    seq: SeqId,
    planned: usize,
    drafted: usize,
    range: Range<usize>,
    before: usize,
    emitted: Vec<Emitted>,
    finish: Option<FinishReason>,
    error: Option<Error>,
}

impl Judged {
    fn accepted(&self) -> usize {
        self.emitted.iter().filter(|e| e.drafted).count()
    }
}

impl Decoder {
    /// Drafts for, verifies and commits every row that is prefilled. False when there was none with
    /// room for it.
    pub(super) fn decode(&mut self, rows: &[SeqId]) -> Result<bool> {
        let ready: Vec<SeqId> = rows
            .iter()
            .copied()
            .filter(|seq| self.pool.get(seq).is_some_and(Live::is_prefilled))
            .collect();
        let (ready, planned) = self.plan(ready);
        if ready.is_empty() {
            return Ok(false);
        }
        let started = Instant::now();
        let drafts = self.draft(&ready, &planned)?;
        let draft_time = started.elapsed();

        let started = Instant::now();
        let mut block = Block::new(&self.target.spec().device);
        for (seq, draft) in ready.iter().zip(&drafts) {
            let live = &self.pool[seq];
            let mut tokens = vec![live.content[live.cached]];
            tokens.extend_from_slice(&draft.tokens);
            block.push(*seq, live.cached, &tokens);
        }
        let forward = self.forward(&block, Phase::Verify)?;
        let verdicts = match self.read(forward.hidden, &ready) {
            Ok(verdicts) => verdicts,
            Err(error) => {
                self.cache.rollback();
                return Err(error);
            }
        };
        let verify_time = started.elapsed();

        let started = Instant::now();
        let mut judged = Vec::with_capacity(ready.len());
        let parts = ready.iter().zip(&planned).zip(&drafts).zip(block.ranges());
        for (((&seq, &planned), draft), range) in parts {
            judged.push(self.judge(seq, planned, draft, range, &verdicts));
        }
        let keep: Vec<usize> = judged.iter().map(|row| row.emitted.len()).collect();
        self.cache.commit(&keep)?;
        self.account(&judged, draft_time, verify_time, block.len());
        // What was emitted is told even when the drafter fails to learn from it.
        let learned = self.tell_drafter(&judged, &forward.taps);
        let settle_time = started.elapsed();
        self.total.settle_time += settle_time;
        for row in judged {
            self.tell(row, settle_time);
        }
        learned.map(|()| true)
    }

    /// The rows there is room for and their draft lengths, cut to what each row can use. Where
    /// memory is short, drafts are given up before rows.
    fn plan(&mut self, ready: Vec<SeqId>) -> (Vec<SeqId>, Vec<usize>) {
        if ready.is_empty() {
            return (ready, Vec::new());
        }
        let planned = self.lengths(&ready);
        let spans = |planned: &[usize]| -> Vec<RowSpan> {
            let rows = ready.iter().zip(planned);
            rows.map(|(&seq, k)| RowSpan {
                seq,
                start: self.pool[&seq].cached,
                len: 1 + k,
            })
            .collect()
        };
        if self.cache.fits(&spans(&planned)) {
            return (ready, planned);
        }
        let plain = spans(&vec![0; ready.len()]);
        let rows: Vec<SeqId> = self
            .with_room(plain)
            .into_iter()
            .map(|span| span.seq)
            .collect();
        let planned = vec![0; rows.len()];
        (rows, planned)
    }

    /// The controller's draft lengths, cut to what each row can use.
    fn lengths(&mut self, ready: &[SeqId]) -> Vec<usize> {
        let view = self.view(ready.iter().copied());
        let plan = self.controller.plan(&view);
        view.rows
            .iter()
            .enumerate()
            .map(|(i, row)| plan.lengths.get(i).copied().unwrap_or(0).min(row.max_draft))
            .collect()
    }

    /// One draft a row, made sane: at most as long as planned, cut before the first token that
    /// cannot be emitted.
    fn draft(&mut self, ready: &[SeqId], planned: &[usize]) -> Result<Vec<RowDraft>> {
        let mut drafts = vec![RowDraft::default(); ready.len()];
        let Some(drafter) = &mut self.drafter else {
            return Ok(drafts);
        };
        let asked: Vec<usize> = (0..ready.len()).filter(|&i| planned[i] > 0).collect();
        if asked.is_empty() {
            return Ok(drafts);
        }
        let rows: Vec<DraftRow<'_>> = asked
            .iter()
            .map(|&i| {
                let live = &self.pool[&ready[i]];
                DraftRow::new(
                    live.seq,
                    &live.content,
                    live.prompt_len,
                    planned[i],
                    &live.sampler,
                )
            })
            .collect();
        let cx = DraftContext {
            rows: &rows,
            target: &*self.target,
            cache: &mut *self.cache,
        };
        let proposed = drafter.draft(cx);
        // A drafter that ran the target leaves its entries staged.
        self.cache.rollback();
        let proposed = proposed?;
        if proposed.rows.len() != asked.len() {
            let what = format!("{} drafts for {} rows", proposed.rows.len(), asked.len());
            return Err(Error::Contract {
                part: drafter.name(),
                what,
            });
        }
        let vocab = self.target.spec().vocab;
        for (&i, mut draft) in asked.iter().zip(proposed.rows) {
            let legal =
                |t: &Token| (*t as usize) < vocab && self.suppressed.binary_search(t).is_err();
            let good = draft
                .tokens
                .iter()
                .take(planned[i])
                .take_while(|t| legal(t))
                .count();
            draft.tokens.truncate(good);
            check_proposal(drafter.name(), &draft)?;
            drafts[i] = draft;
        }
        Ok(drafts)
    }

    /// Chooses tokens for one row, place by place, as long as they are what was drafted, and cuts
    /// them at end, stop and limit. The sequence's content grows by what is emitted.
    fn judge(
        &mut self,
        seq: SeqId,
        planned: usize,
        draft: &RowDraft,
        range: Range<usize>,
        verdicts: &Verdicts,
    ) -> Judged {
        let vocab = self.target.spec().vocab;
        let margin = self.tie_margin;
        let live = self.pool.get_mut(&seq).expect("rows of a step are live");
        let before = live.content.len();
        let budget = live.budget();
        let mut row = Judged {
            seq,
            planned,
            drafted: draft.tokens.len(),
            range: range.clone(),
            before,
            emitted: Vec::with_capacity(range.len()),
            finish: None,
            error: None,
        };
        let mut scratch = Vec::new();
        for (i, place) in range.enumerate() {
            let drafted = draft.tokens.get(i).copied();
            let (token, extra) = match verdicts {
                Verdicts::Best(best, _) => (Some(best[place]), None),
                Verdicts::Logits(all) => {
                    let raw = &all[place * vocab..(place + 1) * vocab];
                    scratch.clear();
                    scratch.extend_from_slice(raw);
                    let history = History::new(&live.content, live.prompt_len);
                    let from = drafted.map(|token| DraftedToken {
                        token,
                        q: draft.proposal.at(i),
                    });
                    (live.sampler.choose(history, &mut scratch, from), Some(raw))
                }
            };
            let Some(token) = token else {
                row.error = Some(Error::NoCandidate {
                    seq,
                    position: live.content.len(),
                });
                break;
            };
            if let Some(margin) = margin {
                let tie = match verdicts {
                    Verdicts::Best(_, close) => close.get(place).is_some_and(|close| *close),
                    Verdicts::Logits(_) => extra.is_some_and(|raw| is_tie(raw, margin)),
                };
                live.stats.ties += u64::from(tie);
                self.total.ties += u64::from(tie);
            }
            let (logprob, top) = match (live.sampler.params().logprobs, extra) {
                (Some(n), Some(raw)) => {
                    let (logprob, top) = logprobs(raw, token, n);
                    (Some(logprob), top)
                }
                _ => (None, Vec::new()),
            };
            live.content.push(token);
            let agreed = drafted == Some(token);
            row.emitted.push(Emitted {
                token,
                logprob,
                top,
                drafted: agreed,
            });
            if !agreed {
                break;
            }
        }
        let mut content = std::mem::take(&mut live.content);
        let mut emitted = budget.emitted;
        let cut = commit(&content[before..], budget, |token| {
            emitted += 1;
            live.ends_with(token, emitted - 1)
        });
        content.truncate(before + cut.kept);
        live.content = content;
        row.emitted.truncate(cut.kept);
        row.finish = cut.finish;
        if row.finish.is_some() {
            row.error = None;
        }
        // The anchor and all kept drafts but the newest token are in the cache now.
        live.cached += cut.kept;
        row
    }

    fn account(
        &mut self,
        judged: &[Judged],
        draft_time: Duration,
        verify_time: Duration,
        block: usize,
    ) {
        let mut outcome = Outcome {
            draft_time,
            verify_time,
            block,
            ..Outcome::default()
        };
        for row in judged {
            let accepted = row.accepted();
            let emitted = row.emitted.len();
            let live = self
                .pool
                .get_mut(&row.seq)
                .expect("rows of a step are live");
            live.stats.round(row.drafted, accepted, emitted);
            live.stats.draft_time += draft_time;
            live.stats.verify_time += verify_time;
            self.total.round(row.drafted, accepted, emitted);
            outcome.rows.push(RowOutcome {
                seq: row.seq,
                planned: row.planned,
                drafted: row.drafted,
                accepted,
                emitted,
                context: row.before - 1,
                finished: row.finish.is_some() || row.error.is_some(),
            });
        }
        self.total.draft_time += draft_time;
        self.total.verify_time += verify_time;
        self.controller.observe(&outcome);
    }

    fn tell_drafter(&mut self, judged: &[Judged], taps: &[Tensor<2>]) -> Result<()> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        let rows: Vec<ObservedRow<'_>> = judged
            .iter()
            .map(|row| {
                let live = &self.pool[&row.seq];
                let committed = row.range.start..row.range.start + row.emitted.len();
                ObservedRow::new(row.seq, &live.content, row.before - 1, committed)
                    .with_draft(row.drafted, row.accepted())
            })
            .collect();
        drafter.observe(&Observation::new(Phase::Verify, &rows, taps))
    }

    /// Turns what a row emitted into events.
    fn tell(&mut self, row: Judged, settle_time: Duration) {
        let seq = row.seq;
        let live = self.pool.get_mut(&seq).expect("rows of a step are live");
        live.stats.settle_time += settle_time;
        if live.sampler.params().logprobs.is_some() {
            live.logprobs.extend(row.emitted.iter().cloned());
        }
        match live.granularity {
            Granularity::Block if row.emitted.is_empty() => {}
            Granularity::Block => {
                self.events.push_back(Event::Tokens {
                    seq,
                    tokens: row.emitted,
                });
            }
            Granularity::Token => {
                self.events
                    .extend(row.emitted.into_iter().map(|token| Event::Tokens {
                        seq,
                        tokens: vec![token],
                    }))
            }
        }
        match (row.finish, row.error) {
            (Some(reason), _) => self.finish(seq, reason),
            (None, Some(error)) => self.fail(seq, error),
            (None, None) => {}
        }
    }
}

/// A drawn draft must say where each of its tokens was drawn from, and give it a chance there.
fn check_proposal(part: &'static str, draft: &RowDraft) -> Result<()> {
    if draft.proposal == Proposal::Deterministic {
        return Ok(());
    }
    for (i, &token) in draft.tokens.iter().enumerate() {
        if draft.proposal.at(i).probability(token, token) <= 0.0 {
            let what = format!("token {token} at place {i} of a draft has no probability in its q");
            return Err(Error::Contract { part, what });
        }
    }
    Ok(())
}
