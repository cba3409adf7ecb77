use burn::backend::{
    DType, Shape,
    tensor::{FloatTensor, IntTensor},
};
use burn_fusion::{Fusion, FusionBackend};

use super::{Packing, WordOps};
use crate::fused::queue;

impl<B: FusionBackend + WordOps> WordOps for Fusion<B> {
    fn few_rows(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        packing: Packing,
    ) -> FloatTensor<Self> {
        let client = x.client.clone();
        let output = (Shape::new([x.shape[0], words.shape[0]]), x.dtype);
        let inputs = [x, words, scales].map(|tensor| tensor.into_ir());
        let [out] = queue::<B, 1>(
            &client,
            ("specdec::few_rows", &inputs),
            [output],
            move |tensors, handles| {
                let ([x, words, scales], [out]) = tensors.as_fixed();
                let made = B::few_rows(
                    handles.get_float_tensor::<B>(x),
                    handles.get_int_tensor::<B>(words),
                    handles.get_float_tensor::<B>(scales),
                    packing,
                );
                handles.register_float_tensor::<B>(&out.id, made);
            },
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
        let shape = Shape::new([ids.shape[0], words.shape[1] * packing.per_word()]);
        let inputs = [words, scales, ids].map(|tensor| tensor.into_ir());
        let [out] = queue::<B, 1>(
            &client,
            ("specdec::unpack_rows", &inputs),
            [(shape, dtype)],
            move |tensors, handles| {
                let ([words, scales, ids], [out]) = tensors.as_fixed();
                let made = B::unpack_rows(
                    handles.get_int_tensor::<B>(words),
                    handles.get_float_tensor::<B>(scales),
                    handles.get_int_tensor::<B>(ids),
                    packing,
                    dtype,
                );
                handles.register_float_tensor::<B>(&out.id, made);
            },
        );
        out
    }
}
