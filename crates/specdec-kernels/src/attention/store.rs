use core::ops::Range;

use burn::tensor::{Device, Tensor};

#[cfg(feature = "flex")]
use super::host_store::HostStore;
use super::{AttentionPass, pass::check_table, tensor_store::TensorStore};
use crate::KernelError;

/// What a pass of attention gives.
#[derive(Debug, Clone)]
pub struct Attended {
    /// The attended values, `[T, H, D]`.
    pub out: Tensor<3>,
    /// The softmax weights asked for by [`AttentionPass::weights_of`], or the scores by
    /// [`AttentionPass::scores_of`], `[Q, W, S]`: for each query and key/value head the mean over the query heads of
    /// the group, by column, or with [`AttentionPass::average_heads`] one mean over all heads (W is 1, else Hkv); zero at
    /// columns not attended to. S is the number of columns of the longest row that has a query among the Q.
    pub weights: Option<Tensor<3>>,
}

/// Columns of one row that move within the row's own chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shift {
    /// Chunk numbers of the row.
    pub table: Vec<u32>,
    /// The columns that move, counted from the start of the table.
    pub from: Range<usize>,
    /// Where the first of them goes.
    pub to: usize,
}

/// Keys and values of all layers: the memory of many sequences, cut in chunks of a fixed number of columns.
///
/// The store knows no sequences. Who owns which chunk is the caller's affair; a row of a pass names its chunks.
/// Cells are zero until written.
#[derive(Debug)]
pub struct SlotStore {
    shape: StoreShape,
    device: Device,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    #[cfg(feature = "flex")]
    Host(HostStore),
    Tensors(TensorStore),
}

/// The sizes of a store that do not change.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreShape {
    pub(super) layers: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// Columns of a chunk.
    pub(super) chunk: usize,
}

impl SlotStore {
    /// An empty store for `layers` layers with `kv_heads` heads of `head_dim`, in chunks of `chunk` columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::Zero`] when a size is zero.
    pub fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        chunk: usize,
        device: &Device,
    ) -> Result<Self, KernelError> {
        for (what, size) in [
            ("number of layers of the store", layers),
            ("number of key/value heads of the store", kv_heads),
            ("head dimension of the store", head_dim),
            ("chunk length of the store", chunk),
        ] {
            if size == 0 {
                return Err(KernelError::Zero { what });
            }
        }
        let shape = StoreShape {
            layers,
            kv_heads,
            head_dim,
            chunk,
        };
        #[cfg(feature = "flex")]
        if matches!(device.as_dispatch(), burn::backend::DispatchDevice::Flex(_)) {
            return Ok(Self {
                shape,
                device: device.clone(),
                storage: Storage::Host(HostStore::new(shape)),
            });
        }
        Ok(Self {
            shape,
            device: device.clone(),
            storage: Storage::Tensors(TensorStore::new(shape, device)),
        })
    }

    /// Chunks the store has.
    pub fn chunks(&self) -> usize {
        match &self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => store.chunks(),
            Storage::Tensors(store) => store.chunks(),
        }
    }

    /// Grows the store to at least `chunks` chunks; new cells are zero, contents stay.
    pub fn reserve(&mut self, chunks: usize) {
        match &mut self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => store.reserve(chunks),
            Storage::Tensors(store) => store.reserve(chunks),
        }
    }

    /// Columns of a chunk.
    pub fn chunk_len(&self) -> usize {
        self.shape.chunk
    }

    /// Bytes of one chunk: keys and values of all layers.
    pub fn bytes_per_chunk(&self) -> usize {
        match &self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => store.bytes_per_chunk(),
            Storage::Tensors(store) => store.bytes_per_chunk(),
        }
    }

    /// Bytes of all chunks.
    pub fn memory_bytes(&self) -> usize {
        self.chunks() * self.bytes_per_chunk()
    }

    /// The device of the store.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Writes keys and values `k`, `v` `[T, Hkv, D]` of `layer` to the cells of the pass's tokens, then attends with
    /// `q [T, H, D]`: query head `h` reads key/value head `h / (H / Hkv)`.
    ///
    /// On the CPU backend a query's result has the same bits whatever else the pass holds, whichever chunks its row
    /// owns and however many threads compute: its keys are read in blocks that depend on column numbers only.
    ///
    /// # Errors
    ///
    /// [`KernelError::Shape`], [`KernelError::Heads`], [`KernelError::Layer`], [`KernelError::ChunkLength`],
    /// [`KernelError::Chunk`] or [`KernelError::Length`] (of key lists) when the tensors or the pass do not fit the
    /// store. Nothing is written then.
    pub fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
        pass: &AttentionPass,
    ) -> Result<Attended, KernelError> {
        let StoreShape {
            kv_heads,
            head_dim,
            chunk,
            ..
        } = self.shape;
        self.check_layer(layer)?;
        if pass.chunk() != chunk {
            return Err(KernelError::ChunkLength {
                pass: pass.chunk(),
                store: chunk,
            });
        }
        let heads = q.dims()[1];
        check_shape("queries", &q, [pass.tokens(), heads, head_dim])?;
        check_shape("keys", &k, [pass.tokens(), kv_heads, head_dim])?;
        check_shape("values", &v, [pass.tokens(), kv_heads, head_dim])?;
        if heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(KernelError::Heads { heads, kv_heads });
        }
        for row in pass.rows() {
            self.check_chunks(&row.table)?;
        }
        pass.check_lists(layer, kv_heads)?;
        Ok(match &mut self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => super::flex::attend(store, layer, [q, k, v], pass),
            Storage::Tensors(store) => {
                let Attended { out, weights } = store.attend(layer, q, k, v, pass);
                // Groups are equally large, so the mean of their means is the mean of all heads.
                let weights = weights.map(|weights| match pass.averages_heads() {
                    true => weights.mean_dim(1),
                    false => weights,
                });
                Attended { out, weights }
            }
        })
    }

    /// Copies of the keys and values of `layer` at columns `range` of the row with chunks `table`, `[len, Hkv, D]` each.
    ///
    /// # Errors
    ///
    /// [`KernelError::Layer`], [`KernelError::Chunk`], [`KernelError::Table`] when the store or the table does not
    /// reach them, [`KernelError::Zero`] for an empty range.
    pub fn read(
        &self,
        layer: usize,
        table: &[u32],
        range: Range<usize>,
    ) -> Result<(Tensor<3>, Tensor<3>), KernelError> {
        self.check_layer(layer)?;
        self.check_chunks(table)?;
        if range.is_empty() {
            return Err(KernelError::Zero {
                what: "number of columns to read",
            });
        }
        check_table(0, table, range.end, self.shape.chunk)?;
        Ok(match &self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => super::flex::read(store, layer, (table, range), &self.device),
            Storage::Tensors(store) => store.read(layer, table, range),
        })
    }

    /// Writes keys and values `[len, Hkv, D]` of `layer` to the columns from `start` on of the row with chunks `table`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Layer`], [`KernelError::Chunk`], [`KernelError::Table`], [`KernelError::Shape`] when they do not
    /// fit, [`KernelError::SharedCell`] when `table` names a chunk twice among those written.
    pub fn write(
        &mut self,
        layer: usize,
        table: &[u32],
        start: usize,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<(), KernelError> {
        let StoreShape {
            kv_heads,
            head_dim,
            chunk,
            ..
        } = self.shape;
        self.check_layer(layer)?;
        self.check_chunks(table)?;
        let len = k.dims()[0];
        check_shape("keys", &k, [len, kv_heads, head_dim])?;
        check_shape("values", &v, [len, kv_heads, head_dim])?;
        if len == 0 {
            return Ok(());
        }
        check_table(0, table, start.saturating_add(len), chunk)?;
        let mut written = table[start / chunk..(start + len).div_ceil(chunk)].to_vec();
        written.sort_unstable();
        if let Some(pair) = written.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(KernelError::SharedCell {
                chunk: pair[0],
                offset: 0,
            });
        }
        match &mut self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => super::flex::write(store, layer, (table, start), [k, v]),
            Storage::Tensors(store) => store.write(layer, table, start, k, v),
        }
        Ok(())
    }

    /// Moves the keys and values of whole runs of columns, all layers: one gather for each tensor, or a copy in place
    /// on the CPU. Ranges may overlap; cells that are left keep what they held.
    ///
    /// # Errors
    ///
    /// [`KernelError::Chunk`], [`KernelError::Table`] when the store or a table does not reach the columns,
    /// [`KernelError::SharedCell`] when a chunk is named twice. Nothing has moved then.
    pub fn shift(&mut self, shifts: &[Shift]) -> Result<(), KernelError> {
        let mut chunks = Vec::new();
        for (row, shift) in shifts.iter().enumerate() {
            self.check_chunks(&shift.table)?;
            let end = shift
                .from
                .end
                .max(shift.to.saturating_add(shift.from.len()));
            check_table(row, &shift.table, end, self.shape.chunk)?;
            chunks.extend_from_slice(&shift.table);
        }
        chunks.sort_unstable();
        if let Some(pair) = chunks.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(KernelError::SharedCell {
                chunk: pair[0],
                offset: 0,
            });
        }
        match &mut self.storage {
            #[cfg(feature = "flex")]
            Storage::Host(store) => shifts.iter().for_each(|shift| store.shift(shift)),
            Storage::Tensors(_) if shifts.is_empty() => {}
            Storage::Tensors(store) => store.shift(shifts),
        }
        Ok(())
    }

    fn check_layer(&self, layer: usize) -> Result<(), KernelError> {
        let layers = self.shape.layers;
        if layer < layers {
            Ok(())
        } else {
            Err(KernelError::Layer { layer, layers })
        }
    }

    fn check_chunks(&self, table: &[u32]) -> Result<(), KernelError> {
        let chunks = self.chunks();
        match table.iter().find(|&&chunk| chunk as usize >= chunks) {
            Some(&chunk) => Err(KernelError::Chunk { chunk, chunks }),
            None => Ok(()),
        }
    }
}

fn check_shape(
    what: &'static str,
    tensor: &Tensor<3>,
    expected: [usize; 3],
) -> Result<(), KernelError> {
    let got = tensor.dims();
    if got == expected {
        return Ok(());
    }
    Err(KernelError::Shape {
        what,
        expected: expected.to_vec(),
        got: got.to_vec(),
    })
}
