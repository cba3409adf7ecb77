//! Ragged attention over the CPU's store.
//!
//! The unit of work is a band of a row's queries with one key/value head: all query heads of its group, so that each
//! key is loaded once for them. A band goes through its blocks of columns in order; where there are fewer bands than
//! threads, the blocks of a band are computed side by side and then joined in the same order.

use core::ops::Range;
use std::sync::OnceLock;

use super::{
    AttentionPass,
    band::{Band, BandWork, join_all},
    block::{BLOCK, Gathering},
    host_store::HostStore,
    report::Known,
};
use crate::{
    threads::{for_each, threads},
    vector::for_each_cell,
};

/// Tokens of a band.
const BAND: usize = 16;

/// Blocks that one thread takes at a time where a band is split.
const SPAN: usize = 4;

/// The queries of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) layer: usize,
    /// `[T, H, D]`.
    pub(super) q: &'a [f32],
    pub(super) heads: usize,
}

/// A pass at work on one layer.
pub(super) struct Work<'a> {
    pub(super) store: &'a HostStore,
    pub(super) pass: &'a AttentionPass,
    pub(super) inputs: Inputs<'a>,
    /// Earlier columns seen, by row: one list of runs for all heads, or one for each.
    earlier: Vec<Vec<Vec<Range<usize>>>>,
    /// Query heads of each key/value head.
    pub(super) group: usize,
    pub(super) scale: f32,
}

/// Returns `[T, H, D]`, and the weights or scores asked for, `[Q, W, S]`.
pub(super) fn attend(
    store: &HostStore,
    pass: &AttentionPass,
    inputs: Inputs<'_>,
) -> (Vec<f32>, Vec<f32>) {
    let shape = store.shape();
    let rows = pass.rows();
    let earlier = (0..rows.len()).map(|row| pass.earlier(inputs.layer, row));
    let work = Work {
        store,
        pass,
        inputs,
        earlier: earlier.collect(),
        group: inputs.heads / shape.kv_heads,
        scale: pass.scale_for(shape.head_dim),
    };
    let mut bands = Vec::new();
    for (row, description) in rows.iter().enumerate() {
        for start in (0..description.len).step_by(BAND) {
            let tokens = start..description.len.min(start + BAND);
            bands.push(Band { row, tokens });
        }
    }
    let places = |band: &Band| {
        let offset = pass.offset(band.row);
        offset + band.tokens.start..offset + band.tokens.end
    };
    let places: Vec<_> = bands.iter().map(places).collect();

    let split = work.split(&bands);
    // Of each band and head.
    let known: Vec<OnceLock<Known>> = (0..bands.len() * shape.kv_heads)
        .map(|_| OnceLock::new())
        .collect();
    let mut out = vec![0.0; inputs.q.len()];
    let row_len = inputs.heads * shape.head_dim;
    let width = work.group * shape.head_dim;
    for_each_cell(
        &mut out,
        (row_len, width),
        &places,
        |number, head, mut cell| {
            let gathered = match &split {
                Some(parts) => work.join(&parts[number * shape.kv_heads + head]),
                None => {
                    let band = BandWork::new(&work, &bands[number], head);
                    let mut gathered = band.nothing();
                    let mut scratch = band.scratch();
                    for block in work.blocks(&bands[number]) {
                        band.block(block, &mut gathered, &mut scratch);
                    }
                    gathered
                }
            };
            let values = gathered.out.chunks_exact(store.value_lines());
            for (query, (&(_, sum), lines)) in gathered.folds.iter().zip(values).enumerate() {
                let (token, member) = (query / work.group, query % work.group);
                let out = &mut cell.row(token)[member * shape.head_dim..][..shape.head_dim];
                let values = lines.iter().flat_map(|line| line.0);
                for (out, value) in out.iter_mut().zip(values) {
                    *out = value / sum;
                }
            }
            // Each cell is computed once, so its place is free.
            let _ = known[number * shape.kv_heads + head].set(gathered.into());
        },
    );
    (out, work.reported(&bands, &known))
}

impl Work<'_> {
    /// The runs of earlier columns that a row's queries see with a head.
    pub(super) fn earlier(&self, row: usize, head: usize) -> &[Range<usize>] {
        match &self.earlier[row][..] {
            [all] => all,
            heads => &heads[head],
        }
    }

    /// The blocks that hold columns a band sees.
    fn blocks(&self, band: &Band) -> Range<usize> {
        let first = self.pass.first_column(band.row, band.tokens.start);
        let end = self.pass.rows()[band.row].start + band.tokens.end;
        first / BLOCK..end.div_ceil(BLOCK)
    }

    /// Where there are too few bands for the threads: the blocks of every band and head, a few at a time,
    /// `[band][head]`, blocks in order.
    fn split(&self, bands: &[Band]) -> Option<Vec<Vec<Gathering>>> {
        let kv_heads = self.store.shape().kv_heads;
        let threads = threads();
        if threads < 2 || bands.len() * kv_heads >= 4 * threads {
            return None;
        }
        let mut items = Vec::new();
        for band in bands {
            for head in 0..kv_heads {
                let blocks = self.blocks(band);
                let starts = blocks.clone().step_by(SPAN);
                items.extend(starts.map(|from| (band, head, from..blocks.end.min(from + SPAN))));
            }
        }
        if items.len() < 2 * bands.len() * kv_heads {
            return None;
        }
        let cells: Vec<_> = items.iter().map(|_| OnceLock::new()).collect();
        for_each(items.len(), |item| {
            let (band, head, blocks) = &items[item];
            let band = BandWork::new(self, band, *head);
            let mut scratch = band.scratch();
            let parts = blocks.clone().map(|block| {
                let mut gathered = band.nothing();
                band.block(block, &mut gathered, &mut scratch);
                gathered
            });
            // Each item is computed once, so the cell is free.
            let _ = cells[item].set(parts.collect::<Vec<_>>());
        });
        let mut cells = cells
            .into_iter()
            .flat_map(|cell| cell.into_inner().unwrap_or_default());
        let mut parts = Vec::with_capacity(bands.len() * kv_heads);
        for band in bands {
            let blocks = self.blocks(band).len();
            parts.extend((0..kv_heads).map(|_| cells.by_ref().take(blocks).collect()));
        }
        Some(parts)
    }

    /// Joins blocks in order, as a band that goes through them does.
    fn join(&self, parts: &[Gathering]) -> Gathering {
        let lines = self.store.value_lines();
        let queries = parts.first().map_or(0, |part| part.folds.len());
        let mut joined = Gathering::new(queries, lines);
        for part in parts {
            let later = (&part.folds[..], &part.out[..]);
            join_all(&mut joined.folds, &mut joined.out, later, lines);
            joined.kept.extend(&part.kept);
        }
        joined
    }

    /// Tokens of a band whose attention is asked for.
    pub(super) fn asked_of(&self, band: &Band) -> Vec<usize> {
        let asked = self.pass.queries_asked().iter();
        let places = asked.map(|&query| self.pass.locate(query));
        places
            .filter(|(row, token)| *row == band.row && band.tokens.contains(token))
            .map(|(_, token)| token)
            .collect()
    }
}
