use burn::prelude::*;
use specdec_core::{CacheError, KvSegment, ModelSpec, Result, SeqId};
use specdec_kernels::{AttentionPass, AttentionRow, SlotStore};
use std::ops::Range;

/// A pass for each window that some layer has.
pub(crate) type Passes = Vec<(Option<usize>, AttentionPass)>;

/// What a cache has to know of a model, and the checks that follow from it.
#[derive(Debug)]
pub(crate) struct ModelShape {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) windows: Vec<Option<usize>>,
    scale: Option<f32>,
}

impl ModelShape {
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        Self {
            layers: spec.layers,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            windows: (0..spec.layers).map(|l| spec.window(l)).collect(),
            scale: spec.scale,
        }
    }

    pub(crate) fn store(&self, chunk: usize, device: &Device) -> Result<SlotStore, CacheError> {
        SlotStore::new(self.layers, self.kv_heads, self.head_dim, chunk, device).map_err(kernel)
    }

    /// The widest window, when every layer has one.
    pub(crate) fn reach(&self) -> Option<usize> {
        let mut windows = self.windows.iter().copied();
        windows.try_fold(0, |most, w| w.map(|w| w.max(most)))
    }

    /// The passes over these rows, each with the places of its chunks before its position 0; what
    /// they see is left to `select`.
    pub(crate) fn passes(
        &self,
        rows: Vec<AttentionRow>,
        padding: Vec<usize>,
        store: &SlotStore,
        select: impl FnOnce(AttentionPass) -> Result<AttentionPass, CacheError>,
    ) -> Result<Passes, CacheError> {
        let mut pass = AttentionPass::padded(rows, padding, store.chunk_len(), store.device())
            .map_err(kernel)?;
        if let Some(scale) = self.scale {
            pass = pass.scale(scale);
        }
        let pass = select(pass)?;
        let mut passes = Passes::new();
        for &window in &self.windows {
            if !passes.iter().any(|(w, _)| *w == window) {
                passes.push((window, pass.clone().window(window)));
            }
        }
        Ok(passes)
    }

    /// Copies out what a row of the store holds at these columns; `from` is the position of the first.
    pub(crate) fn segment(
        &self,
        store: &SlotStore,
        table: &[u32],
        columns: Range<usize>,
        from: usize,
    ) -> Result<KvSegment, CacheError> {
        let range = from..from + columns.len();
        let none = || Tensor::zeros([0, self.kv_heads, self.head_dim], store.device());
        let layers = (0..self.layers).map(|layer| {
            if columns.is_empty() {
                return Ok((none(), none()));
            }
            store.read(layer, table, columns.clone()).map_err(kernel)
        });
        Ok(KvSegment {
            range,
            layers: layers.collect::<Result<_, CacheError>>()?,
        })
    }

    /// Whether a segment continues a sequence of this length and has the model's shape.
    pub(crate) fn check_segment(
        &self,
        seq: SeqId,
        len: usize,
        segment: &KvSegment,
    ) -> Result<(), CacheError> {
        let Range { start, end } = segment.range;
        if start != len {
            return Err(CacheError::Start {
                row: 0,
                seq,
                start,
                len,
            });
        }
        if segment.layers.len() != self.layers {
            let (layer, layers) = (segment.layers.len(), self.layers);
            return Err(CacheError::Layer { layer, layers });
        }
        let want = [end - start, self.kv_heads, self.head_dim];
        for (k, v) in &segment.layers {
            for (what, got) in [
                ("the segment's keys", k.dims()),
                ("the segment's values", v.dims()),
            ] {
                if got != want {
                    let (got, want) = (got.to_vec(), want.to_vec());
                    return Err(CacheError::Shape { what, got, want });
                }
            }
        }
        Ok(())
    }
}

/// Whether a range lies within what is held.
pub(crate) fn check_range(
    seq: SeqId,
    held: Range<usize>,
    asked: &Range<usize>,
) -> Result<(), CacheError> {
    if asked.start < held.start || asked.end > held.end || asked.start > asked.end {
        let asked = asked.clone();
        return Err(CacheError::Range { seq, held, asked });
    }
    Ok(())
}

pub(crate) fn kernel(error: specdec_kernels::KernelError) -> CacheError {
    match error {
        specdec_kernels::KernelError::Shape {
            what,
            expected,
            got,
        } => CacheError::Shape {
            what,
            got,
            want: expected,
        },
        other => CacheError::Kernel(Box::new(other)),
    }
}
