//! A band of queries of one row, with one key/value head, over one block of columns.

use core::ops::Range;

use super::{
    add::{Add, Join},
    block::{BLOCK, Gathering, QUERIES, Scores},
    columns::{Ahead, Columns},
    host::Work,
    report::Kept,
    score::{Batch, Score, Weigh},
};
use crate::vector::{Line, run};

/// Batches of a set: with their scores and a few tiles it fits the nearest cache.
const SET: usize = 4;

/// Some queries of one row.
#[derive(Debug, Clone)]
pub(super) struct Band {
    pub(super) row: usize,
    /// Tokens of the row.
    pub(super) tokens: Range<usize>,
}

/// A band at work with one head. Its queries are counted `[token][head of the group]`, from the row's first token.
pub(super) struct BandWork<'a> {
    work: &'a Work<'a>,
    row: usize,
    head: usize,
    queries: Range<usize>,
    /// The row's first new column.
    start: usize,
    lines: usize,
    /// Most queries of a batch.
    most: usize,
    batches: Vec<Batch>,
    /// Tokens whose attention is asked for.
    asked: Vec<usize>,
}

/// Room for the queries of a band, used block after block.
pub(super) struct Scratch {
    scores: Vec<Scores>,
    out: Vec<Line>,
}

impl<'a> BandWork<'a> {
    pub(super) fn new(work: &'a Work<'a>, band: &Band, head: usize) -> Self {
        let queries = band.tokens.start * work.group..band.tokens.end * work.group;
        // Batches as even as can be.
        let most = queries.len().div_ceil(queries.len().div_ceil(QUERIES));
        let mut this = Self {
            work,
            row: band.row,
            head,
            start: work.pass.rows()[band.row].start,
            lines: work.store.value_lines(),
            most,
            batches: Vec::new(),
            asked: work.asked_of(band),
            queries: queries.clone(),
        };
        let starts = queries.clone().step_by(most);
        let batches = starts.map(|from| this.batch_of(from..queries.end.min(from + most)));
        this.batches = batches.collect();
        this
    }

    pub(super) fn scratch(&self) -> Scratch {
        let queries = self.queries.len().min(SET * self.most);
        Scratch {
            scores: vec![[0.0; BLOCK]; queries],
            out: vec![Line::ZERO; queries * self.lines],
        }
    }

    pub(super) fn nothing(&self) -> Gathering {
        Gathering::new(self.queries.len(), self.lines)
    }

    fn columns(&self) -> Columns<'a> {
        Columns {
            store: self.work.store,
            table: &self.work.pass.rows()[self.row].table,
            padding: self.work.pass.padding(self.row),
            layer: self.work.inputs.layer,
            head: self.head,
        }
    }

    /// The runs that a token sees in the block from column `block` on.
    fn seen(&self, token: usize, block: usize) -> Vec<Range<usize>> {
        self.runs(self.first(token, block)..self.end(token, block))
    }

    /// The first column of a block that the window leaves to a token.
    fn first(&self, token: usize, block: usize) -> usize {
        self.work.pass.first_column(self.row, token).max(block)
    }

    /// The end of the columns of a block that are not later than a token.
    fn end(&self, token: usize, block: usize) -> usize {
        (self.start + token + 1).min(block + BLOCK)
    }

    /// The columns of `limits` that the row's queries see, the window and the order in time apart.
    fn runs(&self, limits: Range<usize>) -> Vec<Range<usize>> {
        let earlier = self.work.earlier(self.row, self.head);
        let skip = earlier.partition_point(|run| run.end <= limits.start);
        let inside = earlier[skip..]
            .iter()
            .take_while(|run| run.start < limits.end);
        let new = self.start..limits.end.max(self.start);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for run in inside.chain(core::iter::once(&new)) {
            let run = run.start.max(limits.start)..run.end.min(limits.end);
            match runs.last_mut() {
                _ if run.is_empty() => {}
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        runs
    }

    /// The columns of the block after the one that starts at `block`, as far as they are earlier than the row's tokens.
    fn next(&self, block: usize) -> Range<usize> {
        let next = block + BLOCK;
        match self.work.earlier(self.row, self.head) {
            [all] if all.contains(&next) => next..all.end.min(next + BLOCK),
            _ => 0..0,
        }
    }

    fn batch_of(&self, queries: Range<usize>) -> Batch {
        let Work {
            store,
            pass,
            inputs,
            group,
            ..
        } = self.work;
        let dim = store.shape().head_dim;
        let many = queries.len();
        let mut q = vec![0.0; many * dim];
        for (m, query) in queries.enumerate() {
            let token = pass.offset(self.row) + query / group;
            let place = token * inputs.heads + self.head * group + query % group;
            let values = &inputs.q[place * dim..][..dim];
            for (q, &value) in q[m..].iter_mut().step_by(many).zip(values) {
                *q = value;
            }
        }
        Batch { queries: many, q }
    }

    /// Block number `block` for all queries of the band, joined to what they have gathered.
    pub(super) fn block(&self, block: usize, gathered: &mut Gathering, scratch: &mut Scratch) {
        let block = block * BLOCK;
        let tokens = self.tokens(&self.queries);
        // Together where all see the same columns, else a batch at a time: the edges in time and of the window.
        let set = if self.alike(&tokens, block) { SET } else { 1 };
        let next = self.next(block);
        let mut ahead = Ahead::new(self.columns(), next, self.batches.len());
        let Gathering { folds, out, kept } = gathered;
        let folds = folds.chunks_mut(set * self.most);
        let outs = out.chunks_mut(set * self.most * self.lines);
        let mut first = self.queries.start;
        for ((batches, folds), gathered) in self.batches.chunks(set).zip(folds).zip(outs) {
            let queries = first..first + folds.len();
            first = queries.end;
            let scores = &mut scratch.scores[..queries.len()];
            let out = &mut scratch.out[..queries.len() * self.lines];
            let any = self.score(block, (batches, &queries), scores, &mut ahead);
            if self.work.pass.reports_scores() {
                self.keep(block, &queries, scores, |_| None, kept);
            }
            let later = self.gather(block, (&queries, &any), (scores, out), &mut ahead);
            if !self.work.pass.reports_scores() {
                self.keep(block, &queries, scores, |place| Some(later[place].0), kept);
            }
            join_all(folds, gathered, (&later, out), self.lines);
        }
    }

    /// Keeps what those queries that are asked for report of a block: scores, or weights where `most` tells the greatest
    /// score of each query.
    fn keep(
        &self,
        block: usize,
        queries: &Range<usize>,
        values: &[Scores],
        most: impl Fn(usize) -> Option<f32>,
        kept: &mut Kept,
    ) {
        let group = self.work.group;
        for token in self
            .tokens(queries)
            .filter(|token| self.asked.contains(token))
        {
            let seen = self.seen(token, block);
            // Its query heads see the same.
            let heads = (token * group).max(queries.start)..((token + 1) * group).min(queries.end);
            for query in heads {
                let place = query - queries.start;
                kept.push((query, block, most(place)), &seen, &values[place]);
            }
        }
    }

    /// The tokens of some queries.
    fn tokens(&self, queries: &Range<usize>) -> Range<usize> {
        queries.start / self.work.group..(queries.end - 1) / self.work.group + 1
    }

    /// Whether some tokens see the same columns of a block.
    fn alike(&self, tokens: &Range<usize>, block: usize) -> bool {
        let (oldest, newest) = (tokens.start, tokens.end - 1);
        self.first(oldest, block) == self.first(newest, block)
            && self.end(oldest, block) == self.end(newest, block)
    }

    /// Scores of a set of batches in one block, and the runs of it that any of their queries sees.
    fn score(
        &self,
        block: usize,
        (batches, queries): (&[Batch], &Range<usize>),
        scores: &mut [Scores],
        ahead: &mut Ahead<'_>,
    ) -> Vec<Range<usize>> {
        let tokens = self.tokens(queries);
        let (oldest, newest) = (tokens.start, tokens.end - 1);
        let any = self.runs(self.first(oldest, block)..self.end(newest, block));
        if !any.is_empty() {
            run(Score {
                columns: self.columns(),
                runs: &any,
                block,
                batches,
                scale: self.work.scale,
                scores,
                ahead,
            });
        }
        any
    }

    /// Turns the scores of a set of queries into weights, and adds the values of the block by itself.
    fn gather(
        &self,
        block: usize,
        (queries, any): (&Range<usize>, &[Range<usize>]),
        (scores, out): (&mut [Scores], &mut [Line]),
        ahead: &mut Ahead<'_>,
    ) -> Vec<(f32, f32)> {
        let mut folds = vec![(f32::NEG_INFINITY, 0.0); queries.len()];
        if any.is_empty() {
            return folds;
        }
        let columns = self.columns();
        let tokens = self.tokens(queries);
        let (oldest, newest) = (tokens.start, tokens.end - 1);
        let first = |token| self.first(token, block);
        let end = |token| self.end(token, block);
        out.fill(Line::ZERO);
        if self.alike(&tokens, block) {
            for (fold, scores) in folds.iter_mut().zip(&mut *scores) {
                *fold = run(Weigh {
                    runs: any,
                    block,
                    scores,
                });
            }
            run(Add {
                columns,
                runs: any,
                block,
                most: self.most,
                weights: scores,
                out,
                ahead,
            });
            return folds;
        }
        // Each query adds its columns in ascending order: first those that leave the window before the newest query,
        // then those that all see, then those that come after the oldest query.
        let common = first(newest)..end(oldest).max(first(newest));
        for (m, query) in queries.clone().enumerate() {
            let token = query / self.work.group;
            let scores = &mut scores[m];
            let runs = &self.seen(token, block);
            folds[m] = run(Weigh {
                runs,
                block,
                scores,
            });
            let before = self.runs(first(token)..common.start.min(end(token)));
            let out = &mut out[m * self.lines..][..self.lines];
            self.add_alone(&before, block, scores, out);
        }
        let runs = &self.runs(common.clone());
        run(Add {
            columns,
            runs,
            block,
            most: self.most,
            weights: scores,
            out,
            ahead,
        });
        for (m, query) in queries.clone().enumerate() {
            let token = query / self.work.group;
            let after = self.runs(common.end.max(first(token))..end(token));
            let out = &mut out[m * self.lines..][..self.lines];
            self.add_alone(&after, block, &scores[m], out);
        }
        folds
    }

    fn add_alone(&self, runs: &[Range<usize>], block: usize, weights: &Scores, out: &mut [Line]) {
        if !runs.is_empty() {
            let weights = core::slice::from_ref(weights);
            run(Add {
                columns: self.columns(),
                runs,
                block,
                most: 1,
                weights,
                out,
                ahead: &mut Ahead::none(),
            });
        }
    }
}

/// Joins what queries gathered in a later block to what they had; `lines` of output for each.
pub(super) fn join_all(
    folds: &mut [(f32, f32)],
    out: &mut [Line],
    (later, later_out): (&[(f32, f32)], &[Line]),
    lines: usize,
) {
    for (query, (into, &fold)) in folds.iter_mut().zip(later).enumerate() {
        let own = query * lines..(query + 1) * lines;
        run(Join {
            into,
            into_out: &mut out[own.clone()],
            fold,
            out: &later_out[own],
        });
    }
}
