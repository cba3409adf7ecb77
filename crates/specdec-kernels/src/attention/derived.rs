//! What a pass's tensors are made of, made when it is first needed and kept for the other layers.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Int, Tensor};

#[cfg(feature = "burn-cubecl")]
use super::cube::Plan;
use super::{AttentionPass, tensor_store};

/// Tensors that describe a pass to layers without key lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Derived {
    written: OnceLock<Tensor<1, Int>>,
    indices: OnceLock<Arc<tensor_store::Indices>>,
    #[cfg(feature = "burn-cubecl")]
    plan: OnceLock<Arc<Plan>>,
}

impl AttentionPass {
    /// Cells of a tensor store that the tokens are written to, `[T]`.
    pub(super) fn written(&self) -> &Tensor<1, Int> {
        let make = || tensor_store::written(self);
        self.derived().written.get_or_init(make)
    }

    /// What the plain version needs.
    pub(super) fn indices(&self) -> &tensor_store::Indices {
        let make = || Arc::new(tensor_store::Indices::new(self, None));
        self.derived().indices.get_or_init(make)
    }

    /// What the kernels need.
    #[cfg(feature = "burn-cubecl")]
    pub(super) fn plan(&self, make: impl FnOnce() -> Plan) -> &Plan {
        self.derived().plan.get_or_init(|| Arc::new(make()))
    }
}
