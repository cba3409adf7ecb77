//! From Flex tensors to the CPU's store and back.

use core::ops::Range;

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{
    Attended, AttentionPass,
    host::{self, Inputs},
    host_store::HostStore,
};
use crate::flex::with_values;

pub(super) fn attend(
    store: &mut HostStore,
    layer: usize,
    [q, k, v]: [Tensor<3>; 3],
    pass: &AttentionPass,
) -> Attended {
    let dims = q.dims();
    let (dtype, device) = (q.dtype(), q.device());
    if pass.writes() {
        let width = k.dims()[1] * k.dims()[2];
        with_values(k, |k| {
            with_values(v, |v| {
                for (number, row) in pass.rows().iter().enumerate() {
                    let own = pass.offset(number) * width..(pass.offset(number) + row.len) * width;
                    let start = pass.padding(number) + row.start;
                    store.write(layer, &row.table, start, (&k[own.clone()], &v[own]));
                }
            });
        });
    }
    let (out, reported) = with_values(q, |q| {
        host::attend(
            store,
            pass,
            Inputs {
                layer,
                q,
                heads: dims[1],
            },
        )
    });
    let asked = pass.queries_asked().len();
    Attended {
        out: Tensor::<3>::from_data(TensorData::new(out, dims), (&device, DType::F32)).cast(dtype),
        weights: (asked > 0).then(|| {
            let heads = pass.reported_heads(store.shape().kv_heads);
            let dims = [asked, heads, pass.reported_columns()];
            Tensor::from_data(TensorData::new(reported, dims), (&device, DType::F32))
        }),
    }
}

pub(super) fn read(
    store: &HostStore,
    layer: usize,
    (table, range): (&[u32], Range<usize>),
    device: &Device,
) -> (Tensor<3>, Tensor<3>) {
    let dims = [range.len(), store.shape().kv_heads, store.shape().head_dim];
    let (k, v) = store.read(layer, table, range);
    let wrap = |values| Tensor::from_data(TensorData::new(values, dims), (device, DType::F32));
    (wrap(k), wrap(v))
}

pub(super) fn write(
    store: &mut HostStore,
    layer: usize,
    (table, start): (&[u32], usize),
    [k, v]: [Tensor<3>; 2],
) {
    with_values(k, |k| {
        with_values(v, |v| store.write(layer, table, start, (k, v)))
    });
}
