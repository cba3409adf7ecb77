//! What the kernels read of a plan, and the keys that it leads to, staged in shared memory.

use burn_cubecl::cubecl::{self, prelude::*};

use super::{
    plan::RECORD,
    tile::{Tile, UNITS},
};

/// A tile of queries, the row it belongs to, and the keys a cube goes through for it.
#[derive(CubeType)]
pub(super) struct Record {
    pub(super) kv_head: usize,
    /// Block index of the row's first token.
    pub(super) block: usize,
    /// The first query of the tile, in queries of the row: token after token, head after head.
    pub(super) first: usize,
    /// Queries of the tile.
    pub(super) count: usize,
    /// Position of the row's first token.
    pub(super) start: usize,
    /// Where the row's chunk table is.
    pub(super) table: usize,
    /// Places of the row's chunks before its column 0.
    pub(super) pad: usize,
    /// Where the row's key list is.
    pub(super) list: usize,
    /// Columns of the key list.
    pub(super) listed: usize,
    /// A column beyond the list, less its ordinal.
    pub(super) shift: usize,
    /// Columns of a chunk.
    pub(super) chunk: usize,
    /// Columns that a query sees, its own included.
    pub(super) window: usize,
    /// Ordinals of the keys.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// A block of keys in shared memory.
#[derive(CubeType)]
pub(super) struct Block {
    pub(super) columns: Shared<[u32]>,
    pub(super) cells: Shared<[u32]>,
    /// Keys, one after the other.
    pub(super) keys: Shared<[f32]>,
}

#[cube]
fn number(plan: &Tensor<i32>, place: usize) -> usize {
    usize::cast_from(plan[place])
}

/// The record `index`, with all its keys.
#[cube]
pub(super) fn record(plan: &Tensor<i32>, index: usize, kv_head: usize) -> Record {
    let at = index * RECORD;
    Record {
        kv_head,
        block: number(plan, at),
        first: number(plan, at + 1),
        count: number(plan, at + 2),
        start: number(plan, at + 3),
        table: number(plan, at + 4),
        pad: number(plan, at + 5),
        list: number(plan, at + 6),
        listed: number(plan, at + 7),
        shift: number(plan, at + 8),
        chunk: number(plan, at + 9),
        window: number(plan, at + 10),
        from: number(plan, at + 11),
        to: number(plan, at + 12),
    }
}

/// Block index and query head of a query of the row.
#[cube]
pub(super) fn token_and_head(
    row: &Record,
    query: usize,
    #[comptime] group: usize,
) -> (usize, usize) {
    (
        row.block + query / group,
        row.kv_head * group + query % group,
    )
}

#[cube]
pub(super) fn sees(row: &Record, query: usize, column: usize, #[comptime] group: usize) -> bool {
    let position = row.start + query / group;
    column <= position && column + row.window > position
}

#[cube]
pub(super) fn new_block(#[comptime] tile: Tile) -> Block {
    Block {
        columns: Shared::new_slice(tile.keys),
        cells: Shared::new_slice(tile.keys),
        keys: Shared::new_slice(comptime!(tile.keys * tile.key_step())),
    }
}

/// Fills `block` with the row's keys from ordinal `from` on. Call it behind a barrier; it ends with one.
#[cube]
pub(super) fn stage<S: Float>(
    block: &mut Block,
    keys: &Tensor<S>,
    plan: &Tensor<i32>,
    row: &Record,
    from: usize,
    #[comptime] tile: Tile,
) {
    let unit = UNIT_POS as usize;
    if unit < tile.keys {
        let ordinal = from + unit;
        // A column that no query sees.
        let mut column = u32::MAX.runtime();
        let mut cell = 0u32;
        if ordinal < row.to {
            let mut seen = ordinal + row.shift;
            if ordinal < row.listed {
                seen = number(plan, row.list + ordinal);
            }
            let place = seen + row.pad;
            let chunk = number(plan, row.table + place / row.chunk);
            column = seen as u32;
            cell = (chunk * row.chunk + place % row.chunk) as u32;
        }
        block.columns[unit] = column;
        block.cells[unit] = cell;
    }
    sync_cube();
    let mut at = unit;
    while at < comptime!(tile.keys * tile.dim) {
        let key = at / tile.dim;
        let dim = at % tile.dim;
        let mut value = 0.0f32;
        if from + key < row.to {
            let cell = block.cells[key] as usize;
            value = f32::cast_from(
                keys[cell * keys.stride(0) + row.kv_head * keys.stride(1) + dim * keys.stride(2)],
            );
        }
        block.keys[key * comptime!(tile.key_step()) + dim] = value;
        at += UNITS;
    }
    sync_cube();
}
