//! How ggml stores tensors.

use specdec_kernels::BlockFormat;
use std::fmt;

/// The storage type of a tensor in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgmlType(u32);

/// Names of the ids that were ever given out, removed ones left out.
const NAMES: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (30, "BF16"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

impl GgmlType {
    /// The type with ggml's number `id`.
    pub fn from_id(id: u32) -> Self {
        Self(id)
    }

    /// ggml's number of the type.
    pub fn id(self) -> u32 {
        self.0
    }

    /// The type of a format the kernels read.
    pub fn of(format: BlockFormat) -> Self {
        let known = NAMES.iter().find(|(_, name)| *name == format.name());
        Self(known.map_or(u32::MAX, |(id, _)| *id))
    }

    /// The format the kernels know the type by, if they do.
    pub fn format(self) -> Option<BlockFormat> {
        let (_, name) = NAMES.iter().find(|(id, _)| *id == self.0)?;
        BlockFormat::ALL.into_iter().find(|f| f.name() == *name)
    }

    /// Values and bytes of one block, for the types whose size is known here.
    pub(super) fn block(self) -> Option<(usize, usize)> {
        if let Some(format) = self.format() {
            return Some((format.block_len(), format.block_bytes()));
        }
        match self.0 {
            24 => Some((1, 1)),
            25 => Some((1, 2)),
            26 => Some((1, 4)),
            27 | 28 => Some((1, 8)),
            _ => None,
        }
    }
}

impl fmt::Display for GgmlType {
    /// ggml's name, or `type N` for a number without one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(id, _)| *id == self.0) {
            Some((_, name)) => f.pad(name),
            None => write!(f, "type {}", self.0),
        }
    }
}
