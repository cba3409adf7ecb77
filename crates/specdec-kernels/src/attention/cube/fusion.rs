use burn::backend::{
    DType, Shape,
    tensor::{FloatTensor, IntTensor},
};
use burn_fusion::{Fusion, FusionBackend};

use super::{AttendOps, Launch, Weighing};
use crate::fused::queue;

impl<B: FusionBackend + AttendOps> AttendOps for Fusion<B> {
    fn attend_tiles(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        plan: IntTensor<Self>,
        launch: Launch,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let client = q.client.clone();
        let mut stats = q.shape.clone();
        stats[2] = 2;
        let outputs = [(q.shape.clone(), q.dtype), (stats, DType::F32)];
        let inputs = [q, keys, values, plan].map(|tensor| tensor.into_ir());
        let [out, stats] = queue::<B, 2>(
            &client,
            ("specdec::attend_tiles", &inputs),
            outputs,
            move |tensors, handles| {
                let ([q, keys, values, plan], [out, stats]) = tensors.as_fixed();
                let (made_out, made_stats) = B::attend_tiles(
                    handles.get_float_tensor::<B>(q),
                    handles.get_float_tensor::<B>(keys),
                    handles.get_float_tensor::<B>(values),
                    handles.get_int_tensor::<B>(plan),
                    launch,
                );
                handles.register_float_tensor::<B>(&out.id, made_out);
                handles.register_float_tensor::<B>(&stats.id, made_stats);
            },
        );
        (out, stats)
    }

    fn weigh_queries(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        plan: IntTensor<Self>,
        stats: FloatTensor<Self>,
        weighing: Weighing,
    ) -> FloatTensor<Self> {
        let client = q.client.clone();
        let shape = Shape::new([weighing.queries, keys.shape[1], weighing.columns]);
        let inputs = [q, keys, plan, stats].map(|tensor| tensor.into_ir());
        let [weights] = queue::<B, 1>(
            &client,
            ("specdec::weigh_queries", &inputs),
            [(shape, DType::F32)],
            move |tensors, handles| {
                let ([q, keys, plan, stats], [weights]) = tensors.as_fixed();
                let made = B::weigh_queries(
                    handles.get_float_tensor::<B>(q),
                    handles.get_float_tensor::<B>(keys),
                    handles.get_int_tensor::<B>(plan),
                    handles.get_float_tensor::<B>(stats),
                    weighing,
                );
                handles.register_float_tensor::<B>(&weights.id, made);
            },
        );
        weights
    }
}
