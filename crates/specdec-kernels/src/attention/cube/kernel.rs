//! The kernels, in CubeCL's language: compiled for the device they run on.
//!
//! A cube has [`UNITS`] units and one tile of queries (`tile.rs`). For each block of keys it stages the keys in shared
//! memory, scores every query with every key, and takes the softmax along as it goes (the greatest score so far, the
//! sum of weights, the weighted sum of values). Sums are f32 whatever the tensors hold. Shared memory and barriers
//! suffice: nothing depends on the width of a warp.

use burn_cubecl::cubecl::{self, prelude::*};

use super::{
    staged::{new_block, record, sees, stage, token_and_head},
    tile::{Tile, UNITS},
};

/// Stands for the greatest of no scores. An infinity cannot be written in WGSL.
const LOWEST: f32 = -3.0e38;

/// Attention of one tile of queries with one key/value head: `q [T, H, D]`, `keys` and `values [cells, Hkv, D]`.
///
/// Cubes are (tile, key/value head, part of the keys). With one part, `out [T, H, D]` are the attended values; with P
/// parts, `out [P * T, H, D]` are sums of weighted values. `stats [P * T, H, 2]` are the greatest score and the sum of
/// weights relative to it.
#[cube(launch, address_type = "dynamic")]
pub(super) fn attend<Q: Float, S: Float, O: Float>(
    q: &Tensor<Q>,
    keys: &Tensor<S>,
    values: &Tensor<S>,
    plan: &Tensor<i32>,
    out: &mut Tensor<O>,
    stats: &mut Tensor<f32>,
    scale: f32,
    #[comptime] tile: Tile,
    #[comptime] whole: bool,
    #[define(Q, S, O)] _dtypes: [ElemType; 3],
) {
    let mut row = record(plan, CUBE_POS_X as usize, CUBE_POS_Y as usize);
    let unit = UNIT_POS as usize;

    let blocks = (row.to - row.from).div_ceil(tile.keys);
    let keys_of_part = blocks.div_ceil(CUBE_COUNT_Z as usize) * tile.keys;
    row.from += CUBE_POS_Z as usize * keys_of_part;
    row.to = min(row.from + keys_of_part, row.to);

    let mut queries = Shared::<[f32]>::new_slice(comptime!(tile.queries * tile.dim));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(tile.places() * tile.score_step()));
    let mut tops = Shared::<[f32]>::new_slice(comptime!(tile.places()));
    let mut masses = Shared::<[f32]>::new_slice(comptime!(tile.places()));
    let mut factors = Shared::<[f32]>::new_slice(comptime!(tile.places()));
    let mut block = new_block(tile);

    let mut at = unit;
    while at < comptime!(tile.queries * tile.dim) {
        let query = at / tile.dim;
        let mut value = 0.0f32;
        if query < row.count {
            let (token, head) = token_and_head(&row, row.first + query, tile.group);
            let dim = at % tile.dim;
            value = f32::cast_from(q[token * q.stride(0) + head * q.stride(1) + dim * q.stride(2)])
                * scale;
        }
        queries[at] = value;
        at += UNITS;
    }
    if unit < comptime!(tile.places()) {
        tops[unit] = LOWEST.runtime();
        factors[unit] = 0.0f32;
    }

    // As a scorer, a unit has one key of each block and some of the queries.
    let scored = comptime!(tile.scored());
    let own_key = unit % tile.keys;
    let own_queries = unit / tile.keys * scored;
    let mut mass = Array::<f32>::new(scored);
    #[unroll]
    for r in 0..scored {
        mass[r] = 0.0f32;
    }
    // As a summer, it has one or a few dimensions of the values and some of the queries.
    let lanes = comptime!(tile.lanes());
    let summed = comptime!(tile.summed());
    let dims = comptime!(tile.dims_of_unit());
    let lane = unit % lanes;
    let lane_group = unit / lanes;
    let mut sums = Array::<f32>::new(comptime!(summed * dims));
    #[unroll]
    for i in 0..comptime!(summed * dims) {
        sums[i] = 0.0f32;
    }

    let mut at = row.from;
    while at < row.to {
        sync_cube();
        stage::<S>(&mut block, keys, plan, &row, at, tile);

        let column = block.columns[own_key] as usize;
        let mut dots = Array::<f32>::new(scored);
        #[unroll]
        for r in 0..scored {
            dots[r] = 0.0f32;
        }
        for dim in 0..tile.dim {
            let key = block.keys[own_key * comptime!(tile.key_step()) + dim];
            #[unroll]
            for r in 0..scored {
                dots[r] += queries[(own_queries + r) * tile.dim + dim] * key;
            }
        }
        #[unroll]
        for r in 0..scored {
            let query = own_queries + r;
            let mut score = LOWEST.runtime();
            if sees(&row, row.first + query, column, tile.group) {
                score = dots[r];
            }
            scores[query * comptime!(tile.score_step()) + own_key] = score;
        }
        sync_cube();

        if unit < tile.queries {
            let before = tops[unit];
            let mut top = before;
            for key in 0..tile.keys {
                top = max(top, scores[unit * comptime!(tile.score_step()) + key]);
            }
            tops[unit] = top;
            factors[unit] = (before - top).exp();
        }
        sync_cube();

        #[unroll]
        for r in 0..scored {
            let query = own_queries + r;
            let place = query * comptime!(tile.score_step()) + own_key;
            let mut weight = 0.0f32;
            if sees(&row, row.first + query, column, tile.group) {
                weight = (scores[place] - tops[query]).exp();
            }
            scores[place] = weight;
            mass[r] = mass[r] * factors[query] + weight;
        }
        sync_cube();

        if lane_group < comptime!(tile.lane_groups()) {
            #[unroll]
            for i in 0..summed {
                let factor = factors[lane_group * summed + i];
                #[unroll]
                for d in 0..dims {
                    sums[comptime!(i * dims + d)] *= factor;
                }
            }
            let filled = min(tile.keys, row.to - at);
            for key in 0..filled {
                let cell = block.cells[key] as usize;
                let base = cell * values.stride(0) + row.kv_head * values.stride(1);
                #[unroll]
                for d in 0..dims {
                    let dim = min(lane + comptime!(d * lanes), comptime!(tile.dim - 1));
                    let value = f32::cast_from(values[base + dim * values.stride(2)]);
                    #[unroll]
                    for i in 0..summed {
                        let place = (lane_group * summed + i) * comptime!(tile.score_step()) + key;
                        sums[comptime!(i * dims + d)] += scores[place] * value;
                    }
                }
            }
        }
        at += tile.keys;
    }

    sync_cube();
    #[unroll]
    for r in 0..scored {
        scores[(own_queries + r) * comptime!(tile.score_step()) + own_key] = mass[r];
    }
    sync_cube();
    let first_row = CUBE_POS_Z as usize * q.shape(0);
    if unit < tile.queries {
        let mut sum = 0.0f32;
        for key in 0..tile.keys {
            sum += scores[unit * comptime!(tile.score_step()) + key];
        }
        masses[unit] = sum;
        if unit < row.count {
            let (token, head) = token_and_head(&row, row.first + unit, tile.group);
            let at = (first_row + token) * stats.stride(0) + head * stats.stride(1);
            let step = stats.stride(2);
            stats[at] = tops[unit];
            stats[at + step] = sum;
        }
    }
    sync_cube();

    let out_step = out.stride(2);
    if lane_group < comptime!(tile.lane_groups()) {
        #[unroll]
        for i in 0..summed {
            let query = lane_group * summed + i;
            if query < row.count {
                let (token, head) = token_and_head(&row, row.first + query, tile.group);
                let base = (first_row + token) * out.stride(0) + head * out.stride(1);
                #[unroll]
                for d in 0..dims {
                    let dim = lane + comptime!(d * lanes);
                    if dim < tile.dim {
                        let mut value = sums[comptime!(i * dims + d)];
                        if comptime!(whole) {
                            value /= masses[query];
                        }
                        out[base + dim * out_step] = O::cast_from(value);
                    }
                }
            }
        }
    }
}

/// Joins what [`attend`] makes of P parts of the keys: one unit for each number of `out [T, H, D]`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn join<O: Float>(
    parts: &Tensor<f32>,
    part_stats: &Tensor<f32>,
    out: &mut Tensor<O>,
    stats: &mut Tensor<f32>,
    #[define(O)] _dtype: ElemType,
) {
    let tokens = out.shape(0);
    let heads = out.shape(1);
    let dims = out.shape(2);
    if ABSOLUTE_POS >= tokens * heads * dims {
        terminate!();
    }
    let dim = ABSOLUTE_POS % dims;
    let head = ABSOLUTE_POS / dims % heads;
    let token = ABSOLUTE_POS / dims / heads;
    let count = parts.shape(0) / tokens;

    let mut top = LOWEST.runtime();
    for part in 0..count {
        let row = part * tokens + token;
        top = max(
            top,
            part_stats[row * part_stats.stride(0) + head * part_stats.stride(1)],
        );
    }
    let mut mass = 0.0f32;
    let mut sum = 0.0f32;
    for part in 0..count {
        let row = part * tokens + token;
        let at = row * part_stats.stride(0) + head * part_stats.stride(1);
        let factor = (part_stats[at] - top).exp();
        mass += part_stats[at + part_stats.stride(2)] * factor;
        sum +=
            parts[row * parts.stride(0) + head * parts.stride(1) + dim * parts.stride(2)] * factor;
    }
    let place = token * out.stride(0) + head * out.stride(1) + dim * out.stride(2);
    out[place] = O::cast_from(sum / mass);
    if dim == 0 {
        let at = token * stats.stride(0) + head * stats.stride(1);
        let step = stats.stride(2);
        stats[at] = top;
        stats[at + step] = mass;
    }
}

/// The softmax weights of some queries by column, means over the query heads of each group: `weights [Q, Hkv, S]`,
/// zero before. Cubes are (block of keys, key/value head, query); the records of the queries begin at `first`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn weigh<Q: Float, S: Float>(
    q: &Tensor<Q>,
    keys: &Tensor<S>,
    plan: &Tensor<i32>,
    stats: &Tensor<f32>,
    weights: &mut Tensor<f32>,
    scale: f32,
    first: usize,
    #[comptime] tile: Tile,
    #[define(Q, S)] _dtypes: [ElemType; 2],
) {
    let asked = CUBE_POS_Z as usize;
    let row = record(plan, first + asked, CUBE_POS_Y as usize);
    let unit = UNIT_POS as usize;
    let from = row.from + CUBE_POS_X as usize * tile.keys;
    if from >= row.to {
        terminate!();
    }
    let mut shares = Shared::<[f32]>::new_slice(UNITS);
    let mut block = new_block(tile);
    stage::<S>(&mut block, keys, plan, &row, from, tile);

    // A unit has one key and every so manieth head of the group.
    let own_key = unit % tile.keys;
    let mut share = 0.0f32;
    let mut member = unit / tile.keys;
    while member < tile.group {
        let (token, head) = token_and_head(&row, row.first + member, tile.group);
        let base = token * q.stride(0) + head * q.stride(1);
        let mut dot = 0.0f32;
        for dim in 0..tile.dim {
            let query = f32::cast_from(q[base + dim * q.stride(2)]) * scale;
            dot += query * block.keys[own_key * comptime!(tile.key_step()) + dim];
        }
        let at = token * stats.stride(0) + head * stats.stride(1);
        share += (dot - stats[at]).exp() / stats[at + stats.stride(2)];
        member += comptime!(UNITS / tile.keys);
    }
    shares[unit] = share;
    sync_cube();
    if unit < tile.keys {
        let column = block.columns[unit] as usize;
        if sees(&row, row.first, column, tile.group) {
            let mut sum = 0.0f32;
            for lane in 0..comptime!(UNITS / tile.keys) {
                sum += shares[lane * tile.keys + unit];
            }
            let place = asked * weights.stride(0)
                + row.kv_head * weights.stride(1)
                + column * weights.stride(2);
            weights[place] = sum / f32::cast_from(tile.group as u32);
        }
    }
}
