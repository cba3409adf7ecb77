//! Attention over ragged rows, and what the formula gives.

use specdec_kernels::{Attended, AttentionPass, SlotStore};

use crate::oracle::{Heads, attend_one, deal, device, numbers, scores_one, tensor};

/// A ragged problem: what every row holds already and what is new.
pub(crate) struct Problem {
    size: Heads,
    pub(crate) rows: Vec<(usize, usize)>,
    chunk: usize,
    pub(crate) keys: Vec<Vec<f32>>,
    pub(crate) vals: Vec<Vec<f32>>,
    pub(crate) q: Vec<f32>,
}

impl Problem {
    pub(crate) fn new(size: Heads, rows: &[(usize, usize)], chunk: usize, seed: u64) -> Self {
        let width = size.kv_heads * size.dim;
        let held = |salt: u64| {
            let rows = rows.iter().enumerate();
            rows.map(|(r, &(start, len))| {
                numbers(seed * 100 + salt * 50 + r as u64, (start + len) * width)
            })
            .collect()
        };
        let tokens: usize = rows.iter().map(|row| row.1).sum();
        Self {
            size,
            rows: rows.to_vec(),
            chunk,
            keys: held(0),
            vals: held(1),
            q: numbers(seed * 100 + 99, tokens * size.heads * size.dim),
        }
    }

    pub(crate) fn store(
        &self,
        pass_rows: &[specdec_kernels::AttentionRow],
        chunks: usize,
    ) -> SlotStore {
        let Heads { kv_heads, dim, .. } = self.size;
        let mut store = SlotStore::new(2, kv_heads, dim, self.chunk, &device()).unwrap();
        store.reserve(chunks / 2);
        store.reserve(chunks);
        for (r, row) in pass_rows.iter().enumerate() {
            let held = row.start * kv_heads * dim;
            let shape = [row.start, kv_heads, dim];
            if row.start > 0 {
                let k = tensor(&self.keys[r][..held], shape);
                let v = tensor(&self.vals[r][..held], shape);
                store.write(1, &row.table, 0, k, v).unwrap();
            }
        }
        store
    }

    pub(crate) fn attend(
        &self,
        configure: impl Fn(AttentionPass) -> AttentionPass,
    ) -> (Attended, SlotStore) {
        let Heads {
            heads,
            kv_heads,
            dim,
        } = self.size;
        let (rows, chunks) = deal(&self.rows, self.chunk, 1);
        let mut store = self.store(&rows, chunks);
        let width = kv_heads * dim;
        let new = |held: &[Vec<f32>]| -> Vec<f32> {
            let rows = held.iter().zip(&self.rows);
            rows.flat_map(|(held, row)| held[row.0 * width..].to_vec())
                .collect()
        };
        let tokens = self.q.len() / (heads * dim);
        let pass = configure(AttentionPass::new(rows, self.chunk, &device()).unwrap());
        let q = tensor(&self.q, [tokens, heads, dim]);
        let k = tensor(&new(&self.keys), [tokens, kv_heads, dim]);
        let v = tensor(&new(&self.vals), [tokens, kv_heads, dim]);
        let attended = store.attend(1, q, k, v, &pass).unwrap();
        (attended, store)
    }

    /// By the formula; `seen` says which columns the query at (row, position) sees.
    pub(crate) fn expected(
        &self,
        seen: impl Fn(usize, usize) -> Vec<usize>,
    ) -> (Vec<f64>, Vec<Vec<f64>>) {
        let Heads { heads, dim, .. } = self.size;
        let scale = 1.0 / (dim as f64).sqrt();
        let columns = self.rows.iter().map(|row| row.0 + row.1).max().unwrap();
        let queries = self.rows.iter().enumerate();
        let queries =
            queries.flat_map(|(r, &(start, len))| (start..start + len).map(move |p| (r, p)));
        queries
            .zip(self.q.chunks(heads * dim))
            .map(|((r, p), q)| {
                attend_one(
                    q,
                    &self.keys[r],
                    &self.vals[r],
                    &seen(r, p),
                    (self.size, scale, columns),
                )
            })
            .fold(
                (vec![], vec![]),
                |(mut outs, mut weights), (out, weight)| {
                    outs.extend(out);
                    weights.push(weight);
                    (outs, weights)
                },
            )
    }

    /// By the formula, the scores of the queries asked for.
    pub(crate) fn expected_scores(
        &self,
        asked: &[usize],
        seen: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Vec<f64> {
        let Heads { heads, dim, .. } = self.size;
        let scale = 1.0 / (dim as f64).sqrt();
        let rows = self.rows.iter().enumerate();
        let places: Vec<(usize, usize)> = rows
            .flat_map(|(r, &(start, len))| (start..start + len).map(move |p| (r, p)))
            .collect();
        let ends = asked.iter().map(|&query| {
            let (start, len) = self.rows[places[query].0];
            start + len
        });
        let columns = ends.max().unwrap();
        let scores = asked.iter().flat_map(|&query| {
            let (r, p) = places[query];
            let q = &self.q[query * heads * dim..][..heads * dim];
            scores_one(q, &self.keys[r], &seen(r, p), (self.size, scale, columns))
        });
        scores.collect()
    }
}

pub(crate) const SMALL: Heads = Heads {
    heads: 6,
    kv_heads: 2,
    dim: 20,
};
