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
    pub(crate) phase: Phase,
    /// Sequence, first position and fate of each row.
    pub(crate) rows: Vec<(SeqId, usize, Fate)>,
    pub(crate) weights: Weights,
}

/// What was reported of a pass: per layer `[Q, W, S]`, once it has attended. W is 1, or Hkv where each
/// key/value head has its own keys.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    layers: Vec<Option<Tensor<3>>>,
    /// Q, W, and the least S.
    shape: [usize; 3],
}

impl Weights {
    /// Of `layers` layers, and of queries, heads and columns as in `shape`.
    pub(crate) fn new(layers: usize, shape: [usize; 3]) -> Self {
        Self {
            layers: vec![None; layers],
            shape,
        }
    }

    /// Whether anything is to be reported.
    pub(crate) fn wanted(&self) -> bool {
        self.shape[0] > 0
    }

    pub(crate) fn put(&mut self, layer: usize, weights: Option<Tensor<3>>) -> Result<()> {
        let want = self.shape;
        let got = weights.as_ref().map_or([0; 3], Tensor::dims);
        if got[..2] != want[..2] || got[2] < want[2] {
            return Err(CacheError::Shape {
                what: "reported weights",
                got: got.to_vec(),
                want: want.to_vec(),
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
            let Some([_, heads, columns]) = weights.as_ref().map(Tensor::dims) else {
                layers.push(HostLayer::default());
                continue;
            };
            let data = data
                .next()
                .ok_or_else(|| unreadable("too few tensors".into()))?;
            let values = data
                .try_into_vec_as::<f32>()
                .map_err(|e| unreadable(format!("{e:?}")))?;
            layers.push(HostLayer {
                heads,
                columns,
                values,
            });
        }
        Ok(HostWeights { layers })
    }
}

/// The same, read.
#[derive(Debug, Default)]
pub(crate) struct HostWeights {
    layers: Vec<HostLayer>,
}

/// Of one layer, `[Q, W, S]`; empty where nothing was reported.
#[derive(Debug, Default)]
struct HostLayer {
    heads: usize,
    columns: usize,
    values: Vec<f32>,
}

impl HostWeights {
    /// The mean over a row's queries of what its candidates weighed with a head, `[count]`; empty where
    /// nothing was reported. Each query's weights are those over all that it saw.
    pub(crate) fn mean(&self, layer: usize, row: &CollectedRow, head: usize) -> Vec<f32> {
        let Some(layer) = self.layers.get(layer).filter(|layer| layer.columns > 0) else {
            return Vec::new();
        };
        let mut rows = row.queries.clone().map(|query| {
            let from = (query * layer.heads + head) * layer.columns;
            &layer.values[from..from + row.count.min(layer.columns)]
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
