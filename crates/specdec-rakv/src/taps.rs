//! Hidden states that several drafters want, taken from one pass.

use burn::prelude::*;
use specdec_core::Error;

/// The union of the drafters' taps, rising, and each drafter's places in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taps {
    union: Vec<usize>,
    places: Vec<Vec<usize>>,
}

impl Taps {
    /// Of what each drafter wants, in its own order.
    pub(crate) fn of<'a>(wanted: impl Iterator<Item = &'a [usize]> + Clone) -> Self {
        let mut union: Vec<usize> = wanted.clone().flatten().copied().collect();
        union.sort_unstable();
        union.dedup();
        let place = |tap: &usize| union.partition_point(|t| t < tap);
        let places = wanted.map(|taps| taps.iter().map(place).collect());
        Self {
            places: places.collect(),
            union,
        }
    }

    pub(crate) fn union(&self) -> &[usize] {
        &self.union
    }

    /// The drafter's own hidden states, in its own order, of a pass that tapped the union.
    pub(crate) fn pick(
        &self,
        drafter: usize,
        all: &[Tensor<2>],
    ) -> specdec_core::Result<Vec<Tensor<2>>> {
        let places = self.places.get(drafter).map_or(&[][..], Vec::as_slice);
        let taps: Option<Vec<Tensor<2>>> = places.iter().map(|&p| all.get(p).cloned()).collect();
        taps.ok_or_else(|| Error::Contract {
            part: "decoder",
            what: format!("{} hidden states for {} taps", all.len(), self.union.len()),
        })
    }
}
