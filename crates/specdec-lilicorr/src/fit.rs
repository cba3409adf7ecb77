//! Whether a network was made for a target.

use crate::draft_model::DraftModel;
use crate::error::{DraftModelError, Result};
use specdec_core::ModelSpec;

/// Whether the network fits the target; the reason why not.
pub(crate) fn check(model: &DraftModel, target: &ModelSpec) -> Result<()> {
    let c = model.config();
    for (what, draft, target) in [
        ("hidden width", c.hidden, target.hidden),
        ("number of target layers", c.target_layers, target.layers),
    ] {
        if draft != target {
            let (draft, target) = (draft.to_string(), target.to_string());
            return Err(DraftModelError::Target {
                what,
                draft,
                target,
            });
        }
    }
    // Tables may be padded, and a tokenizer may know fewer tokens than either.
    if c.vocab < target.vocab {
        return Err(DraftModelError::Target {
            what: "vocabulary",
            draft: c.vocab.to_string(),
            target: target.vocab.to_string(),
        });
    }
    let (draft, target) = (model.device(), &target.device);
    if draft != *target {
        return Err(DraftModelError::Target {
            what: "device",
            draft: format!("{draft:?}"),
            target: format!("{target:?}"),
        });
    }
    Ok(())
}
