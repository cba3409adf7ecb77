use core::fmt;

/// How a weight's values are stored, named as ggml names them.
///
/// A block is the smallest unit that stands for itself: [`block_len`](Self::block_len) values in
/// [`block_bytes`](Self::block_bytes) bytes. Rows of a matrix are whole numbers of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// 32 signed bytes and one f16 scale.
    Q8_0,
    /// 32 values of 4 bits around zero, one f16 scale.
    Q4_0,
    /// 32 values of 4 bits, an f16 scale and an f16 minimum.
    Q4_1,
    /// 32 values of 5 bits around zero, one f16 scale.
    Q5_0,
    /// 32 values of 5 bits, an f16 scale and an f16 minimum.
    Q5_1,
    /// 256 values of 2 bits; 16 groups with 4-bit scales and minima.
    Q2K,
    /// 256 values of 3 bits around zero; 16 groups with 6-bit scales.
    Q3K,
    /// 256 values of 4 bits; 8 groups with 6-bit scales and minima.
    Q4K,
    /// 256 values of 5 bits; 8 groups with 6-bit scales and minima.
    Q5K,
    /// 256 values of 6 bits around zero; 16 groups with 8-bit scales.
    Q6K,
}

impl BlockFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Values in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// ggml's name of the format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
