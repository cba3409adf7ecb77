//! One block taken apart: small integers, and for each group of them a scale and a minimum.
//!
//! Every quantised format of ggml comes to `value = scale * quant + minimum` over groups of 16 or 32
//! values. The scales are formed here exactly as ggml forms them; the product `scale * quant` needs at most
//! 22 bits wherever a minimum is added, so it is exact and a fused multiply-add gives the same value as a
//! multiplication and an addition.

use half::f16;

use super::BlockFormat;

/// A block of up to 256 values taken apart.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The integers, the offset of the format already subtracted.
    pub(crate) quants: [i8; 256],
    /// One scale for each group.
    pub(crate) scales: [f32; 16],
    /// One minimum for each group, zero where the format has none.
    pub(crate) minima: [f32; 16],
}

impl Unpacked {
    pub(crate) const fn new() -> Self {
        Self {
            quants: [0; 256],
            scales: [0.0; 16],
            minima: [0.0; 16],
        }
    }

    /// Values that share a scale.
    pub(crate) const fn group_len(format: BlockFormat) -> usize {
        match format {
            BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Q6K => 16,
            _ => 32,
        }
    }

    /// Whether a minimum is added to the products.
    pub(crate) const fn has_minima(format: BlockFormat) -> bool {
        matches!(
            format,
            BlockFormat::Q4_1
                | BlockFormat::Q5_1
                | BlockFormat::Q2K
                | BlockFormat::Q4K
                | BlockFormat::Q5K
        )
    }

    /// Takes apart one block of a quantised format. `block` is `format.block_bytes()` long; the float
    /// formats have no quants and leave everything as it was.
    pub(crate) fn read(&mut self, format: BlockFormat, block: &[u8]) {
        debug_assert_eq!(block.len(), format.block_bytes());
        match format {
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => {}
            BlockFormat::Q8_0 => {
                self.head(half(block, 0), 0.0);
                for (quant, &byte) in self.quants.iter_mut().zip(&block[2..34]) {
                    *quant = byte as i8;
                }
            }
            BlockFormat::Q4_0 => {
                self.head(half(block, 0), 0.0);
                self.nibbles(&block[2..18], 0, 8);
            }
            BlockFormat::Q4_1 => {
                self.head(half(block, 0), half(block, 2));
                self.nibbles(&block[4..20], 0, 0);
            }
            BlockFormat::Q5_0 => {
                self.head(half(block, 0), 0.0);
                self.nibbles(&block[6..22], word(block, 2), 16);
            }
            BlockFormat::Q5_1 => {
                self.head(half(block, 0), half(block, 2));
                self.nibbles(&block[8..24], word(block, 4), 0);
            }
            BlockFormat::Q2K => self.q2k(block),
            BlockFormat::Q3K => self.q3k(block),
            BlockFormat::Q4K => self.q4k(block, &[0; 32], &block[16..144]),
            BlockFormat::Q5K => {
                let mut high = [0; 32];
                high.copy_from_slice(&block[16..48]);
                self.q4k(block, &high, &block[48..176]);
            }
            BlockFormat::Q6K => self.q6k(block),
        }
    }

    fn head(&mut self, scale: f32, minimum: f32) {
        self.scales[0] = scale;
        self.minima[0] = minimum;
    }

    /// 16 bytes hold values j (low half) and j + 16 (high half); `high` holds their fifth bits.
    fn nibbles(&mut self, bytes: &[u8], high: u32, offset: i8) {
        for (j, &byte) in bytes.iter().enumerate() {
            let fifth = |value: usize| (((high >> value) & 1) << 4) as i8;
            self.quants[j] = ((byte & 15) as i8 | fifth(j)) - offset;
            self.quants[j + 16] = ((byte >> 4) as i8 | fifth(j + 16)) - offset;
        }
    }

    fn q2k(&mut self, block: &[u8]) {
        let (scales, quants) = (&block[..16], &block[16..80]);
        let (scale, minimum) = (half(block, 80), half(block, 82));
        for (group, &packed) in scales.iter().enumerate() {
            self.scales[group] = scale * f32::from(packed & 15);
            self.minima[group] = -(minimum * f32::from(packed >> 4));
        }
        for (value, quant) in self.quants.iter_mut().enumerate() {
            let (part, shift, lane) = (value / 128, (value % 128) / 32 * 2, value % 32);
            *quant = ((quants[part * 32 + lane] >> shift) & 3) as i8;
        }
    }

    fn q3k(&mut self, block: &[u8]) {
        let (high, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
        let scale = half(block, 108);
        for group in 0..16 {
            // Low four bits in the first eight bytes (halves one after the other), high two in the last four.
            let low = (packed[group % 8] >> (group / 8 * 4)) & 15;
            let top = (packed[8 + group % 4] >> (group / 4 * 2)) & 3;
            self.scales[group] = scale * f32::from((low | (top << 4)) as i8 - 32);
            self.minima[group] = 0.0;
        }
        for (value, quant) in self.quants.iter_mut().enumerate() {
            let (part, line, lane) = (value / 128, (value % 128) / 32, value % 32);
            let low = ((quants[part * 32 + lane] >> (line * 2)) & 3) as i8;
            let set = (high[lane] >> (part * 4 + line)) & 1;
            *quant = low - if set == 1 { 0 } else { 4 };
        }
    }

    /// Q4_K, and Q5_K with the fifth bits in `high`.
    fn q4k(&mut self, block: &[u8], high: &[u8; 32], quants: &[u8]) {
        let (scale, minimum) = (half(block, 0), half(block, 2));
        let packed = &block[4..16];
        for group in 0..8 {
            let (sc, mn) = if group < 4 {
                (packed[group] & 63, packed[group + 4] & 63)
            } else {
                (
                    (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4),
                    (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4),
                )
            };
            self.scales[group] = scale * f32::from(sc);
            self.minima[group] = -(minimum * f32::from(mn));
        }
        for (value, quant) in self.quants.iter_mut().enumerate() {
            let (group, lane) = (value / 32, value % 32);
            let low = (quants[group / 2 * 32 + lane] >> (group % 2 * 4)) & 15;
            *quant = (low | (((high[lane] >> group) & 1) << 4)) as i8;
        }
    }

    fn q6k(&mut self, block: &[u8]) {
        let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let scale = half(block, 208);
        for (group, &byte) in scales.iter().enumerate() {
            self.scales[group] = scale * f32::from(byte as i8);
            self.minima[group] = 0.0;
        }
        for (value, quant) in self.quants.iter_mut().enumerate() {
            let (part, line, lane) = (value / 128, (value % 128) / 32, value % 32);
            let nibble = (low[part * 64 + line % 2 * 32 + lane] >> (line / 2 * 4)) & 15;
            let top = (high[part * 32 + lane] >> (line * 2)) & 3;
            *quant = (nibble | (top << 4)) as i8 - 32;
        }
    }
}

/// The little-endian f16 at byte `at`.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The little-endian u32 at byte `at`.
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
