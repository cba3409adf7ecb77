//! Several linear maps of one input, in as few products as their formats allow.

use burn::prelude::*;
use specdec_kernels::WeightMatrix;

/// `N` linear maps of the same input. Neighbours stored in the same format are one matrix, so that
/// the input is read, and the threads are started, once for all of them.
#[derive(Debug, Clone)]
pub(super) struct Projections<const N: usize> {
    pub(super) groups: Vec<Group>,
}

/// Maps computed by one product.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) weight: WeightMatrix,
    pub(super) bias: Option<Tensor<1>>,
    /// Output width of each map in the group.
    pub(super) widths: Vec<usize>,
}

impl<const N: usize> Projections<N> {
    /// `x` `[T, K]` to `[T, width]` for each map. The groups hold `N` maps in all, which is how they
    /// are assembled.
    pub(super) fn apply(&self, x: Tensor<2>) -> [Tensor<2>; N] {
        let mut out = self.groups.iter().flat_map(|group| group.apply(x.clone()));
        std::array::from_fn(|_| out.next().expect("the groups hold N maps"))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.groups.iter().map(|g| g.weight.memory_bytes()).sum()
    }
}

impl Group {
    fn apply(&self, x: Tensor<2>) -> Vec<Tensor<2>> {
        let mut y = self.weight.matmul(x);
        if let Some(bias) = &self.bias {
            y = y + bias.clone().unsqueeze();
        }
        if let [_] = self.widths[..] {
            return vec![y];
        }
        let mut from = 0;
        let mut part = |&width: &usize| {
            let columns = from..from + width;
            from += width;
            y.clone().slice(s![.., columns])
        };
        self.widths.iter().map(&mut part).collect()
    }
}
