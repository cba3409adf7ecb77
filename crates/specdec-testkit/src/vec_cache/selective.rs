//! Passes that attend to a part of what is cached, by going through all of it.

use super::{Looked, VecAttend, VecCache};
use burn::prelude::*;
use specdec_core::{
    HeadWeights, Phase, Result, RowSpan, Score, Selection, SelectiveAttend, SelectiveCache, Weighed,
};
use std::sync::Arc;

/// What the queries of a row see in a layer.
pub(super) struct Sight<'a> {
    start: usize,
    /// The lists of positions, and the tail.
    keys: Option<(&'a [Arc<[u32]>], usize)>,
    window: Option<usize>,
}

impl<'a> Sight<'a> {
    pub(super) fn new(
        selection: &'a Selection,
        number: usize,
        row: RowSpan,
        (layer, window): (usize, Option<usize>),
    ) -> Self {
        let keys = selection
            .row(number)
            .and_then(|keys| Some((keys.layer(layer)?, keys.tail())));
        Self {
            start: row.start,
            keys,
            window,
        }
    }

    /// The positions that the query at `position` sees with a key/value head, ascending.
    pub(super) fn of(&self, position: usize, head: usize) -> Vec<usize> {
        let near = |p: &usize| self.window.is_none_or(|window| p + window > position);
        let chosen = |p: &usize| match self.keys {
            Some((lists, tail)) => {
                let list = lists.get(head).or(lists.first());
                let listed = |list: &Arc<[u32]>| list.iter().any(|&key| key as usize == *p);
                *p >= self.start || *p >= tail || list.is_some_and(listed)
            }
            None => true,
        };
        (0..=position).filter(near).filter(chosen).collect()
    }
}

/// The scores reported by a layer, `[Q, W, S]`.
pub(super) struct Reported {
    queries: Vec<usize>,
    score: Score,
    scores: Vec<f64>,
    width: usize,
    columns: usize,
    kv_heads: usize,
}

impl Reported {
    pub(super) fn new(selection: &Selection, rows: &[RowSpan], kv_heads: usize) -> Self {
        let columns = rows
            .iter()
            .map(|row| row.start + row.len)
            .max()
            .unwrap_or(0);
        let width = match selection.heads {
            HeadWeights::PerKvHead => kv_heads,
            _ => 1,
        };
        Self {
            queries: selection.queries.clone(),
            score: selection.score,
            scores: vec![0.0; selection.queries.len() * width * columns],
            width,
            columns,
            kv_heads,
        }
    }

    /// Adds what one query head of group `g`, which has `group` of them, made of what it saw, for the
    /// query at this place.
    pub(super) fn add(
        &mut self,
        place: usize,
        g: usize,
        group: usize,
        (seen, looked): (&[usize], &Looked),
    ) {
        let (g, heads) = match self.width {
            1 => (0, group * self.kv_heads),
            _ => (g, group),
        };
        for (number, _) in (0..).zip(&self.queries).filter(|(_, q)| **q == place) {
            let row = (number * self.width + g) * self.columns;
            let scores = match self.score {
                Score::Logits => &looked.logits,
                _ => &looked.weights,
            };
            for (position, score) in seen.iter().zip(scores) {
                self.scores[row + position] += score / heads as f64;
            }
        }
    }

    fn tensor(self, device: &Device) -> Option<Tensor<3>> {
        let shape = [self.queries.len(), self.width, self.columns];
        let scores: Vec<f32> = self.scores.iter().map(|&score| score as f32).collect();
        (shape[0] > 0).then(|| Tensor::from_data(TensorData::new(scores, shape), device))
    }
}

impl SelectiveAttend for VecAttend<'_> {
    fn attend_weighed(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Weighed> {
        let (out, reported) = self.run(layer, q, k, v)?;
        let weights = reported.tensor(&self.0.spec.device);
        Ok(Weighed { out, weights })
    }
}

impl SelectiveCache for VecCache {
    fn begin_selective<'a>(
        &'a mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<Box<dyn SelectiveAttend + 'a>> {
        Ok(Box::new(self.open(rows, phase, selection)?))
    }
}
