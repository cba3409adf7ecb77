//! Making a model of named tensors: check everything, then load and hash.

use super::{
    Transformer,
    layer::Layer,
    plan::{self, LayerNames, Needed},
    projections::{Group, Projections},
};
use crate::{LoadError, LoadOptions, ModelConfig, Rope, StoredTensor, TensorSource, error::Result};
use burn::prelude::*;
use half::bf16;
use specdec_core::ModelSpec;
use specdec_kernels::{BlockFormat, KernelError, WeightMatrix, dequantize};
use std::{
    collections::{BTreeMap, HashSet},
    ops::ControlFlow,
};
use xxhash_rust::xxh3::Xxh3Default;

/// How the weight matrices are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WeightDtype {
    /// As they are stored: quantised blocks stay quantised where the device's kernels can read
    /// them (the CPU backend, CUDA, wgpu, Vulkan and Metal), and become the device's float type
    /// elsewhere.
    #[default]
    Stored,
    /// Converted to f32.
    F32,
    /// Rounded to bf16 (and held as the device's float type where it has no bf16 product).
    Bf16,
}

/// What [`Assembly::run`] gives.
pub(crate) struct Assembled {
    pub(crate) model: Transformer,
    pub(crate) bytes: u64,
    pub(crate) formats: BTreeMap<&'static str, usize>,
    pub(crate) unused: Vec<String>,
}

/// A model in the making.
pub(crate) struct Assembly<'a> {
    config: &'a ModelConfig,
    source: &'a dyn TensorSource,
    options: &'a LoadOptions,
    device: &'a Device,
    hash: Xxh3Default,
    done: u64,
    total: u64,
    formats: BTreeMap<&'static str, usize>,
    used: HashSet<String>,
}

impl<'a> Assembly<'a> {
    /// Checks the configuration, and every tensor's presence, type, shape and length.
    pub(crate) fn new(
        config: &'a ModelConfig,
        source: &'a dyn TensorSource,
        options: &'a LoadOptions,
        device: &'a Device,
    ) -> Result<Self> {
        config.check()?;
        if options.context == Some(0) {
            return Err(LoadError::invalid(
                "context",
                0,
                "at least one token is needed",
            ));
        }
        let mut assembly = Self {
            config,
            source,
            options,
            device,
            hash: Xxh3Default::new(),
            done: 0,
            total: 0,
            formats: BTreeMap::new(),
            used: HashSet::new(),
        };
        for needed in plan::all(config) {
            let stored = assembly.find(&needed)?;
            assembly.total += stored.bytes.len() as u64;
        }
        Ok(assembly)
    }

    pub(crate) fn run(mut self) -> Result<Assembled> {
        let config = self.config;
        let context = self.options.context.unwrap_or(config.context);
        let rope = Rope::new(config, context);
        self.hash_config(&rope);
        let [embedding] = self.map([plan::embedding(config)], false)?.into_weights();
        let output = match plan::output(config) {
            Some(needed) => {
                let [weight] = self.map([needed], false)?.into_weights();
                Some(weight)
            }
            None => None,
        };
        let norm = self.vector(&plan::norm(config))?;
        let layers = (0..config.layers)
            .map(|layer| self.layer(&LayerNames::new(config, layer)))
            .collect::<Result<_>>()?;
        let mut spec = ModelSpec::new(config.vocab, config.layers, config.hidden, self.device)
            .with_heads(config.heads, config.kv_heads, config.head_dim)
            .with_context(context);
        spec.windows = config.windows.clone();
        spec.fingerprint = self.hash.digest();
        let mut unused = self.source.native_names();
        unused.retain(|name| !self.used.contains(name));
        let model = Transformer {
            spec,
            rope,
            pairing: self.source.pairing(),
            rms_eps: config.rms_eps,
            embedding,
            output,
            norm,
            layers,
        };
        Ok(Assembled {
            model,
            bytes: self.done,
            formats: self.formats,
            unused,
        })
    }

    fn layer(&mut self, names: &LayerNames<'_>) -> Result<Layer> {
        let config = self.config;
        let head_norms = match names.head_norms() {
            Some([q, k]) => Some((self.vector(&q)?, self.vector(&k)?)),
            None => None,
        };
        Ok(Layer {
            attention_norm: self.vector(&names.attention_norm())?,
            qkv: self.map(names.qkv(), config.qkv_bias)?,
            head_norms,
            output: self.map(names.output(), config.output_bias)?,
            mlp_norm: self.vector(&names.mlp_norm())?,
            gate_up: self.map(names.gate_up(), config.mlp_bias)?,
            down: self.map(names.down(), config.mlp_bias)?,
        })
    }

    /// The numbers that decide keys and values beside the weights.
    fn hash_config(&mut self, rope: &Rope) {
        let c = self.config;
        let mut put = |number: u64| self.hash.update(&number.to_le_bytes());
        for size in [
            c.vocab,
            c.hidden,
            c.layers,
            c.heads,
            c.kv_heads,
            c.head_dim,
            c.intermediate,
            c.rope_dim,
        ] {
            put(size as u64);
        }
        put(c.rms_eps.to_bits());
        put(rope.attention_factor().to_bits());
        for frequency in rope.frequencies() {
            put(frequency.to_bits());
        }
        for window in &c.windows {
            put(window.map_or(u64::MAX, |w| w as u64));
        }
        put(self.options.dtype as u64);
        put(self.options.activations as u64);
        put(self.source.pairing() as u64);
    }

    /// The stored tensor, checked.
    fn find(&self, needed: &Needed) -> Result<StoredTensor<'a>> {
        let native = || self.source.native_name(&needed.name);
        let stored = self.source.tensor(&needed.name)?;
        let stored = stored.ok_or_else(|| LoadError::TensorMissing { name: native() })?;
        let fits = if plan::has_token_rows(needed) {
            stored.shape.len() == 2
                && stored.shape[0] >= needed.shape[0]
                && stored.shape[1] == needed.shape[1]
        } else {
            stored.shape == needed.shape
        };
        if !fits {
            return Err(LoadError::ShapeMismatch {
                tensor: native(),
                expected: needed.shape.clone(),
                got: stored.shape,
            });
        }
        // The shape is that of the configuration, whose sizes are bounded; rows may be more.
        let row = needed.shape.last().copied().unwrap_or(1);
        let (len, bytes) = (stored.format.block_len(), stored.format.block_bytes());
        let expected = stored.shape[..stored.shape.len() - 1]
            .iter()
            .try_fold(row / len * bytes, |n, &d| n.checked_mul(d));
        if !row.is_multiple_of(len) || expected != Some(stored.bytes.len()) {
            let source = KernelError::Length {
                what: "bytes of the tensor",
                expected: expected.unwrap_or(usize::MAX),
                got: stored.bytes.len(),
            };
            return Err(LoadError::Kernel {
                tensor: native(),
                source,
            });
        }
        Ok(stored)
    }

    /// Finds a tensor, hashes it and reports progress.
    fn take(&mut self, needed: &Needed) -> Result<StoredTensor<'a>> {
        let stored = self.find(needed)?;
        self.hash.update(needed.name.as_bytes());
        self.hash.update(stored.format.name().as_bytes());
        self.hash.update(&stored.bytes);
        *self.formats.entry(stored.format.name()).or_default() += 1;
        self.used.insert(self.source.native_name(&needed.name));
        self.done += stored.bytes.len() as u64;
        match self.options.report(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(stored),
            ControlFlow::Break(()) => Err(LoadError::Aborted {
                done: self.done,
                total: self.total,
            }),
        }
    }

    /// A vector of f32: a norm's weight or a bias.
    fn vector(&mut self, needed: &Needed) -> Result<Tensor<1>> {
        let stored = self.take(needed)?;
        let values = self.values(&stored, &needed.name)?;
        let shape = [values.len()];
        Ok(Tensor::from_data(
            TensorData::new(values, shape),
            self.device,
        ))
    }

    fn values(&self, stored: &StoredTensor<'_>, name: &str) -> Result<Vec<f32>> {
        let mut values = vec![0.0; stored.shape.iter().product()];
        dequantize(stored.format, &stored.bytes, &mut values)
            .map_err(|source| self.refused(name, source))?;
        Ok(values)
    }

    fn refused(&self, name: &str, source: KernelError) -> LoadError {
        LoadError::Kernel {
            tensor: self.source.native_name(name),
            source,
        }
    }

    /// Linear maps of one input; neighbours that are held in the same format become one matrix.
    fn map<const N: usize>(&mut self, needed: [Needed; N], bias: bool) -> Result<Projections<N>> {
        let mut groups: Vec<(BlockFormat, Vec<Needed>, Vec<StoredTensor<'a>>)> = Vec::new();
        let converted = self.options.dtype != WeightDtype::Stored;
        for needed in needed {
            let stored = self.take(&needed)?;
            match groups.last_mut() {
                Some((format, names, tensors)) if converted || *format == stored.format => {
                    names.push(needed);
                    tensors.push(stored);
                }
                _ => groups.push((stored.format, vec![needed], vec![stored])),
            }
        }
        let groups = groups
            .into_iter()
            .map(|(_, names, tensors)| self.group(&names, &tensors, bias))
            .collect::<Result<_>>()?;
        Ok(Projections { groups })
    }

    fn group(
        &mut self,
        names: &[Needed],
        tensors: &[StoredTensor<'a>],
        bias: bool,
    ) -> Result<Group> {
        let widths: Vec<usize> = tensors.iter().map(|t| t.shape[0]).collect();
        let weight = self.weight(&names[0].name, tensors)?;
        let bias = if bias {
            let parts = names.iter().map(|needed| self.vector(&needed.bias()));
            Some(Tensor::cat(parts.collect::<Result<_>>()?, 0))
        } else {
            None
        };
        Ok(Group {
            weight,
            bias,
            widths,
        })
    }

    /// One matrix of the rows of several tensors of the same format and row length.
    fn weight(&self, name: &str, tensors: &[StoredTensor<'_>]) -> Result<WeightMatrix> {
        let out: usize = tensors.iter().map(|t| t.shape[0]).sum();
        let row = tensors[0].shape[1];
        let made = match self.options.dtype {
            WeightDtype::Stored => {
                let format = tensors[0].format;
                let blocks =
                    |bytes: &[u8]| WeightMatrix::from_blocks(format, bytes, out, row, self.device);
                match tensors {
                    [one] => blocks(&one.bytes),
                    many => blocks(
                        &many
                            .iter()
                            .map(|t| &t.bytes[..])
                            .collect::<Vec<_>>()
                            .concat(),
                    ),
                }
            }
            dtype => {
                let mut values = Vec::with_capacity(out * row);
                for tensor in tensors {
                    values.extend(self.values(tensor, name)?);
                }
                if dtype == WeightDtype::Bf16 {
                    let bytes: Vec<u8> = values
                        .iter()
                        .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
                        .collect();
                    WeightMatrix::from_blocks(BlockFormat::BF16, &bytes, out, row, self.device)
                } else {
                    WeightMatrix::from_f32(values, out, row, self.device)
                }
            }
        };
        made.map(|weight| weight.with_activations(self.options.activations))
            .map_err(|source| self.refused(name, source))
    }
}

impl Projections<1> {
    /// The matrix of a single map.
    fn into_weights(self) -> [WeightMatrix; 1] {
        let mut groups = self.groups.into_iter();
        std::array::from_fn(|_| groups.next().expect("one map makes one group").weight)
    }
}
