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
    ops::numeric::empty_device_contiguous_dtype,
};

use super::{
    Packing, WordOps,
    kernel::{self, OUTPUTS, UNITS},
};
use crate::cube::address_type;

/// Rows of a cube, at most.
const ROWS: usize = 8;

impl WordOps for CubeBackend {
    fn few_rows(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        packing: Packing,
    ) -> FloatTensor<Self> {
        let client = x.client.clone();
        let ([tokens, _], [outputs, _]) = (x.shape().dims(), words.shape().dims());
        let shape = Shape::new([tokens, outputs]);
        let out = empty_device_contiguous_dtype(client.clone(), x.device.clone(), shape, x.dtype);
        let rows = tokens.next_power_of_two().min(ROWS);
        let cubes = outputs.div_ceil(OUTPUTS);
        let layers = cubes.div_ceil(client.properties().hardware.max_cube_count.0 as usize);
        let count = [cubes.div_ceil(layers), tokens.div_ceil(rows), layers];
        let dtype = dtype_to_storage_type(x.dtype);
        kernel::few_rows::launch(
            &client,
            CubeCount::Static(count[0] as u32, count[1] as u32, count[2] as u32),
            CubeDim::new_1d(UNITS as u32),
            address_type(&[&x, &words, &scales, &out]),
            x.into_tensor_arg(),
            words.into_tensor_arg(),
            scales.into_tensor_arg(),
            out.clone().into_tensor_arg(),
            rows,
            packing,
            dtype,
        );
        out
    }

    fn unpack_rows(
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        ids: IntTensor<Self>,
        packing: Packing,
        dtype: DType,
    ) -> FloatTensor<Self> {
        let client = words.client.clone();
        let ([tokens], [_, width]) = (ids.shape().dims(), words.shape().dims());
        let shape = Shape::new([tokens, width * packing.per_word()]);
        let out = empty_device_contiguous_dtype(client.clone(), words.device.clone(), shape, dtype);
        let units = CubeDim::new(&client, tokens * width);
        let dtypes = [dtype, ids.dtype].map(dtype_to_storage_type);
        kernel::unpack_rows::launch(
            &client,
            calculate_cube_count_elemwise(&client, tokens * width, units),
            units,
            address_type(&[&words, &scales, &out]),
            words.into_tensor_arg(),
            scales.into_tensor_arg(),
            ids.into_tensor_arg(),
            out.clone().into_tensor_arg(),
            packing,
            dtypes,
        );
        out
    }
}
