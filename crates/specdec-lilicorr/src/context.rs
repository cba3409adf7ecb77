//! What the drafter keeps of a sequence: keys and values of its committed positions.

use burn::prelude::*;
use burn::tensor::s;
use specdec_core::Token;

/// The draft of the last round, to be counted when its outcome is known.
#[derive(Debug)]
pub(crate) struct Drafted {
    /// Position of the anchor.
    pub(crate) anchor: usize,
    pub(crate) ids: Vec<Vec<Token>>,
    pub(crate) tokens: Vec<Token>,
}

/// Entries of the positions whose features came, in ascending order. They are a function of what is
/// committed and of nothing else: drafts leave no trace here.
#[derive(Debug, Default)]
pub(crate) struct Context {
    positions: Vec<usize>,
    /// Keys and values of each layer, `[capacity, Hkv, D]` each.
    layers: Vec<(Tensor<3>, Tensor<3>)>,
    /// Features of the last position, `[1, D]`.
    pub(crate) last: Option<Tensor<2>>,
    pub(crate) drafted: Option<Drafted>,
}

impl Context {
    /// Positions held.
    pub(crate) fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Whether the features of the position before `anchor` are known (or there is none).
    pub(crate) fn reaches(&self, anchor: usize) -> bool {
        anchor.checked_sub(1) == self.positions.last().copied()
    }

    /// Forgets the positions from `start` on.
    pub(crate) fn cut(&mut self, start: usize) {
        let keep = self.positions.partition_point(|&p| p < start);
        if keep < self.positions.len() {
            self.positions.truncate(keep);
            self.last = None;
        }
    }

    /// Adds entries of consecutive positions from `start`: for each layer `[m, Hkv, D]` twice.
    pub(crate) fn append(
        &mut self,
        start: usize,
        entries: Vec<(Tensor<3>, Tensor<3>)>,
        last: Tensor<2>,
    ) {
        self.cut(start);
        let held = self.positions.len();
        let count = entries.first().map_or(0, |(k, _)| k.dims()[0]);
        if self.layers.is_empty() {
            self.layers = entries
                .iter()
                .map(|(k, v)| (room(k, 0), room(v, 0)))
                .collect();
        }
        for ((k, v), (new_k, new_v)) in self.layers.iter_mut().zip(entries) {
            write(k, held, new_k);
            write(v, held, new_v);
        }
        self.positions.extend(start..start + count);
        self.last = Some(last);
    }

    /// Keys and values of a layer, `[n, Hkv, D]` each; `None` when nothing is held.
    pub(crate) fn entries(&self, layer: usize) -> Option<(Tensor<3>, Tensor<3>)> {
        let n = self.positions.len();
        let (k, v) = self.layers.get(layer).filter(|_| n > 0)?;
        Some((k.clone().slice(s![0..n]), v.clone().slice(s![0..n])))
    }
}

/// Zeros `[capacity, Hkv, D]` for at least `count` rows like those of `like`.
fn room(like: &Tensor<3>, count: usize) -> Tensor<3> {
    let [_, heads, dim] = like.dims();
    Tensor::zeros(
        [count.next_power_of_two().max(64), heads, dim],
        &like.device(),
    )
}

/// Writes rows behind the first `held`, making room if there is none.
fn write(store: &mut Tensor<3>, held: usize, rows: Tensor<3>) {
    let count = rows.dims()[0];
    let end = held + count;
    if end > store.dims()[0] {
        let old = store.clone().slice(s![0..held]);
        let bigger = room(store, end);
        *store = if held > 0 {
            bigger.slice_assign(s![0..held], old)
        } else {
            bigger
        };
    }
    store.inplace(|store| store.slice_assign(s![held..end], rows));
}
