//! The store of every backend but the CPU's: one tensor of keys and one of values for each layer. Where no kernel
//! reads them in place (`cube`), attention is composed of tensor operations over padded rows: the plain version, and
//! the workspace's one attention of this kind.

use core::ops::Range;

use burn::tensor::{
    Bool, Device, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData, activation::softmax, s,
};

use super::{
    Attended, AttentionPass, in_place,
    store::{Shift, StoreShape},
};

/// Keys and values of each layer, `[chunks * chunk, Hkv, D]`.
#[derive(Debug)]
pub(super) struct TensorStore {
    shape: StoreShape,
    device: Device,
    chunks: usize,
    /// `None` until the first chunk is reserved (backends dislike empty tensors).
    layers: Vec<Option<[Tensor<3>; 2]>>,
}

impl TensorStore {
    pub(super) fn new(shape: StoreShape, device: &Device) -> Self {
        Self {
            shape,
            device: device.clone(),
            chunks: 0,
            layers: vec![None; shape.layers],
        }
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(super) fn bytes_per_chunk(&self) -> usize {
        let StoreShape {
            layers,
            kv_heads,
            head_dim,
            chunk,
        } = self.shape;
        let size = match self.layers.first() {
            Some(Some([keys, _])) => keys.dtype().size(),
            _ => burn::tensor::DType::from(self.device.settings().float_dtype).size(),
        };
        2 * layers * kv_heads * head_dim * chunk * size
    }

    pub(super) fn reserve(&mut self, chunks: usize) {
        if chunks <= self.chunks {
            return;
        }
        let new = (chunks - self.chunks) * self.shape.chunk;
        let shape = [new, self.shape.kv_heads, self.shape.head_dim];
        for layer in &mut self.layers {
            let grow = |held: Option<Tensor<3>>| {
                let zeros = Tensor::zeros(shape, &self.device);
                match held {
                    Some(held) => Tensor::cat(vec![held, zeros], 0),
                    None => zeros,
                }
            };
            *layer = Some(match layer.take() {
                Some([keys, values]) => [grow(Some(keys)), grow(Some(values))],
                None => [grow(None), grow(None)],
            });
        }
        self.chunks = chunks;
    }

    pub(super) fn read(
        &self,
        layer: usize,
        table: &[u32],
        range: Range<usize>,
    ) -> (Tensor<3>, Tensor<3>) {
        let cells = range.map(|column| cell(table, column, self.shape.chunk));
        let cells = int_tensor(cells.collect(), &self.device);
        let [keys, values] = self.layers[layer]
            .as_ref()
            .expect("a table names chunks, so the store has some");
        (
            keys.clone().select(0, cells.clone()),
            values.clone().select(0, cells),
        )
    }

    pub(super) fn write(
        &mut self,
        layer: usize,
        table: &[u32],
        start: usize,
        k: Tensor<3>,
        v: Tensor<3>,
    ) {
        let columns = start..start + k.dims()[0];
        let cells = columns.map(|column| cell(table, column, self.shape.chunk));
        let cells = int_tensor(cells.collect(), &self.device);
        self.scatter(layer, cells, k, v);
    }

    /// Moves columns of several rows, with one gather for each tensor.
    pub(super) fn shift(&mut self, shifts: &[Shift]) {
        let chunk = self.shape.chunk;
        let mut sources: Vec<usize> = (0..self.chunks * chunk).collect();
        for shift in shifts {
            for (from, to) in shift.from.clone().zip(shift.to..) {
                sources[cell(&shift.table, to, chunk)] = cell(&shift.table, from, chunk);
            }
        }
        let sources = int_tensor(sources, &self.device);
        for layer in self.layers.iter_mut() {
            *layer = layer
                .take()
                .map(|held| held.map(|t| t.select(0, sources.clone())));
        }
    }

    fn scatter(&mut self, layer: usize, cells: Tensor<1, Int>, k: Tensor<3>, v: Tensor<3>) {
        let [keys, values] = self.layers[layer]
            .take()
            .expect("a table names chunks, so the store has some");
        let dtype = keys.dtype();
        let cells = cells.unsqueeze_dim::<2>(1);
        let assign = |held: Tensor<3>, new: Tensor<3>, cells| {
            held.scatter_nd::<2, 3>(cells, new.cast(dtype), IndexingUpdateOp::Assign)
        };
        let keys = assign(keys, k, cells.clone());
        self.layers[layer] = Some([keys, assign(values, v, cells)]);
    }

    pub(super) fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
        pass: &AttentionPass,
    ) -> Attended {
        if pass.writes() {
            self.scatter(layer, pass.written().clone(), k, v);
        }
        let held = self.layers[layer]
            .as_ref()
            .expect("a pass names chunks, so the store has some");
        if !pass.is_plain()
            && let Some(attended) = in_place(layer, &q, held, pass)
        {
            return attended;
        }
        self.composed(layer, q, held, pass)
    }

    /// Attention composed of tensor operations, over copies of the keys and values that rows see.
    fn composed(
        &self,
        layer: usize,
        q: Tensor<3>,
        [keys, values]: &[Tensor<3>; 2],
        pass: &AttentionPass,
    ) -> Attended {
        let own;
        let indices = if pass.sparse(layer) {
            own = Indices::new(pass, Some(layer));
            &own
        } else {
            pass.indices()
        };

        let [_, heads, dim] = q.dims();
        let kv_heads = self.shape.kv_heads;
        let group = heads / kv_heads;
        let (rows, longest, columns) = (indices.rows, indices.longest, indices.columns);
        let dtype = q.dtype();
        // [R * L, H, D] -> [R, Hkv, G * L, D], the heads of a group side by side: keys are never repeated.
        let q = q
            .cast(FloatDType::F32)
            .select(0, indices.padded.clone())
            .reshape([rows, longest, kv_heads, group, dim])
            .permute([0, 2, 3, 1, 4])
            .reshape([rows, kv_heads, group * longest, dim]);
        let gather = |held: &Tensor<3>| {
            held.clone()
                .select(0, indices.cells.clone())
                .cast(FloatDType::F32)
                .reshape([rows, columns, kv_heads, dim])
                .swap_dims(1, 2)
        };
        let scores = q.matmul(gather(keys).swap_dims(2, 3)) * pass.scale_for(dim);
        let shape = [rows, kv_heads, group, longest, columns];
        let scores = scores.reshape(shape);
        let hidden = indices.hidden.clone();
        let lists = hidden.dims()[1];
        let hidden = hidden
            .reshape([rows, lists, 1, longest, columns])
            .expand(shape);
        let raw = pass.reports_scores();
        let raw = raw.then(|| scores.clone().mask_fill(hidden.clone(), 0.0));
        let weights = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 4);
        let out = weights
            .clone()
            .reshape([rows, kv_heads, group * longest, columns])
            .matmul(gather(values))
            .reshape([rows, kv_heads, group, longest, dim])
            .permute([0, 3, 1, 2, 4])
            .reshape([rows * longest, heads, dim])
            .select(0, indices.packed.clone())
            .cast(dtype);

        let asked = pass.queries_asked();
        let reported = raw.unwrap_or(weights);
        let weights = (!asked.is_empty()).then(|| {
            let places = asked.iter().map(|&query| {
                let (row, token) = pass.locate(query);
                row * longest + token
            });
            reported
                .mean_dim(2)
                .reshape([rows, kv_heads, longest, columns])
                .swap_dims(1, 2)
                .reshape([rows * longest, kv_heads, columns])
                .select(0, int_tensor(places.collect(), &self.device))
                .slice(s![.., .., 0..pass.reported_columns()])
        });
        Attended { out, weights }
    }
}

/// A pass as index tensors over rows padded to R x L queries and R x S columns. Padding repeats cells and tokens of
/// the same row, so that no row ever reads another's.
#[derive(Debug)]
pub(super) struct Indices {
    rows: usize,
    longest: usize,
    columns: usize,
    /// Token of each padded place, `[R * L]`.
    padded: Tensor<1, Int>,
    /// Padded place of each token, `[T]`.
    packed: Tensor<1, Int>,
    /// Cell of each column, `[R * S]`.
    cells: Tensor<1, Int>,
    /// What a query does not see, `[R, W, L, S]`; W is 1, or Hkv where heads have key lists of their own.
    hidden: Tensor<4, Bool>,
}

impl Indices {
    /// The indices of `layer`, or of any layer without key lists.
    pub(super) fn new(pass: &AttentionPass, layer: Option<usize>) -> Self {
        let (rows, chunk) = (pass.rows(), pass.chunk());
        let longest = rows.iter().map(|row| row.len).max().unwrap_or(0);
        let columns = rows.iter().map(super::AttentionRow::end).max().unwrap_or(0);
        let mut padded = Vec::new();
        let mut packed = Vec::new();
        let mut cells = Vec::new();
        let earlier = (0..rows.len()).map(|r| match layer {
            Some(layer) => pass.earlier(layer, r),
            None => vec![core::iter::once(0..rows[r].start).collect()],
        });
        let earlier: Vec<_> = earlier.collect();
        let lists = earlier.iter().map(Vec::len).max().unwrap_or(1);
        let mut hidden = vec![true; rows.len() * lists * longest * columns];
        for (r, row) in rows.iter().enumerate() {
            let cell = |column| cell(&row.table, pass.padding(r) + column, chunk);
            let places = 0..longest;
            padded.extend(places.map(|t| pass.offset(r) + if t < row.len { t } else { 0 }));
            packed.extend((0..row.len).map(|t| r * longest + t));
            let seen = |column| {
                if column < row.end() {
                    column
                } else {
                    row.start
                }
            };
            cells.extend((0..columns).map(|column| cell(seen(column))));
            for (list, place) in (0..lists).flat_map(|list| (0..longest).map(move |p| (list, p))) {
                let token = if place < row.len { place } else { 0 };
                let at = (r * lists + list) * longest + place;
                let mask = &mut hidden[at * columns..][..columns];
                let first = pass.first_column(r, token);
                let new = row.start..row.start + token + 1;
                let own = &earlier[r][list.min(earlier[r].len() - 1)];
                for run in own.iter().chain(core::iter::once(&new)) {
                    mask[run.start.max(first).min(run.end)..run.end].fill(false);
                }
            }
        }
        let device = pass.device();
        let mask = TensorData::new(hidden, [rows.len(), lists, longest, columns]);
        Self {
            rows: rows.len(),
            longest,
            columns,
            padded: int_tensor(padded, device),
            packed: int_tensor(packed, device),
            cells: int_tensor(cells, device),
            hidden: Tensor::from_data(mask, device),
        }
    }
}

/// Cells the tokens of a pass are written to, `[T]`.
pub(super) fn written(pass: &AttentionPass) -> Tensor<1, Int> {
    let rows = pass.rows().iter().enumerate();
    let cells = rows.flat_map(|(r, row)| {
        let places = pass.padding(r) + row.start..pass.padding(r) + row.end();
        places.map(|place| cell(&row.table, place, pass.chunk()))
    });
    int_tensor(cells.collect(), pass.device())
}

/// The cell of `column` in a tensor of all chunks.
fn cell(table: &[u32], column: usize, chunk: usize) -> usize {
    table[column / chunk] as usize * chunk + column % chunk
}

fn int_tensor(values: Vec<usize>, device: &Device) -> Tensor<1, Int> {
    let len = values.len();
    let values: Vec<i64> = values.into_iter().map(|value| value as i64).collect();
    Tensor::from_data(TensorData::new(values, [len]), device)
}
