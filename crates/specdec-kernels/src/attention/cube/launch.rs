//! The kernels' launches on CubeCL's tensors.

use burn::backend::{
    DType, Shape, TensorMetadata,
    cubecl::dtype_to_storage_type,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::{
    CubeBackend,
    cubecl::{
        calculate_cube_count_elemwise,
        prelude::{CubeCount, CubeDim},
    },
    ops::numeric::{empty_device_contiguous_dtype, zeros_client},
    tensor::CubeTensor,
};

use super::{
    AttendOps, Launch, Weighing, kernel,
    tile::{Tile, UNITS},
};
use crate::cube::address_type;

/// Cubes that fill a device whose number of multiprocessors is not known.
const CUBES: usize = 256;

/// Cubes for each multiprocessor, where it is known.
const CUBES_EACH: usize = 4;

/// Blocks of keys that are worth a cube.
const BLOCKS: usize = 4;

impl AttendOps for CubeBackend {
    fn attend_tiles(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        plan: IntTensor<Self>,
        launch: Launch,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [tokens, heads, dim] = q.shape().dims();
        let kv_heads = keys.shape().dims::<3>()[1];
        let client = q.client.clone();
        let parts = parts(&q, &launch, kv_heads);
        let new = |shape: [usize; 3], dtype| {
            empty_device_contiguous_dtype(
                client.clone(),
                q.device.clone(),
                Shape::new(shape),
                dtype,
            )
        };
        let out = new([tokens, heads, dim], q.dtype);
        let stats = new([tokens, heads, 2], DType::F32);
        let (made, made_stats) = if parts == 1 {
            (out.clone(), stats.clone())
        } else {
            (
                new([parts * tokens, heads, dim], DType::F32),
                new([parts * tokens, heads, 2], DType::F32),
            )
        };
        let address = address_type(&[&q, &keys, &values, &made]);
        let dtypes = [q.dtype, keys.dtype, made.dtype].map(dtype_to_storage_type);
        kernel::attend::launch(
            &client,
            CubeCount::Static(launch.tiles as u32, kv_heads as u32, parts as u32),
            CubeDim::new_1d(UNITS as u32),
            address,
            q.into_tensor_arg(),
            keys.into_tensor_arg(),
            values.into_tensor_arg(),
            plan.into_tensor_arg(),
            made.clone().into_tensor_arg(),
            made_stats.clone().into_tensor_arg(),
            launch.scale,
            launch.tile,
            parts == 1,
            dtypes,
        );
        if parts > 1 {
            let numbers = tokens * heads * dim;
            let units = CubeDim::new(&client, numbers);
            let address = address_type(&[&made, &out]);
            let dtype = dtype_to_storage_type(out.dtype);
            kernel::join::launch(
                &client,
                calculate_cube_count_elemwise(&client, numbers, units),
                units,
                address,
                made.into_tensor_arg(),
                made_stats.into_tensor_arg(),
                out.clone().into_tensor_arg(),
                stats.clone().into_tensor_arg(),
                dtype,
            );
        }
        (out, stats)
    }

    fn weigh_queries(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        plan: IntTensor<Self>,
        stats: FloatTensor<Self>,
        weighing: Weighing,
    ) -> FloatTensor<Self> {
        let kv_heads = keys.shape().dims::<3>()[1];
        let client = q.client.clone();
        let shape = Shape::new([weighing.queries, kv_heads, weighing.columns]);
        let weights = zeros_client(client.clone(), q.device.clone(), shape, DType::F32);
        let blocks = weighing.span.div_ceil(weighing.tile.keys);
        let address = address_type(&[&q, &keys, &weights]);
        let dtypes = [q.dtype, keys.dtype].map(dtype_to_storage_type);
        kernel::weigh::launch(
            &client,
            CubeCount::Static(blocks as u32, kv_heads as u32, weighing.queries as u32),
            CubeDim::new_1d(UNITS as u32),
            address,
            q.into_tensor_arg(),
            keys.into_tensor_arg(),
            plan.into_tensor_arg(),
            stats.into_tensor_arg(),
            weights.clone().into_tensor_arg(),
            weighing.scale,
            weighing.first,
            weighing.tile,
            dtypes,
        );
        weights
    }
}

/// In how many parts the keys are gone through: few queries and many keys would leave most of a device idle.
fn parts(q: &CubeTensor, launch: &Launch, kv_heads: usize) -> usize {
    let hardware = &q.client.properties().hardware;
    let wanted = hardware
        .num_streaming_multiprocessors
        .map_or(CUBES, |count| count as usize * CUBES_EACH);
    let Tile { keys, .. } = launch.tile;
    let most = launch.span.div_ceil(keys * BLOCKS);
    wanted
        .div_ceil(launch.tiles * kv_heads)
        .min(most)
        .clamp(1, hardware.max_cube_count.2 as usize)
}
