//! Ragged attention over the CPU's store.
//!
//! The unit of work is a band of a row's queries with one key/value head: all query heads of its group, so that each
//! key is loaded once for them. A band goes through its blocks of columns in order; where there are fewer bands than
//! threads, the blocks of a band are computed side by side and then joined in the same order.

use core::ops::Range;

use super::{
    AttentionPass,
    block::{Add, BLOCK, Columns, Gathered, Join, QUERIES, Score, Scores, Weigh},
    host_store::HostStore,
};
use crate::{
    threads::{for_each, threads},
    vector::{Line, for_each_cell, run},
};

/// Tokens of a band.
const BAND: usize = 16;

/// The tensors of a pass, row-major.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) layer: usize,
    /// `[T, H, D]`.
    pub(super) q: &'a [f32],
    pub(super) heads: usize,
}

/// Some queries of one row.
#[derive(Debug, Clone)]
struct Band {
    row: usize,
    /// Tokens of the row.
    tokens: Range<usize>,
}

/// A pass at work on one layer.
struct Work<'a> {
    store: &'a HostStore,
    pass: &'a AttentionPass,
    inputs: Inputs<'a>,
    /// Earlier columns seen, by row.
    earlier: Vec<Vec<Range<usize>>>,
    group: usize,
    scale: f32,
}

/// What the queries of a band and head have gathered, `[token][head of the group]`.
type Gathering = Vec<Gathered>;

/// Returns `[T, H, D]`, and the weights asked for, `[Q, Hkv, S]`.
pub(super) fn attend(
    store: &HostStore,
    pass: &AttentionPass,
    inputs: Inputs<'_>,
) -> (Vec<f32>, Vec<f32>) {
    let shape = store.shape();
    let rows = pass.rows();
    let work = Work {
        store,
        pass,
        inputs,
        earlier: (0..rows.len())
            .map(|row| pass.earlier(inputs.layer, row))
            .collect(),
        group: inputs.heads / shape.kv_heads,
        scale: pass.scale_for(shape.head_dim),
    };
    let mut bands = Vec::new();
    for (row, description) in rows.iter().enumerate() {
        let starts = (0..description.len).step_by(BAND);
        bands.extend(starts.map(|start| Band {
            row,
            tokens: start..description.len.min(start + BAND),
        }));
    }
    let mut out = vec![0.0; inputs.q.len()];
    let ranges: Vec<_> = bands
        .iter()
        .map(|band| {
            pass.offset(band.row) + band.tokens.start..pass.offset(band.row) + band.tokens.end
        })
        .collect();
    let row_len = inputs.heads * shape.head_dim;
    let width = work.group * shape.head_dim;
    let split = work.split(&bands);
    for_each_cell(
        &mut out,
        (row_len, width),
        &ranges,
        |number, head, mut cell| {
            let band = &bands[number];
            let gathered = match &split {
                Some(parts) => work.join(&parts[number * shape.kv_heads + head]),
                None => {
                    let blocks = work.blocks(band);
                    let mut gathered = work.nothing(band);
                    for block in blocks {
                        work.block(band, head, block, &mut gathered);
                    }
                    gathered
                }
            };
            for (token, queries) in gathered.chunks_exact(work.group).enumerate() {
                let out = cell.row(token).chunks_exact_mut(shape.head_dim);
                for (out, query) in out.zip(queries) {
                    let values = query.out.iter().flat_map(|line| line.0);
                    for (out, value) in out.iter_mut().zip(values) {
                        *out = value / query.sum;
                    }
                }
            }
        },
    );
    (out, work.weights())
}

impl Work<'_> {
    /// The blocks that hold columns a band sees.
    fn blocks(&self, band: &Band) -> Range<usize> {
        let first = self.pass.first_column(band.row, band.tokens.start);
        let end = self.pass.rows()[band.row].start + band.tokens.end;
        first / BLOCK..end.div_ceil(BLOCK)
    }

    fn nothing(&self, band: &Band) -> Gathering {
        let queries = band.tokens.len() * self.group;
        vec![Gathered::new(self.store.value_lines()); queries]
    }

    /// Where there are too few bands for the threads: every block of every band and head on its own, `[band][head]`,
    /// blocks in order.
    fn split(&self, bands: &[Band]) -> Option<Vec<Vec<Gathering>>> {
        let kv_heads = self.store.shape().kv_heads;
        let threads = threads();
        if threads < 2 || bands.len() * kv_heads >= 4 * threads {
            return None;
        }
        let mut items = Vec::new();
        for band in bands {
            for head in 0..kv_heads {
                items.extend(self.blocks(band).map(|block| (band, head, block)));
            }
        }
        if items.len() < 2 * bands.len() * kv_heads {
            return None;
        }
        let cells: Vec<_> = items.iter().map(|_| std::sync::OnceLock::new()).collect();
        for_each(items.len(), |item| {
            let (band, head, block) = items[item];
            let mut gathered = self.nothing(band);
            self.block(band, head, block, &mut gathered);
            // Each item is computed once, so the cell is free.
            let _ = cells[item].set(gathered);
        });
        let mut cells = cells
            .into_iter()
            .map(|cell| cell.into_inner().unwrap_or_default());
        let per_head = bands.iter().flat_map(|band| {
            let blocks = self.blocks(band).len();
            core::iter::repeat_n(blocks, kv_heads)
        });
        Some(
            per_head
                .map(|blocks| cells.by_ref().take(blocks).collect())
                .collect(),
        )
    }

    /// Joins blocks in order, as a band that goes through them does.
    fn join(&self, parts: &[Gathering]) -> Gathering {
        let queries = parts.first().map_or(0, Vec::len);
        let mut joined = vec![Gathered::new(self.store.value_lines()); queries];
        for part in parts {
            for (into, part) in joined.iter_mut().zip(part) {
                run(Join {
                    into,
                    max: part.max,
                    sum: part.sum,
                    out: &part.out,
                });
            }
        }
        joined
    }

    /// The runs that token `token` of `row` sees in a block.
    fn seen(&self, row: usize, token: usize, block: usize) -> Vec<Range<usize>> {
        let start = self.pass.rows()[row].start;
        let first = self.pass.first_column(row, token).max(block);
        self.runs(row, first..(start + token + 1).min(block + BLOCK))
    }

    /// The columns of `limits` that a row's queries see but for the window and the order in time.
    fn runs(&self, row: usize, limits: Range<usize>) -> Vec<Range<usize>> {
        let start = self.pass.rows()[row].start;
        let earlier = &self.earlier[row];
        let skip = earlier.partition_point(|run| run.end <= limits.start);
        let mut runs: Vec<Range<usize>> = Vec::new();
        let new = start..limits.end.max(start);
        let inside = earlier[skip..]
            .iter()
            .take_while(|run| run.start < limits.end);
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

    /// The values of queries `queries` (counted `[token][head of the group]` from the row's first), `[D][queries]`.
    fn queries(&self, row: usize, head: usize, queries: Range<usize>) -> Vec<f32> {
        let dim = self.store.shape().head_dim;
        let mut q = vec![0.0; queries.len() * dim];
        let many = queries.len();
        for (m, query) in queries.enumerate() {
            let token = self.pass.offset(row) + query / self.group;
            let place = token * self.inputs.heads + head * self.group + query % self.group;
            let values = &self.inputs.q[place * dim..][..dim];
            for (q, &value) in q[m..].iter_mut().step_by(many).zip(values) {
                *q = value;
            }
        }
        q
    }

    fn columns(&self, row: usize, head: usize) -> Columns<'_> {
        Columns {
            store: self.store,
            table: &self.pass.rows()[row].table,
            layer: self.inputs.layer,
            head,
        }
    }

    /// One block for all queries of a band, joined to what they have gathered.
    fn block(&self, band: &Band, head: usize, block: usize, gathered: &mut [Gathered]) {
        let row = band.row;
        let block = block * BLOCK;
        let columns = self.columns(row, head);
        let lines = self.store.value_lines();
        let mut scores: Scores = [[0.0; BLOCK]; QUERIES];
        let mut out = vec![Line::ZERO; QUERIES * lines];
        let all = band.tokens.start * self.group..band.tokens.end * self.group;
        for (from, gathered) in all
            .clone()
            .step_by(QUERIES)
            .zip(gathered.chunks_mut(QUERIES))
        {
            let queries = from..all.end.min(from + QUERIES);
            let many = queries.len();
            let tokens = from / self.group..(queries.end - 1) / self.group + 1;
            let (oldest, newest) = (tokens.start, tokens.end - 1);
            // What any of them sees, and what all of them see.
            let start = self.pass.rows()[row].start;
            let first = |token| self.pass.first_column(row, token).max(block);
            let end = |token: usize| (start + token + 1).min(block + BLOCK);
            let any = self.runs(row, first(oldest)..end(newest));
            if any.is_empty() {
                continue;
            }
            let common = first(newest)..end(oldest).max(first(newest));
            let q = self.queries(row, head, queries.clone());
            run(Score {
                columns,
                runs: &any,
                block,
                q: &q,
                queries: many,
                scale: self.scale,
                scores: &mut scores,
            });
            let out = &mut out[..many * lines];
            out.fill(Line::ZERO);
            let mut folded = [(0.0, 0.0); QUERIES];
            for (m, query) in queries.clone().enumerate() {
                let token = query / self.group;
                let seen = self.seen(row, token, block);
                folded[m] = run(Weigh {
                    runs: &seen,
                    block,
                    scores: &mut scores[m],
                    max: None,
                });
                // Columns that leave the window before the newest query.
                let before = self.runs(row, first(token)..common.start.min(end(token)));
                self.add_alone(
                    columns,
                    &before,
                    block,
                    (&scores[m], &mut out[m * lines..][..lines]),
                );
            }
            run(Add {
                columns,
                runs: &self.runs(row, common.clone()),
                block,
                weights: &scores[..many],
                out,
            });
            for (m, query) in queries.enumerate() {
                let token = query / self.group;
                // Columns that come after the oldest query.
                let after = self.runs(row, common.end.max(first(token))..end(token));
                let out = &mut out[m * lines..][..lines];
                self.add_alone(columns, &after, block, (&scores[m], out));
                let (max, sum) = folded[m];
                run(Join {
                    into: &mut gathered[m],
                    max,
                    sum,
                    out,
                });
            }
        }
    }

    fn add_alone(
        &self,
        columns: Columns<'_>,
        runs: &[Range<usize>],
        block: usize,
        (weights, out): (&[f32; BLOCK], &mut [Line]),
    ) {
        if !runs.is_empty() {
            let weights = core::slice::from_ref(weights);
            run(Add {
                columns,
                runs,
                block,
                weights,
                out,
            });
        }
    }

    /// The softmax weights of the queries asked for, `[Q, Hkv, S]`.
    fn weights(&self) -> Vec<f32> {
        let asked = self.pass.queries_weighed();
        let kv_heads = self.store.shape().kv_heads;
        let columns = self.pass.weight_columns();
        let mut weights = vec![0.0; asked.len() * kv_heads * columns];
        if weights.is_empty() {
            return weights;
        }
        let bands: Vec<_> = (0..asked.len() * kv_heads)
            .map(|item| item..item + 1)
            .collect();
        for_each_cell(
            &mut weights,
            (columns, columns),
            &bands,
            |item, _, mut cell| {
                let (row, token) = self.pass.locate(asked[item / kv_heads]);
                self.weights_of(row, token, item % kv_heads, cell.row(0));
            },
        );
        weights
    }

    /// The mean over a group's query heads of the weights of one token, added to `mean`.
    fn weights_of(&self, row: usize, token: usize, head: usize, mean: &mut [f32]) {
        let band = Band {
            row,
            tokens: token..token + 1,
        };
        let columns = self.columns(row, head);
        let mut scores: Scores = [[0.0; BLOCK]; QUERIES];
        for member in 0..self.group {
            let query = token * self.group + member;
            let q = self.queries(row, head, query..query + 1);
            let mut fold = Gathered::new(0);
            // First the greatest score and the sum, joined as the pass joins them, then the weights.
            for last in [false, true] {
                for block in self.blocks(&band) {
                    let block = block * BLOCK;
                    let runs = self.seen(row, token, block);
                    if runs.is_empty() {
                        continue;
                    }
                    run(Score {
                        columns,
                        runs: &runs,
                        block,
                        q: &q,
                        queries: 1,
                        scale: self.scale,
                        scores: &mut scores,
                    });
                    let known = last.then_some(fold.max);
                    let (max, sum) = run(Weigh {
                        runs: &runs,
                        block,
                        scores: &mut scores[0],
                        max: known,
                    });
                    if !last {
                        run(Join {
                            into: &mut fold,
                            max,
                            sum,
                            out: &[],
                        });
                        continue;
                    }
                    let factor = 1.0 / (fold.sum * self.group as f32);
                    for column in runs.into_iter().flatten() {
                        mean[column] += scores[0][column - block] * factor;
                    }
                }
            }
        }
    }
}
