use half::{bf16, f16};

use super::{BlockFormat, unpack::Unpacked};
use crate::KernelError;

/// Writes the exact values of a run of ggml blocks, f32, in storage order.
///
/// `out` has `bytes.len() / block_bytes * block_len` places. The values are those of ggml's reference
/// `dequantize_row_*` functions, to the bit.
///
/// # Errors
///
/// [`KernelError::Length`] when `bytes` is no whole number of blocks or `out` has another length.
pub fn dequantize(format: BlockFormat, bytes: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
    let (block_len, block_bytes) = (format.block_len(), format.block_bytes());
    let expected = out.len() / block_len * block_bytes;
    if !out.len().is_multiple_of(block_len) || bytes.len() != expected {
        let blocks = bytes.len() / block_bytes;
        return Err(if bytes.len().is_multiple_of(block_bytes) {
            KernelError::Length {
                what: "values of the blocks given",
                expected: blocks * block_len,
                got: out.len(),
            }
        } else {
            KernelError::Length {
                what: "bytes of whole blocks",
                expected: blocks * block_bytes,
                got: bytes.len(),
            }
        });
    }
    match format {
        BlockFormat::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*raw);
            }
        }
        BlockFormat::F16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*raw).to_f32();
            }
        }
        BlockFormat::BF16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::from_le_bytes(*raw).to_f32();
            }
        }
        _ => {
            let group_len = Unpacked::group_len(format);
            let minima = Unpacked::has_minima(format);
            let mut block = Unpacked::new();
            let blocks = bytes.chunks_exact(block_bytes);
            for (values, raw) in out.chunks_exact_mut(block_len).zip(blocks) {
                block.read(format, raw);
                for (group, values) in values.chunks_exact_mut(group_len).enumerate() {
                    let quants = &block.quants[group * group_len..][..group_len];
                    for (value, &quant) in values.iter_mut().zip(quants) {
                        let product = block.scales[group] * f32::from(quant);
                        // Without the branch a negative zero would lose its sign.
                        *value = match minima {
                            true => product + block.minima[group],
                            false => product,
                        };
                    }
                }
            }
        }
    }
    Ok(())
}
