mod selective;

use burn::prelude::*;
use selective::{Reported, Sight};
use specdec_core::{
    Attend, CacheError, KvCache, KvSegment, ModelSpec, Phase, Result, RowSpan, Selection, SeqId,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// The plain, slow cache: per sequence and layer one vector of keys and one of values, attention
/// by three loops on the host with f64 sums. What every other cache is compared with.
///
/// Its results are bitwise independent of the other rows and of how a sequence was cut into passes.
/// Memory is bounded by the machine only. Sliding windows of the model are honoured by not looking;
/// old entries are kept.
#[derive(Debug, Clone)]
pub struct VecCache {
    spec: ModelSpec,
    sequences: BTreeMap<SeqId, Entries>,
    pass: Option<Pass>,
}

/// Keys and values per layer, `[len, Hkv, D]` in row-major order each.
#[derive(Debug, Clone)]
struct Entries(Vec<(Vec<f32>, Vec<f32>)>);

#[derive(Debug, Clone)]
struct Pass {
    phase: Phase,
    rows: Vec<RowSpan>,
    /// Everything staged since the last commit or rollback.
    staged: BTreeMap<SeqId, Entries>,
    /// Layers attended to since the last `begin`.
    done: Vec<bool>,
    /// What is attended to and reported.
    selection: Selection,
}

/// What one query head makes of the entries it sees.
struct Looked {
    /// The mixed values.
    out: Vec<f32>,
    /// Products with the keys, times the scale.
    logits: Vec<f64>,
    /// Softmax of them.
    weights: Vec<f64>,
}

impl Entries {
    fn new(layers: usize) -> Self {
        Self(vec![(Vec::new(), Vec::new()); layers])
    }

    /// Entries that all layers have.
    fn len(&self, width: usize) -> usize {
        self.0
            .iter()
            .map(|(k, _)| k.len() / width)
            .min()
            .unwrap_or(0)
    }

    fn append(&mut self, other: &Self, numbers: usize) {
        for ((k, v), (more_k, more_v)) in self.0.iter_mut().zip(&other.0) {
            k.extend_from_slice(&more_k[..numbers]);
            v.extend_from_slice(&more_v[..numbers]);
        }
    }
}

impl VecCache {
    /// A cache for models of this shape.
    pub fn new(spec: &ModelSpec) -> Self {
        Self {
            spec: spec.clone(),
            sequences: BTreeMap::new(),
            pass: None,
        }
    }

    /// Numbers in one entry of a layer's keys.
    fn width(&self) -> usize {
        self.spec.kv_heads * self.spec.head_dim
    }

    fn staged_len(&self, seq: SeqId) -> usize {
        let staged = self.pass.as_ref().and_then(|pass| pass.staged.get(&seq));
        staged.map_or(0, |entries| entries.len(self.width()))
    }

    /// Opens a pass.
    fn open(
        &mut self,
        rows: &[RowSpan],
        phase: Phase,
        selection: &Selection,
    ) -> Result<VecAttend<'_>> {
        let drafting = self
            .pass
            .as_ref()
            .is_some_and(|pass| pass.phase == Phase::Draft);
        if self.pass.is_some() && !(drafting && phase == Phase::Draft) {
            return Err(CacheError::PassOpen.into());
        }
        let mut seen = BTreeMap::new();
        for (row, span) in rows.iter().enumerate() {
            let (seq, start) = (span.seq, span.start);
            if let Some(first) = seen.insert(seq, row) {
                let second = row;
                return Err(CacheError::Duplicate { seq, first, second }.into());
            }
            if span.len == 0 {
                return Err(CacheError::EmptyRow { row, seq }.into());
            }
            let len = self.len(seq) + self.staged_len(seq);
            if start != len {
                return Err(CacheError::Start {
                    row,
                    seq,
                    start,
                    len,
                }
                .into());
            }
        }
        selection.check(rows, self.spec.layers, self.spec.kv_heads)?;
        let done = vec![false; self.spec.layers];
        let staged = self
            .pass
            .take()
            .map_or_else(BTreeMap::new, |pass| pass.staged);
        self.pass = Some(Pass {
            phase,
            rows: rows.to_vec(),
            staged,
            done,
            selection: selection.clone(),
        });
        Ok(VecAttend(self))
    }

    fn shape(&self, what: &'static str, tensor: &Tensor<3>, want: [usize; 3]) -> Result<()> {
        let got = tensor.dims();
        if got == want {
            return Ok(());
        }
        Err(CacheError::Shape {
            what,
            got: got.to_vec(),
            want: want.to_vec(),
        }
        .into())
    }

    /// Softmax of scaled products over the visible entries.
    fn look(&self, q: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Looked {
        let d = self.spec.head_dim;
        let scale = self.spec.scale.map_or(1.0 / (d as f64).sqrt(), f64::from);
        let dot = |k: &[f32]| -> f64 {
            q.iter()
                .zip(k)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum()
        };
        let logits: Vec<f64> = keys.iter().map(|k| scale * dot(k)).collect();
        let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|s| (s - best).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mixed = (0..d).map(|i| {
            let values = weights.iter().zip(values);
            let mixed: f64 = values.map(|(w, v)| w * f64::from(v[i])).sum();
            (mixed / sum) as f32
        });
        Looked {
            out: mixed.collect(),
            weights: weights.iter().map(|w| w / sum).collect(),
            logits,
        }
    }
}

fn read(tensor: Tensor<3>) -> Result<Vec<f32>> {
    tensor
        .into_data()
        .try_into_vec_as::<f32>()
        .map_err(|e| CacheError::Kernel(format!("a tensor cannot be read: {e:?}").into()).into())
}

struct VecAttend<'a>(&'a mut VecCache);

impl Attend for VecAttend<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        Ok(self.run(layer, q, k, v)?.0)
    }
}

impl VecAttend<'_> {
    fn run(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<(Tensor<3>, Reported)> {
        let cache = &mut *self.0;
        let (width, d) = (cache.width(), cache.spec.head_dim);
        let (heads, kv_heads, layers) = (cache.spec.heads, cache.spec.kv_heads, cache.spec.layers);
        let pass = cache.pass.as_ref().ok_or(CacheError::NoPass)?;
        let tokens: usize = pass.rows.iter().map(|row| row.len).sum();
        if pass.done.get(layer) != Some(&false) {
            return Err(CacheError::Layer { layer, layers }.into());
        }
        cache.shape("q", &q, [tokens, heads, d])?;
        cache.shape("k", &k, [tokens, kv_heads, d])?;
        cache.shape("v", &v, [tokens, kv_heads, d])?;
        let (q, k, v) = (read(q)?, read(k)?, read(v)?);

        let pass = cache.pass.as_mut().ok_or(CacheError::NoPass)?;
        pass.done[layer] = true;
        let mut at = 0;
        for row in &pass.rows {
            let staged = pass
                .staged
                .entry(row.seq)
                .or_insert_with(|| Entries::new(layers));
            let new = at * width..(at + row.len) * width;
            staged.0[layer].0.extend_from_slice(&k[new.clone()]);
            staged.0[layer].1.extend_from_slice(&v[new]);
            at += row.len;
        }

        let (rows, selection) = (pass.rows.clone(), pass.selection.clone());
        let cache = &*cache;
        let mut out = Vec::with_capacity(q.len());
        let mut reported = Reported::new(&selection, &rows, kv_heads);
        let mut at = 0;
        for (number, row) in rows.into_iter().enumerate() {
            let sight = Sight::new(&selection, number, row, (layer, cache.spec.window(layer)));
            let none = (Vec::new(), Vec::new());
            let held = cache.sequences.get(&row.seq).map_or(&none, |e| &e.0[layer]);
            let staged = cache
                .pass
                .as_ref()
                .and_then(|pass| pass.staged.get(&row.seq));
            let staged = staged.map_or(&none, |e| &e.0[layer]);
            let keys: Vec<&[f32]> = held.0.chunks(width).chain(staged.0.chunks(width)).collect();
            let values: Vec<&[f32]> = held.1.chunks(width).chain(staged.1.chunks(width)).collect();
            for position in row.start..row.start + row.len {
                for head in 0..heads {
                    let g = head / (heads / kv_heads);
                    let seen = sight.of(position, g);
                    let mine = g * d..(g + 1) * d;
                    let ks: Vec<&[f32]> = seen.iter().map(|&p| &keys[p][mine.clone()]).collect();
                    let vs: Vec<&[f32]> = seen.iter().map(|&p| &values[p][mine.clone()]).collect();
                    let from = (at * heads + head) * d;
                    let looked = cache.look(&q[from..from + d], &ks, &vs);
                    reported.add(at, g, heads / kv_heads, (&seen, &looked));
                    out.extend(looked.out);
                }
                at += 1;
            }
        }
        let data = TensorData::new(out, [tokens, heads, d]);
        Ok((Tensor::from_data(data, &cache.spec.device), reported))
    }
}

impl KvCache for VecCache {
    fn len(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, |e| e.len(self.width()))
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        Ok(Box::new(self.open(rows, phase, &Selection::default())?))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        let (width, layers) = (self.width(), self.spec.layers);
        let pass = self.pass.as_ref().ok_or(CacheError::NoPass)?;
        if pass.phase == Phase::Draft {
            return Err(CacheError::DraftPass.into());
        }
        if keep.len() != pass.rows.len() {
            let (keep, rows) = (keep.len(), pass.rows.len());
            return Err(CacheError::KeepRows { keep, rows }.into());
        }
        for (row, (span, &keep)) in pass.rows.iter().zip(keep).enumerate() {
            let staged = self.staged_len(span.seq);
            if keep > staged {
                return Err(CacheError::KeepTooMany { row, keep, staged }.into());
            }
        }
        if let Some(pass) = self.pass.take() {
            for (span, &keep) in pass.rows.iter().zip(keep) {
                if let Some(staged) = pass.staged.get(&span.seq).filter(|_| keep > 0) {
                    let held = self.sequences.entry(span.seq);
                    held.or_insert_with(|| Entries::new(layers))
                        .append(staged, keep * width);
                }
            }
        }
        Ok(())
    }

    fn rollback(&mut self) {
        self.pass = None;
    }

    fn evict(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
        if let Some(pass) = &mut self.pass {
            pass.staged.remove(&seq);
        }
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        let held = 0..self.len(seq);
        if range.start > range.end || range.end > held.end {
            let asked = range;
            return Err(CacheError::Range { seq, held, asked }.into());
        }
        let (h, d) = (self.spec.kv_heads, self.spec.head_dim);
        let (numbers, n) = (range.start * h * d..range.end * h * d, range.len());
        let tensor = |all: &Vec<f32>| {
            let data = TensorData::new(all[numbers.clone()].to_vec(), [n, h, d]);
            Tensor::from_data(data, &self.spec.device)
        };
        let empty = Entries::new(self.spec.layers);
        let entries = self.sequences.get(&seq).unwrap_or(&empty);
        let layers = entries
            .0
            .iter()
            .map(|(k, v)| (tensor(k), tensor(v)))
            .collect();
        Ok(KvSegment { range, layers })
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        if self.pass.is_some() {
            return Err(CacheError::PassOpen.into());
        }
        let (h, d, layers) = (self.spec.kv_heads, self.spec.head_dim, self.spec.layers);
        let held = 0..self.len(seq);
        if segment.range.start != held.end {
            let asked = segment.range.clone();
            return Err(CacheError::Range { seq, held, asked }.into());
        }
        if segment.layers.len() != layers {
            let layer = segment.layers.len();
            return Err(CacheError::Layer { layer, layers }.into());
        }
        let mut new = Entries::new(layers);
        for ((k, v), (into_k, into_v)) in segment.layers.iter().zip(&mut new.0) {
            let want = [segment.range.len(), h, d];
            self.shape("a segment's keys", k, want)?;
            self.shape("a segment's values", v, want)?;
            *into_k = read(k.clone())?;
            *into_v = read(v.clone())?;
        }
        let numbers = segment.range.len() * h * d;
        let held = self
            .sequences
            .entry(seq)
            .or_insert_with(|| Entries::new(layers));
        held.append(&new, numbers);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let staged = self.pass.iter().flat_map(|pass| pass.staged.values());
        let numbers: usize = self
            .sequences
            .values()
            .chain(staged)
            .flat_map(|entries| &entries.0)
            .map(|(k, v)| k.len() + v.len())
            .sum();
        numbers * size_of::<f32>()
    }
}
