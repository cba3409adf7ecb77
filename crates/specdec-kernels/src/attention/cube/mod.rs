//! Attention on CubeCL's backends (CUDA, wgpu, Vulkan, Metal) without copies of the keys and values: a kernel that
//! finds them in the store's tensors by the rows' chunk tables and key lists.

#[cfg(feature = "fusion")]
mod fusion;
mod kernel;
mod launch;
mod plan;
mod staged;
mod tile;

use burn::{
    backend::{
        Backend, DispatchDevice,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Tensor},
};
pub(super) use plan::Plan;
use tile::Tile;

use super::{Attended, AttentionPass};
use crate::cube::{Ours, float, int, is_ours, tensor};

/// What a launch needs to know beside its tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) tile: Tile,
    pub(crate) scale: f32,
    pub(crate) tiles: usize,
    /// Keys of the tile that has the most.
    pub(crate) span: usize,
}

/// What a launch that reports weights needs to know beside its tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighing {
    pub(crate) tile: Tile,
    pub(crate) scale: f32,
    /// The record of the first query.
    pub(crate) first: usize,
    pub(crate) queries: usize,
    /// Columns of the result.
    pub(crate) columns: usize,
    /// Keys of the query that has the most.
    pub(crate) span: usize,
}

/// The kernels, on a backend's own tensors. Arguments are already checked.
pub(crate) trait AttendOps: Backend {
    /// The attended values, `[T, H, D]`, and `[T, H, 2]`: the greatest score of each query and its sum of weights.
    fn attend_tiles(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        plan: IntTensor<Self>,
        launch: Launch,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// The weights of the plan's queries by column, `[Q, Hkv, S]`.
    fn weigh_queries(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        plan: IntTensor<Self>,
        stats: FloatTensor<Self>,
        weighing: Weighing,
    ) -> FloatTensor<Self>;
}

/// The sizes of the kernel's work, or `None` where it cannot do this work and the plain version has to: tensors of
/// other backends, autodiff, other types than f32, f16 and bf16, devices and grids too small. Key lists for each head
/// and reported scores are the plain version's too.
fn tile_for(q: &Tensor<3>, [keys, values]: &[Tensor<3>; 2], pass: &AttentionPass) -> Option<Tile> {
    if !is_ours() {
        return None;
    }
    let known = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if !known(q.dtype()) || !known(keys.dtype()) || keys.dtype() != values.dtype() {
        return None;
    }
    let hardware = {
        let of = |tensor: &Tensor<3>| match tensor.device().as_dispatch() {
            DispatchDevice::Cube(device) => Some(device.clone()),
            #[allow(unreachable_patterns, reason = "the only variant of some builds")]
            _ => None,
        };
        let device = of(q)?;
        (of(keys)?, of(values)?);
        device.client().properties().hardware.clone()
    };
    let ([_, heads, dim], [cells, kv_heads, _]) = (q.dims(), keys.dims());
    let group = heads / kv_heads;
    let longest = pass.rows().iter().map(|row| row.len).max().unwrap_or(0);
    let tile = Tile::new(dim, group, longest, &hardware)?;
    let tiles = pass
        .rows()
        .iter()
        .map(|row| (row.len * group).div_ceil(tile.queries));
    let fits = |count: usize, most: u32| count <= most as usize;
    let most = hardware.max_cube_count;
    let fit = fits(tiles.sum(), most.0)
        && fits(kv_heads, most.1)
        && fits(pass.queries_asked().len(), most.2)
        // Numbers of a plan are i32.
        && i32::try_from(cells).is_ok();
    fit.then_some(tile)
}

/// Attention of `layer` over a store's tensors, which hold the pass's keys and values already, or `None` where the
/// plain version has to do it.
pub(super) fn in_place(
    layer: usize,
    q: &Tensor<3>,
    held: &[Tensor<3>; 2],
    pass: &AttentionPass,
) -> Option<Attended> {
    let scores = pass.reports_scores() && !pass.queries_asked().is_empty();
    if scores || pass.has_head_lists(layer) {
        return None;
    }
    let tile = tile_for(q, held, pass)?;
    let own;
    let plan = if pass.sparse(layer) {
        own = Plan::new(pass, Some(layer), tile);
        &own
    } else {
        let kept = pass.plan(|| Plan::new(pass, None, tile));
        if kept.tile == tile {
            kept
        } else {
            // A pass that stores of several shapes share.
            own = Plan::new(pass, None, tile);
            &own
        }
    };
    let scale = pass.scale_for(tile.dim);
    let [keys, values] = held;
    let (q, keys) = (float(q.clone())?, float(keys.clone())?);
    let numbers = int(plan.numbers.clone())?;
    let launch = Launch {
        tile,
        scale,
        tiles: plan.tiles,
        span: plan.span,
    };
    let (out, stats) = Ours::attend_tiles(
        q.clone(),
        keys.clone(),
        float(values.clone())?,
        numbers.clone(),
        launch,
    );
    let weights = (plan.asked > 0).then(|| {
        let weighing = Weighing {
            tile,
            scale,
            first: plan.tiles,
            queries: plan.asked,
            columns: pass.reported_columns(),
            span: plan.asked_span,
        };
        Ours::weigh_queries(q, keys, numbers, stats, weighing)
    });
    Some(Attended {
        out: tensor(out)?,
        weights: weights.and_then(tensor),
    })
}
