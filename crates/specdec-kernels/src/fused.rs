//! Our kernels behind Burn's fusion, which queues operations: ours are queued as they are, and fused with nothing.

use core::fmt;

use burn::backend::{DType, Shape};
use burn_fusion::{
    Client, ExecutionError, FusionBackend, FusionRuntime, FusionTensor,
    custom::{
        CustomOpIr, HandleContainer, Operation, OperationIr, OperationOutput, StreamId, TensorIr,
    },
};

/// What a backend's queued tensors are kept in.
pub(crate) type Handles<B> =
    HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

/// An operation that waits in the queue: what it reads and writes, and what it does.
struct Queued<F> {
    tensors: CustomOpIr,
    run: F,
}

impl<F> fmt::Debug for Queued<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tensors.id)
    }
}

impl<R, F> Operation<R> for Queued<F>
where
    R: FusionRuntime,
    F: Fn(&CustomOpIr, &mut HandleContainer<R::FusionHandle>) + Send + Sync,
{
    fn execute(
        &self,
        handles: &mut HandleContainer<R::FusionHandle>,
    ) -> Result<(), ExecutionError> {
        (self.run)(&self.tensors, handles);
        Ok(())
    }
}

/// Queues an operation that takes `inputs` and gives tensors of the shapes and types `outputs`. `run` finds the inputs
/// among the handles and puts the outputs there.
pub(crate) fn queue<B: FusionBackend, const N: usize>(
    client: &Client<B::FusionRuntime>,
    (name, inputs): (&'static str, &[TensorIr]),
    outputs: [(Shape, DType); N],
    run: impl Fn(&CustomOpIr, &mut Handles<B>) + Send + Sync + 'static,
) -> [FusionTensor<B::FusionRuntime>; N] {
    let outputs =
        outputs.map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype));
    let tensors = CustomOpIr::new(name, inputs, &outputs);
    let queued = Queued {
        tensors: tensors.clone(),
        run,
    };
    client
        .register(StreamId::current(), OperationIr::Custom(tensors), queued)
        .outputs()
}
