use burn::{
    backend::DispatchDevice,
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use rayon::prelude::*;

use super::{super::DeviceWeight, Packing, WordOps};
use crate::{
    BlockFormat,
    cube::{Ours, float, int, is_ours, tensor},
    quant::Unpacked,
};

/// Rows from which on a product makes the weight's values first.
const MANY: usize = 17;

/// A weight of quantised blocks: words of quants, and for each group of values a scale, and a minimum in some formats.
pub(in crate::matmul) struct Words {
    /// `[N, K / per_word]`.
    words: Tensor<2, Int>,
    /// `[N, K / group, 1 or 2]`, f32.
    scales: Tensor<3>,
    packing: Packing,
    /// The type of [`rows`](Self::rows).
    dtype: DType,
}

impl Words {
    /// Packs ggml blocks, row-major, K a whole number of blocks. `None` for formats without quants, and for devices
    /// without the kernels.
    pub(in crate::matmul) fn new(
        format: BlockFormat,
        bytes: &[u8],
        dims: [usize; 2],
        device: &Device,
    ) -> Option<Self> {
        match device.as_dispatch() {
            DispatchDevice::Cube(_) if is_ours() => {}
            #[allow(unreachable_patterns, reason = "the only variant of some builds")]
            _ => return None,
        }
        let (bits, offset) = match format {
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => return None,
            BlockFormat::Q4_0 | BlockFormat::Q3K => (4, 8),
            BlockFormat::Q4_1 | BlockFormat::Q2K | BlockFormat::Q4K => (4, 0),
            BlockFormat::Q8_0
            | BlockFormat::Q5_0
            | BlockFormat::Q5_1
            | BlockFormat::Q5K
            | BlockFormat::Q6K => (8, 128),
        };
        let packing = Packing {
            bits,
            offset,
            group: Unpacked::group_len(format),
            minima: Unpacked::has_minima(format),
        };
        let (words, scales) = pack(format, bytes, packing);
        let [outputs, inputs] = dims;
        let words = TensorData::new(words, [outputs, inputs / packing.per_word()]);
        let parts = 1 + usize::from(packing.minima);
        let scales = TensorData::new(scales, [outputs, inputs / packing.group, parts]);
        Some(Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            scales: Tensor::from_data(scales, (device, DType::F32)),
            packing,
            dtype: device.settings().float_dtype.into(),
        })
    }

    /// The product of a few rows, unless they are tracked for autodiff.
    fn few_rows(&self, x: &Tensor<2>) -> Option<Tensor<2>> {
        let (words, scales) = (int(self.words.clone())?, float(self.scales.clone())?);
        tensor(Ours::few_rows(
            float(x.clone())?,
            words,
            scales,
            self.packing,
        ))
    }

    fn all(&self) -> Tensor<1, Int> {
        Tensor::arange(0..self.dims()[0] as i64, &self.device())
    }

    fn values(&self, ids: Tensor<1, Int>, dtype: DType) -> Tensor<2> {
        let unpack = || {
            let (words, scales) = (int(self.words.clone())?, float(self.scales.clone())?);
            // Ids of an autodiff device are moved.
            let ids = int(ids.clone()).or_else(|| {
                let moved = Tensor::from_data(ids.into_data(), &self.device());
                int::<1>(moved)
            });
            tensor(Ours::unpack_rows(words, scales, ids?, self.packing, dtype))
        };
        unpack().expect("a weight and ids of one device, of the backend that `new` found")
    }
}

impl DeviceWeight for Words {
    fn dims(&self) -> [usize; 2] {
        let [outputs, words] = self.words.dims();
        [outputs, words * self.packing.per_word()]
    }

    fn device(&self) -> Device {
        self.words.device()
    }

    fn matmul(&self, x: Tensor<2>) -> Tensor<2> {
        let known = matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
        if x.dims()[0] < MANY
            && known
            && let Some(product) = self.few_rows(&x)
        {
            return product;
        }
        let weight = self.values(self.all(), x.dtype());
        x.matmul(weight.transpose())
    }

    fn rows(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.values(ids, self.dtype)
    }

    fn to_dense(&self) -> Tensor<2> {
        self.values(self.all(), DType::F32)
    }

    fn memory_bytes(&self) -> usize {
        let numbers = self.words.dims().iter().product::<usize>();
        (numbers + self.scales.dims().iter().product::<usize>()) * size_of::<u32>()
    }
}

/// Words and scales of blocks, in the order of the values.
fn pack(format: BlockFormat, bytes: &[u8], packing: Packing) -> (Vec<u32>, Vec<f32>) {
    let (len, size) = (format.block_len(), format.block_bytes());
    let per = packing.per_word();
    let parts = 1 + usize::from(packing.minima);
    let blocks = bytes.len() / size;
    let mut words = vec![0; blocks * len / per];
    let mut scales = vec![0.0; blocks * len / packing.group * parts];
    words
        .par_chunks_mut(len / per)
        .zip(scales.par_chunks_mut(len / packing.group * parts))
        .zip(bytes.par_chunks(size))
        .for_each_init(Unpacked::new, |block, ((words, scales), raw)| {
            block.read(format, raw);
            for (word, quants) in words.iter_mut().zip(block.quants.chunks(per)) {
                *word = quants.iter().rev().fold(0, |word: u32, &quant| {
                    let quant = (i32::from(quant) + packing.offset as i32) as u32;
                    (word << packing.bits) | quant
                });
            }
            let groups = block.scales.iter().zip(&block.minima);
            for (stored, (scale, minimum)) in scales.chunks_mut(parts).zip(groups) {
                for (stored, value) in stored.iter_mut().zip([scale, minimum]) {
                    *stored = *value;
                }
            }
        });
    (words, scales)
}
