//! The numbers of one step: texts, anchors, labels.

use crate::attention::{BatchShape, HIDDEN};
use crate::config::{DraftConfig, LayerKind};
use crate::named::Uniform;
use crate::train::store::StoredText;
use burn::prelude::*;
use std::collections::HashMap;

/// One step's texts, padded to the longest, with N blocks each.
pub(super) struct Batch {
    pub(super) shape: BatchShape,
    /// `[B * T, taps * D]`.
    pub(super) taps: Tensor<2>,
    /// Final hidden states of the target at each slot's predecessor, `[B * N * S, D]`.
    pub(super) target_hidden: Tensor<2>,
    /// Tokens of the blocks, `[B * N * bs]`.
    pub(super) tokens: Vec<i64>,
    /// Positions of their rows.
    pub(super) positions: Vec<usize>,
    /// What each layer may not see, `[B, N * bs, T]`; one for each kind of layer.
    pub(super) hide: HashMap<LayerKind, Tensor<3>>,
    /// The right draft token of each slot; `None` where it is no draft token or the block is padding.
    pub(super) labels: Vec<Option<usize>>,
    /// Row of each block's anchor feature among `[B * T]`.
    pub(super) anchor_rows: Vec<i64>,
    /// Which blocks are real.
    pub(super) real: Vec<bool>,
}

/// The anchors of a text: at most `count` of those behind the prompt with a whole block of text after
/// them, without repetition, ascending.
pub(super) fn anchors(
    tokens: usize,
    prompt: usize,
    block_size: usize,
    count: usize,
    draws: &mut Uniform,
) -> Vec<usize> {
    let Some(last) = tokens.checked_sub(block_size) else {
        return Vec::new();
    };
    let mut legal: Vec<usize> = (prompt..=last).collect();
    let take = count.min(legal.len());
    for i in 0..take {
        let other = i + (draws.next() * (legal.len() - i) as f64) as usize;
        let last = legal.len() - 1;
        legal.swap(i, other.min(last));
    }
    legal.truncate(take);
    legal.sort_unstable();
    legal
}

impl Batch {
    /// `anchors[b]` are the anchors of text b; `draft_id` gives the draft vocabulary's id of a token.
    pub(super) fn new(
        config: &DraftConfig,
        texts: &[StoredText],
        anchors: &[Vec<usize>],
        draft_id: &dyn Fn(u32) -> Option<usize>,
        device: &Device,
    ) -> Self {
        let (bs, d) = (config.block_size, config.hidden);
        let longest = texts.iter().map(|t| t.tokens.len()).max().unwrap_or(1);
        let blocks = anchors.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let shape = BatchShape {
            texts: texts.len(),
            tokens: longest,
            blocks,
            rows: bs,
        };
        let width = config.taps.len() * d;
        let mut taps = Vec::with_capacity(texts.len() * longest * width);
        let mut target_hidden = Vec::new();
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        let (mut labels, mut anchor_rows, mut real) = (Vec::new(), Vec::new(), Vec::new());
        for (b, (text, anchors)) in texts.iter().zip(anchors).enumerate() {
            taps.extend_from_slice(&text.taps);
            taps.resize((b + 1) * longest * width, 0.0);
            for n in 0..blocks {
                let anchor = anchors.get(n).copied();
                let a = anchor.unwrap_or(0);
                tokens.push(i64::from(text.tokens[a]));
                tokens.extend(std::iter::repeat_n(i64::from(config.mask_token), bs - 1));
                positions.extend(a..a + bs);
                anchor_rows.push((b * longest + a.saturating_sub(1)) as i64);
                real.push(anchor.is_some());
                for s in 0..bs - 1 {
                    let before = (a + s).min(text.tokens.len() - 1);
                    target_hidden.extend_from_slice(&text.hidden[before * d..(before + 1) * d]);
                    let label = anchor.and_then(|_| text.tokens.get(a + 1 + s));
                    labels.push(label.and_then(|&token| draft_id(token)));
                }
            }
        }
        let hide = config.layers.iter().map(|kind| {
            let hide = hidden_scores(*kind, &positions, &real, shape);
            let dims = [texts.len(), blocks * bs, longest];
            (
                *kind,
                Tensor::from_data(TensorData::new(hide, dims), device),
            )
        });
        let slots = target_hidden.len() / d;
        Self {
            hide: hide.collect(),
            taps: Tensor::from_data(
                TensorData::new(taps, [texts.len() * longest, width]),
                device,
            ),
            target_hidden: Tensor::from_data(TensorData::new(target_hidden, [slots, d]), device),
            shape,
            tokens,
            positions,
            labels,
            anchor_rows,
            real,
        }
    }
}

/// A block sees the positions strictly before its anchor, inside of the layer's window.
fn hidden_scores(
    kind: LayerKind,
    positions: &[usize],
    real: &[bool],
    shape: BatchShape,
) -> Vec<f32> {
    let mut hide = Vec::with_capacity(positions.len() * shape.tokens);
    for (block, rows) in positions.chunks(shape.rows).enumerate() {
        let anchor = if real[block] { rows[0] } else { 0 };
        for &t in rows {
            hide.extend((0..shape.tokens).map(|p| {
                let near = match kind {
                    LayerKind::Full => true,
                    LayerKind::Sliding(window) => t < p + window,
                };
                if p < anchor && near { 0.0 } else { HIDDEN }
            }));
        }
    }
    hide
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T15: a text with room for exactly one block has exactly one anchor.
    #[test]
    fn t15_room_for_one_block() {
        let mut draws = Uniform::new("test", 1);
        assert_eq!(anchors(10, 4, 6, 8, &mut draws), [4]);
        assert_eq!(anchors(9, 4, 6, 8, &mut draws), [0usize; 0]);
        assert_eq!(anchors(5, 4, 6, 8, &mut draws), [0usize; 0]);
        let many = anchors(60, 4, 6, 8, &mut draws);
        assert!(many.len() == 8 && many.windows(2).all(|p| p[0] < p[1]));
        assert!(many.iter().all(|a| (4..=54).contains(a)));
    }

    /// T11, T13 and T16: the example of two blocks three rows long at anchors 2 and 4 of a text of
    /// eight: a block sees what is strictly before its anchor.
    #[test]
    fn t11_t13_t16_a_block_sees_what_is_before_its_anchor() {
        let config = DraftConfig {
            hidden: 1,
            layers: vec![LayerKind::Full, LayerKind::Sliding(3)],
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            intermediate: 1,
            rms_eps: 1e-6,
            rope_theta: 10_000.0,
            vocab: 30,
            target_layers: 1,
            taps: vec![0],
            mask_token: 29,
            block_size: 3,
            draft_vocab: None,
            head: None,
        };
        let text = StoredText {
            tokens: (10..18).collect(),
            prompt_len: 1,
            taps: vec![0.0; 8],
            hidden: (0..8).map(|i| i as f32).collect(),
        };
        let device = Device::flex();
        let id = |t: u32| Some(t as usize);
        let batch = Batch::new(&config, &[text], &[vec![2, 4]], &id, &device);
        assert_eq!(batch.tokens, [12, 29, 29, 14, 29, 29]);
        assert_eq!(batch.positions, [2, 3, 4, 4, 5, 6]);
        let labels: Vec<_> = batch
            .labels
            .iter()
            .map(|l| l.expect("supervised"))
            .collect();
        assert_eq!(labels, [13, 14, 15, 16]);
        assert_eq!(batch.anchor_rows, [1, 3]);
        let before = batch.target_hidden.into_data().try_into_vec_as::<f32>();
        assert_eq!(before.expect("f32"), [2.0, 3.0, 4.0, 5.0]);
        let seen = |kind: LayerKind| -> Vec<Vec<usize>> {
            let hide = batch.hide[&kind].clone().into_data();
            let hide = hide.try_into_vec_as::<f32>().expect("f32");
            let see = |row: &[f32]| (0..8).filter(|&p| row[p] == 0.0).collect();
            hide.chunks(8).map(see).collect()
        };
        let full = [vec![0, 1], vec![0, 1], vec![0, 1]];
        assert_eq!(seen(LayerKind::Full)[..3], full);
        assert_eq!(
            seen(LayerKind::Full)[3..],
            [vec![0, 1, 2, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3]]
        );
        let sliding = [vec![0, 1], vec![1], vec![], vec![2, 3], vec![3], vec![]];
        assert_eq!(seen(LayerKind::Sliding(3)), sliding);
    }
}
