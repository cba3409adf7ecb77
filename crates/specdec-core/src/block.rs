//! The tokens of one pass, all rows packed one after the other.

use crate::{SeqId, Token};
use burn::prelude::*;
use std::ops::Range;
use std::sync::OnceLock;

/// One row of a pass: `len` consecutive tokens of a sequence, the first at position `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    /// The sequence this row belongs to.
    pub seq: SeqId,
    /// Position (= content index) of the row's first token.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
}

/// The `T` tokens one pass computes, with their positions; rows of different lengths lie one after
/// the other, so that linear layers see exactly `T` tokens and only attention knows rows.
#[derive(Debug)]
pub struct Block {
    tokens: Vec<Token>,
    positions: Vec<usize>,
    rows: Vec<RowSpan>,
    device: Device,
    token_tensor: OnceLock<Tensor<1, Int>>,
    position_tensor: OnceLock<Tensor<1, Int>>,
}

impl Block {
    /// An empty block whose tensors will be made on `device`.
    pub fn new(device: &Device) -> Self {
        Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            rows: Vec::new(),
            device: device.clone(),
            token_tensor: OnceLock::new(),
            position_tensor: OnceLock::new(),
        }
    }

    /// A block of one row.
    pub fn single(seq: SeqId, start: usize, tokens: &[Token], device: &Device) -> Self {
        let mut block = Self::new(device);
        block.push(seq, start, tokens);
        block
    }

    /// Appends a row.
    pub fn push(&mut self, seq: SeqId, start: usize, tokens: &[Token]) {
        self.token_tensor = OnceLock::new();
        self.position_tensor = OnceLock::new();
        self.rows.push(RowSpan {
            seq,
            start,
            len: tokens.len(),
        });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(start..start + tokens.len());
    }

    /// The tokens, `[T]`.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Each token's position in its own sequence, `[T]`.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// The rows in packing order.
    pub fn rows(&self) -> &[RowSpan] {
        &self.rows
    }

    /// `T`.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Where each row's tokens lie in the block.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.rows.iter().scan(0, |at, row| {
            let from = *at;
            *at += row.len;
            Some(from..*at)
        })
    }

    /// The device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The tokens on the device, `[T]`; made once.
    pub fn token_tensor(&self) -> Tensor<1, Int> {
        self.token_tensor
            .get_or_init(|| ints(self.tokens.iter().map(|&t| i64::from(t)), &self.device))
            .clone()
    }

    /// The positions on the device, `[T]`; made once.
    pub fn position_tensor(&self) -> Tensor<1, Int> {
        self.position_tensor
            .get_or_init(|| ints(self.positions.iter().map(|&p| p as i64), &self.device))
            .clone()
    }
}

fn ints(values: impl Iterator<Item = i64>, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.collect();
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}
