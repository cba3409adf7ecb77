//! What the attention of a pass showed, until somebody drafts.

use crate::Collect;
use burn::prelude::*;
use burn::tensor::Transaction;
use specdec_core::{CacheError, Phase, Result, RowSpan, SeqId};
use std::ops::Range;

/// What is known of one row of a pass.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CollectedRow {
    pub(crate) seq: SeqId,
    /// Positions `0..count` are candidates.
    pub(crate) count: usize,
    /// Keys that the pass saw.
    pub(crate) keys: usize,
    /// Which of the pass's reported queries are the row's.
    pub(crate) queries: Range<usize>,
}

/// The candidates of a row, and where the queries that rank them lie in it. A verify pass ranks what
/// is certain to be committed, the anchor included; in other passes, and with a single token, that is
/// everything.
pub(crate) fn candidates(row: &RowSpan, phase: Phase, collect: Collect) -> (usize, Vec<usize>) {
    let last = row.len.saturating_sub(1);
    if phase == Phase::Prefill || last == 0 {
        return (row.start + row.len, vec![last]);
    }
    let queries = match collect {
        Collect::Ends => vec![0, last],
        Collect::Last => vec![last],
        Collect::All => (0..=last).collect(),
    };
    (row.start + 1, queries)
}

/// What becomes of a row's keys when the pass is committed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate {
    /// They stay as they are.
    Stay,
    /// All entries are attended to.
    All,
    /// They are chosen anew.
    Choose(CollectedRow),
}

/// A pass that is open.
#[derive(Debug)]
pub(crate) struct OpenPass {
    /// Sequence, first position and fate of each row.
    pub(crate) rows: Vec<(SeqId, usize, Fate)>,
    pub(crate) weights: Weights,
}

/// The reported weights of a pass: per layer `[Q, 1, S]`, once it has attended.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    layers: Vec<Option<Tensor<3>>>,
    /// Q, and the least S.
    shape: (usize, usize),
}

impl Weights {
    /// Of `layers` layers, `queries` queries and rows of up to `columns` keys.
    pub(crate) fn new(layers: usize, queries: usize, columns: usize) -> Self {
        Self {
            layers: vec![None; layers],
            shape: (queries, columns),
        }
    }

    /// Whether anything is to be reported.
    pub(crate) fn wanted(&self) -> bool {
        self.shape.0 > 0
    }

    pub(crate) fn put(&mut self, layer: usize, weights: Option<Tensor<3>>) -> Result<()> {
        let (queries, columns) = self.shape;
        let got = weights.as_ref().map_or([0; 3], Tensor::dims);
        if got[0] != queries || got[1] != 1 || got[2] < columns {
            return Err(CacheError::Shape {
                what: "reported weights",
                got: got.to_vec(),
                want: vec![queries, 1, columns],
            }
            .into());
        }
        if let Some(place) = self.layers.get_mut(layer) {
            *place = weights;
        }
        Ok(())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let held = self.layers.iter().flatten();
        held.map(|weights| weights.shape().num_elements() * size_of::<f32>())
            .sum()
    }

    /// Everything on the host, in one read.
    pub(crate) fn read(&self) -> Result<HostWeights> {
        let unreadable =
            |e: String| CacheError::Kernel(format!("weights cannot be read: {e}").into());
        let mut transaction = Transaction::default();
        for weights in self.layers.iter().flatten() {
            transaction = transaction.register(weights.clone());
        }
        let data = transaction
            .try_execute()
            .map_err(|e| unreadable(format!("{e:?}")))?;
        let mut data = data.into_iter();
        let mut layers = Vec::with_capacity(self.layers.len());
        for weights in &self.layers {
            let Some(columns) = weights.as_ref().map(|weights| weights.dims()[2]) else {
                layers.push((0, Vec::new()));
                continue;
            };
            let data = data
                .next()
                .ok_or_else(|| unreadable("too few tensors".into()))?;
            let values = data
                .try_into_vec_as::<f32>()
                .map_err(|e| unreadable(format!("{e:?}")))?;
            layers.push((columns, values));
        }
        Ok(HostWeights { layers })
    }
}

/// The same, read.
#[derive(Debug)]
pub(crate) struct HostWeights {
    /// S and `[Q, S]` per layer; empty where nothing was reported.
    layers: Vec<(usize, Vec<f32>)>,
}

impl HostWeights {
    /// The mean over a row's queries of the weights of its candidates, `[count]`; empty where nothing
    /// was reported. Each query's weights are those over all that it saw.
    pub(crate) fn mean(&self, layer: usize, row: &CollectedRow) -> Vec<f32> {
        let Some((columns, values)) = self.layers.get(layer).filter(|(s, _)| *s > 0) else {
            return Vec::new();
        };
        let mut rows = row.queries.clone().map(|query| {
            let from = query * columns;
            &values[from..from + row.count.min(*columns)]
        });
        let Some(first) = rows.next() else {
            return Vec::new();
        };
        let mut mean = first.to_vec();
        for weights in rows {
            for (sum, weight) in mean.iter_mut().zip(weights) {
                *sum += weight;
            }
        }
        let share = 1.0 / row.queries.len() as f32;
        mean.iter_mut().for_each(|sum| *sum *= share);
        mean
    }
}
