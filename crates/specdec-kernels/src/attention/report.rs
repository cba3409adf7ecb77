//! Weights and scores of the queries that were asked for.

use core::ops::Range;
use std::sync::OnceLock;

use super::{
    band::Band,
    block::{BLOCK, Gathering, Scores},
    host::Work,
};
use crate::vector::{Kernel, Vector, for_each_cell, run};

/// What some queries report, block by block: their weights as each block by itself has them, or their scores.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    places: Vec<Place>,
    /// As many, by column of the block; zero where the query does not look.
    values: Vec<Scores>,
}

/// What a part of [`Kept`] belongs to.
#[derive(Debug, Clone, Copy)]
struct Place {
    query: usize,
    /// First column of the block.
    block: usize,
    /// The greatest score in it, where weights are reported.
    most: Option<f32>,
}

impl Kept {
    /// Adds a query's part of one block, of which it sees the columns `seen`.
    pub(super) fn push(
        &mut self,
        (query, block, most): (usize, usize, Option<f32>),
        seen: &[Range<usize>],
        values: &Scores,
    ) {
        if seen.is_empty() {
            return;
        }
        let mut clean = [0.0; BLOCK];
        for run in seen {
            let run = run.start - block..run.end - block;
            clean[run.clone()].copy_from_slice(&values[run]);
        }
        self.places.push(Place { query, block, most });
        self.values.push(clean);
    }

    /// Adds those of later blocks.
    pub(super) fn extend(&mut self, later: &Self) {
        self.places.extend_from_slice(&later.places);
        self.values.extend_from_slice(&later.values);
    }
}

/// What is known of the queries of a band and head once all its blocks are done.
#[derive(Debug)]
pub(super) struct Known {
    folds: Vec<(f32, f32)>,
    kept: Kept,
}

impl From<Gathering> for Known {
    fn from(gathered: Gathering) -> Self {
        Self {
            folds: gathered.folds,
            kept: gathered.kept,
        }
    }
}

impl Work<'_> {
    /// The softmax weights of the queries asked for, or their scores, `[Q, W, S]`: the means over a group's query heads,
    /// or with W = 1 over all query heads. `known` is `[band][head]`.
    pub(super) fn reported(&self, bands: &[Band], known: &[OnceLock<Known>]) -> Vec<f32> {
        let asked = self.pass.queries_asked();
        let kv_heads = self.store.shape().kv_heads;
        let width = self.pass.reported_heads(kv_heads);
        // Of each mean.
        let heads = kv_heads / width;
        let columns = self.pass.reported_columns();
        let mut reported = vec![0.0; asked.len() * width * columns];
        if reported.is_empty() {
            return reported;
        }
        let places: Vec<_> = (0..asked.len()).map(|item| item..item + 1).collect();
        let shape = (width * columns, columns);
        for_each_cell(&mut reported, shape, &places, |item, part, mut cell| {
            let (row, token) = self.pass.locate(asked[item]);
            let holds = |band: &Band| band.row == row && band.tokens.contains(&token);
            let Some(number) = bands.iter().position(holds) else {
                return;
            };
            let first = bands[number].tokens.start * self.group;
            let mean = Mean {
                queries: token * self.group..(token + 1) * self.group,
                first,
                many: (heads * self.group) as f32,
            };
            let known = &known[number * kv_heads..(number + 1) * kv_heads];
            for known in known[part * heads..(part + 1) * heads]
                .iter()
                .flat_map(OnceLock::get)
            {
                mean.add(known, cell.row(0));
            }
        });
        reported
    }
}

/// The mean over query heads of one token.
struct Mean {
    /// Those of one key/value head.
    queries: Range<usize>,
    /// The first query of their band.
    first: usize,
    /// All query heads that it is taken over.
    many: f32,
}

impl Mean {
    /// Adds the share of one key/value head.
    fn add(&self, known: &Known, mean: &mut [f32]) {
        for (place, values) in known.kept.places.iter().zip(&known.kept.values) {
            if !self.queries.contains(&place.query) {
                continue;
            }
            // What each block weighs is known now.
            let (most, sum) = known.folds[place.query - self.first];
            let factor = match place.most {
                Some(own) => (own - most).exp() / (sum * self.many),
                None => 1.0 / self.many,
            };
            run(AddScaled {
                into: &mut mean[place.block..],
                values,
                factor,
            });
        }
    }
}

/// Adds multiples of some values, as many as there is room for.
struct AddScaled<'a> {
    into: &'a mut [f32],
    values: &'a Scores,
    factor: f32,
}

impl Kernel for AddScaled<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let factor = v.splat(self.factor);
        let add = |lanes: &mut [f32; 16], values| {
            let sum = v.add(v.load(lanes), v.mul(v.load(values), factor));
            v.store(sum, lanes);
        };
        let values = self.values.as_chunks::<16>().0;
        let (whole, rest) = self.into.as_chunks_mut::<16>();
        for (into, values) in whole.iter_mut().zip(values) {
            add(into, values);
        }
        // A rest is added as whole lanes are, for the same bits.
        if let Some(values) = values.get(whole.len()) {
            let mut lanes = [0.0; 16];
            lanes[..rest.len()].copy_from_slice(rest);
            add(&mut lanes, values);
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }
}
