//! One step of block-parallel drafting for all rows, shared by both drafters.

use crate::attention::{HIDDEN, one_block};
use crate::calibration::prefix;
use crate::candidates::{Candidates, top_candidates};
use crate::choice::Choice;
use crate::config::LayerKind;
use crate::context::{Context, Drafted};
use crate::draft_model::DraftModel;
use crate::error::{DraftModelError, Result};
use crate::fit::check;
use crate::frozen::{ids, numbers, output_rows};
use crate::head::HeadInput;
use crate::lattice::Lattice;
use crate::positions::Angles;
use crate::statistics::PrefixStatistics;
use burn::prelude::*;
use half::f16;
use specdec_core::{
    Draft, DraftContext, DraftRow, Error, ModelSpec, Observation, Phase, RowDraft, SeqId,
    TargetModel, Token,
};
use specdec_kernels::{BlockFormat, WeightMatrix};
use std::collections::HashMap;

pub(crate) struct Engine {
    model: DraftModel,
    /// The output map of the draft vocabulary, where it is another than the target's.
    reduced: Option<WeightMatrix>,
    spec: ModelSpec,
    slots: usize,
    candidates: usize,
    pub(crate) choice: Choice,
    pub(crate) statistics: PrefixStatistics,
    contexts: HashMap<SeqId, Context>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("config", self.model.config())
            .field("slots", &self.slots)
            .field("candidates", &self.candidates)
            .field("sequences", &self.contexts.len())
            .finish_non_exhaustive()
    }
}

fn drafter_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Drafter(Box::new(error))
}

impl Engine {
    pub(crate) fn new(
        model: DraftModel,
        target: &dyn TargetModel,
        candidates: usize,
    ) -> Result<Self> {
        let spec = target.spec().clone();
        check(&model, &spec)?;
        let config = model.config();
        let width = target
            .logits(Tensor::zeros([1, spec.hidden], &spec.device))
            .dims()[1];
        let mask = config.mask_token as usize;
        if mask >= width.max(spec.vocab) {
            return Err(DraftModelError::invalid(
                "dflash_config.mask_token_id",
                mask,
                "a row of the target's embedding table is needed",
            ));
        }
        let reduced = match &config.draft_vocab {
            None => None,
            Some(kept) if kept.last().is_some_and(|&t| t as usize >= width) => {
                let what = format!("token {:?} has no logit among {width}", kept.last());
                return Err(DraftModelError::DraftVocabulary(what));
            }
            Some(kept) => {
                let rows = numbers(output_rows(target, Some(kept))?)?;
                // Drafts need no more precision, and half of the memory is read in half of the time.
                let bytes: Vec<u8> = rows
                    .into_iter()
                    .flat_map(|value| f16::from_f32(value).to_le_bytes())
                    .collect();
                let (format, dims) = (BlockFormat::F16, [kept.len(), spec.hidden]);
                let map = WeightMatrix::from_blocks(format, &bytes, dims[0], dims[1], &spec.device);
                Some(map.map_err(|e| DraftModelError::DraftVocabulary(e.to_string()))?)
            }
        };
        Ok(Self {
            slots: config.slots(),
            candidates: candidates.clamp(1, config.draft_vocab_len().min(spec.vocab)),
            reduced,
            spec,
            choice: Choice::default(),
            statistics: PrefixStatistics::default(),
            contexts: HashMap::new(),
            model: model.prepared(),
        })
    }

    pub(crate) fn model(&self) -> &DraftModel {
        &self.model
    }

    /// Sets the rows of a block, cut to what the network was trained with.
    pub(crate) fn set_block_size(&mut self, rows: usize) {
        self.slots = rows.saturating_sub(1).clamp(1, self.model.config().slots());
    }

    pub(crate) fn block_size(&self) -> usize {
        self.slots + 1
    }

    pub(crate) fn positions(&self, seq: SeqId) -> &[usize] {
        self.contexts.get(&seq).map_or(&[], Context::positions)
    }

    pub(crate) fn evict(&mut self, seq: SeqId) {
        self.contexts.remove(&seq);
    }

    /// Takes in the features of what a pass committed.
    pub(crate) fn observe(&mut self, observation: &Observation<'_>) -> specdec_core::Result<()> {
        if observation.phase == Phase::Verify {
            self.count(observation);
        }
        let config = self.model.config();
        let device = &self.spec.device;
        let rows: Vec<_> = observation
            .rows
            .iter()
            .filter(|row| !row.committed.is_empty())
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        if observation.taps.len() != config.taps.len() {
            let what = format!(
                "{} hidden states for {} taps",
                observation.taps.len(),
                config.taps.len()
            );
            return Err(Error::Drafter(what.into()));
        }
        let places = rows.iter().flat_map(|row| row.committed.clone());
        let places = ids(places.map(|p| p as i64), device);
        let taps = observation
            .taps
            .iter()
            .map(|tap| tap.clone().select(0, places.clone()))
            .collect();
        let features = self.model.fuse(Tensor::cat(taps, 1));
        let positions = rows
            .iter()
            .flat_map(|row| row.start..row.start + row.committed.len());
        let at = Angles::new(positions, config.head_dim, config.rope_theta, device);
        let layers: Vec<_> = (0..config.layers.len())
            .map(|layer| self.model.context(layer, features.clone(), &at))
            .collect();
        let mut from = 0;
        for row in rows {
            let count = row.committed.len();
            let part = |x: &Tensor<3>| x.clone().narrow(0, from, count);
            let entries = layers.iter().map(|(k, v)| (part(k), part(v))).collect();
            let newest = ids(std::iter::once((from + count - 1) as i64), device);
            let last = features.clone().select(0, newest);
            let context = self.contexts.entry(row.seq).or_default();
            context.append(row.start, entries, last);
            from += count;
        }
        Ok(())
    }

    /// Compares the drafts of the last round with what was emitted.
    fn count(&mut self, observation: &Observation<'_>) {
        let mut counts = self.statistics.lock();
        for row in observation.rows {
            let Some(context) = self.contexts.get_mut(&row.seq) else {
                continue;
            };
            let drafted = context.drafted.take().filter(|d| d.anchor == row.start);
            let Some(drafted) = drafted.filter(|d| !d.tokens.is_empty() && row.drafted > 0) else {
                continue;
            };
            let truth = row.tokens.get(drafted.anchor + 1..).unwrap_or_default();
            let slots = drafted.tokens.len().min(row.drafted);
            counts.blocks += 1;
            counts.drafted += slots as u64;
            let length = |right: &dyn Fn(usize, Token) -> bool| prefix(truth, slots, right) as u64;
            counts.selected += length(&|slot, token| drafted.tokens[slot] == token);
            counts.oracle += length(&|slot, token| drafted.ids[slot].contains(&token));
            counts.top1 += length(&|slot, token| drafted.ids[slot].first() == Some(&token));
        }
    }

    pub(crate) fn draft(&mut self, cx: &DraftContext<'_>) -> specdec_core::Result<Draft> {
        let mut rows = vec![RowDraft::default(); cx.rows.len()];
        let ready: Vec<usize> = (0..cx.rows.len())
            .filter(|&i| self.is_ready(&cx.rows[i]))
            .collect();
        if ready.is_empty() {
            return Ok(Draft { rows });
        }
        let asked: Vec<&DraftRow<'_>> = ready.iter().map(|&i| &cx.rows[i]).collect();
        let lattices = self.lattices(&asked, cx.target).map_err(drafter_error)?;
        for ((i, row), lattice) in ready.into_iter().zip(asked).zip(lattices) {
            let draft = self.choice.draft(row, &lattice, self.spec.vocab);
            if let Some(context) = self.contexts.get_mut(&row.seq) {
                context.drafted = Some(Drafted {
                    anchor: row.tokens.len() - 1,
                    ids: lattice.ids,
                    tokens: draft.tokens.clone(),
                });
            }
            rows[i] = draft;
        }
        Ok(Draft { rows })
    }

    /// Whether the features that a draft starts from are known.
    fn is_ready(&self, row: &DraftRow<'_>) -> bool {
        let Some(anchor) = row.tokens.len().checked_sub(1) else {
            return false;
        };
        match self.contexts.get(&row.seq) {
            Some(context) => context.reaches(anchor),
            None => anchor == 0,
        }
    }

    /// The candidates after each row's anchor.
    pub(crate) fn lattices(
        &self,
        rows: &[&DraftRow<'_>],
        target: &dyn TargetModel,
    ) -> Result<Vec<Lattice>> {
        let (slots, k) = (self.slots, self.candidates);
        let hidden = self.hidden(rows, target);
        let values = numbers(self.draft_logits(hidden.clone(), target))?;
        let width = values.len() / (rows.len() * slots);
        let usable = self.reduced.as_ref().map_or(self.spec.vocab, |_| width);
        let best: Vec<Candidates> = values
            .chunks(width)
            .map(|logits| top_candidates(&logits[..usable.min(width)], k))
            .collect();
        let kept = self.model.config().draft_vocab.as_deref();
        let token = |id: &u32| kept.map_or(*id, |kept| kept[*id as usize]);
        let mut lattices: Vec<Lattice> = best
            .chunks(slots)
            .map(|block| {
                let ids = block.iter().map(|c| c.ids.iter().map(token).collect());
                let logprobs = block.iter().map(|c| c.logprobs.clone());
                Lattice::independent(ids.collect(), logprobs.collect())
            })
            .collect();
        if self.model.lilicorr.is_some() {
            self.score(&mut lattices, rows, hidden, target)?;
        }
        Ok(lattices)
    }

    /// Final hidden states of the drafted slots, `[R * S, D]`.
    fn hidden(&self, rows: &[&DraftRow<'_>], target: &dyn TargetModel) -> Tensor<2> {
        let config = self.model.config();
        let device = &self.spec.device;
        let size = self.slots + 1;
        let mask = i64::from(config.mask_token);
        let tokens = rows.iter().flat_map(|row| {
            let anchor = row.tokens.last().copied().map_or(mask, i64::from);
            std::iter::once(anchor).chain(std::iter::repeat_n(mask, size - 1))
        });
        let embedded = target.embed(ids(tokens, device));
        let anchors: Vec<usize> = rows.iter().map(|row| row.tokens.len() - 1).collect();
        let positions = anchors.iter().flat_map(|&a| a..a + size);
        let at = Angles::new(positions, config.head_dim, config.rope_theta, device);
        let hidden = self.model.forward(embedded, &at, &mut |layer, all| {
            let parts = rows.iter().zip(&anchors).enumerate().map(|(i, (row, &a))| {
                let part = |x: &Tensor<3>| x.clone().narrow(0, i * size, size);
                let block = crate::attention::Projected {
                    q: part(&all.q),
                    k: part(&all.k),
                    v: part(&all.v),
                };
                let context = self.contexts.get(&row.seq);
                let hide = context.and_then(|c| self.hide(layer, c.positions(), a));
                one_block(block, context.and_then(|c| c.entries(layer)), hide)
            });
            Tensor::cat(parts.collect(), 0)
        });
        let drafted = (0..rows.len()).flat_map(|r| (1..size).map(move |j| (r * size + j) as i64));
        hidden.select(0, ids(drafted, device))
    }

    /// What hides positions outside of a layer's window from block rows, `[bs, n]`.
    fn hide(&self, layer: usize, positions: &[usize], anchor: usize) -> Option<Tensor<2>> {
        let LayerKind::Sliding(window) = self.model.config().layers[layer] else {
            return None;
        };
        let size = self.slots + 1;
        if positions
            .first()
            .is_none_or(|&p| anchor + size - 1 - p < window)
        {
            return None;
        }
        let hide: Vec<f32> = (anchor..anchor + size)
            .flat_map(|t| positions.iter().map(move |&p| (t, p)))
            .map(|(t, p)| if t - p < window { 0.0 } else { HIDDEN })
            .collect();
        let shape = [size, positions.len()];
        Some(Tensor::from_data(
            TensorData::new(hide, shape),
            &self.spec.device,
        ))
    }

    fn draft_logits(&self, hidden: Tensor<2>, target: &dyn TargetModel) -> Tensor<2> {
        match &self.reduced {
            Some(map) => map.matmul(hidden),
            None => target.logits(hidden),
        }
    }

    /// Replaces the scores of lattices by the head's.
    fn score(
        &self,
        lattices: &mut [Lattice],
        rows: &[&DraftRow<'_>],
        hidden: Tensor<2>,
        target: &dyn TargetModel,
    ) -> Result<()> {
        let Some(head) = &self.model.lilicorr else {
            return Ok(());
        };
        let device = &self.spec.device;
        let (r, s, k) = (lattices.len(), self.slots, self.candidates);
        let tokens = lattices.iter().flat_map(|l| l.ids.iter().flatten());
        let embeddings = target.embed(ids(tokens.map(|&t| i64::from(t)), device));
        let logprobs: Vec<f32> = lattices
            .iter()
            .flat_map(|l| l.logprobs.iter().flatten().copied())
            .collect();
        let mut valid = Vec::with_capacity(r);
        let anchors = rows.iter().map(|row| {
            let last = self.contexts.get(&row.seq).and_then(|c| c.last.clone());
            let known = last.filter(|_| row.tokens.len() > 1);
            valid.push(f32::from(u8::from(known.is_some())));
            known.unwrap_or_else(|| Tensor::zeros([1, self.spec.hidden], device))
        });
        let anchor = Tensor::cat(anchors.collect(), 0);
        let scores = head.forward(HeadInput {
            logprobs: Tensor::from_data(TensorData::new(logprobs, [r, s, k]), device),
            embeddings,
            hidden,
            anchor,
            valid: Tensor::from_data(TensorData::new(valid, [r, 1]), device),
        });
        let start = scores.start.reshape([r, k]);
        let all = match scores.pairs {
            Some(pairs) => Tensor::cat(vec![start, pairs.reshape([r, (s - 1) * k * k])], 1),
            None => start,
        };
        let all = numbers(all)?;
        for (lattice, numbers) in lattices.iter_mut().zip(all.chunks(k + (s - 1) * k * k)) {
            let (start, pairs) = numbers.split_at(k);
            lattice.start = start.to_vec();
            lattice.pairs = pairs
                .chunks(k * k)
                .map(|slot| slot.chunks(k).map(<[f32]>::to_vec).collect())
                .collect();
        }
        Ok(())
    }
}
