//! Costs measured on the device and with the parts at hand.

use super::calibration_options::CalibrationOptions;
use super::drafted::{Drafted, Price, seconds};
use super::fit::{fit, stride};
use super::samples::Samples;
use super::table::{CostTable, Line, Measurements, PrefillCosts, SourceCosts};
use crate::error::{RakvError, Result};
use crate::store::HostSegment;
use crate::taps::Taps;
use burn::prelude::*;
use burn::tensor::Distribution;
use specdec_core::sampling::Sampler;
use specdec_core::{
    Block, CacheError, DraftContext, DraftRow, Drafter, Error, Greedy, KvCache, KvSegment,
    Observation, ObservedRow, Phase, SamplingParams, SeqId, TargetModel, Token,
};
use std::sync::Arc;
use std::time::Instant;

/// What was measured, and how steadily.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Calibrated {
    /// The costs.
    pub table: CostTable,
    /// Share of the passes that took far longer than their cell's median and were left out.
    pub dropped: f64,
    /// Whether more than 5 % were.
    pub noisy: bool,
}

/// Measures what verify passes, drafts, catching up, prefill and restoring cost.
///
/// Every pass ends with its result read on the host. The cells of one number of rows and one context
/// take turns, so that a drift of the machine meets all alike; each cell is the median of its passes
/// after a warm-up, without those beyond five deviations. Cache and drafters are left as they were:
/// sequences of names from `u64::MAX` downwards are used and evicted.
///
/// As in a decoder, drafters draft behind a verify pass that committed something, which they take in
/// first: a token, and half of the draft where the model's context has room for that. Contexts grow
/// thereby, from those asked for on. Passes tap what the drafters want, and the drafters observe every
/// committed position. The text repeats itself, so that there is something to draft for those that look things
/// up in it. A pass whose drafts came back shorter than asked counts as if it had gone on to the full
/// length at the same seconds a token; a pass that drafted nothing says nothing of what drafts cost.
/// Where that were more than half of a cell's passes, the cell is charged the dearest drafted token
/// of the drafter's other lengths for each of its tokens, or, if there is none, the verify pass of
/// its length: too much rather than nothing. A drafter that ends its drafts early by choice is
/// therefore best measured without that. What observing takes is in no cell: it is the same
/// whatever is drafted.
///
/// # Errors
/// [`RakvError::Setting`] for options out of range, contexts longer than the model takes, and taps
/// of layers it has not;
/// [`RakvError::Decoding`] when a part fails; [`RakvError::Table`] when the clock gave nonsense.
pub fn calibrate(
    target: &dyn TargetModel,
    cache: &mut dyn KvCache,
    drafters: &mut [&mut dyn Drafter],
    options: &CalibrationOptions,
) -> Result<Calibrated> {
    options.check()?;
    let longest = |axis: &[usize]| axis.last().copied().unwrap_or(0);
    let (context, draft) = (longest(&options.contexts), longest(&options.lengths));
    if context.saturating_add(draft) >= target.spec().context {
        return Err(RakvError::Setting {
            setting: "contexts",
            value: format!("{context} with drafts of {draft}"),
            allowed: "less than the model's context, with the longest draft",
        });
    }
    for drafter in drafters.iter() {
        if let Some(tap) = drafter.taps().iter().find(|t| **t >= target.spec().layers) {
            return Err(RakvError::Setting {
                setting: "taps",
                value: format!("layer {tap} for {}", drafter.name()),
                allowed: "layers of the model",
            });
        }
    }
    let rows = options.rows.iter().max().copied().unwrap_or(1);
    let mut bench = Bench {
        taps: Taps::of(drafters.iter().map(|d| d.taps())),
        target,
        cache,
        drafters,
        options,
        sampler: Sampler::new(SamplingParams::default(), Vec::new(), Arc::new(Greedy), 0),
        prefill: Vec::new(),
        restore: Vec::new(),
        catch_up: Vec::new(),
        dropped: (0, 0),
    };
    bench.catch_up = vec![Vec::new(); bench.drafters.len()];
    let measured = bench.measure();
    // One more: entries are restored into a sequence of its own.
    for row in 0..=rows {
        bench.cache.evict(name(row));
        for drafter in bench.drafters.iter_mut() {
            drafter.evict(name(row));
        }
    }
    let table = CostTable::new(measured?)?;
    let (dropped, all) = bench.dropped;
    let dropped = dropped as f64 / all.max(1) as f64;
    Ok(Calibrated {
        table,
        dropped,
        noisy: dropped > 0.05,
    })
}

/// How often a drafter reads a content anew.
const READINGS: usize = 3;

fn name(row: usize) -> SeqId {
    SeqId(u64::MAX - row as u64)
}

struct Bench<'a, 'd> {
    target: &'a dyn TargetModel,
    cache: &'a mut dyn KvCache,
    drafters: &'a mut [&'d mut dyn Drafter],
    options: &'a CalibrationOptions,
    sampler: Sampler,
    taps: Taps,
    /// Mean context, seconds of a token.
    prefill: Vec<(f64, f64)>,
    /// Bytes, seconds.
    restore: Vec<(f64, f64)>,
    /// For each drafter: tokens, seconds.
    catch_up: Vec<Vec<(f64, f64)>>,
    dropped: (usize, usize),
}

/// How a context grows while it is measured.
struct Growth {
    /// Committed tokens at first.
    start: usize,
    /// And at most.
    most: usize,
    /// Tokens that a verify pass of some length commits.
    kept: fn(usize) -> usize,
}

impl Bench<'_, '_> {
    fn measure(&mut self) -> Result<Measurements> {
        let options = self.options;
        let mut raw = Measurements {
            rows: options.rows.clone(),
            contexts: options.contexts.clone(),
            lengths: options.lengths.clone(),
            sources: self
                .drafters
                .iter()
                .map(|d| SourceCosts {
                    name: d.name().to_owned(),
                    draft: Vec::new(),
                    catch_up: Line::default(),
                })
                .collect(),
            ..Measurements::default()
        };
        for &rows in &options.rows {
            for &context in &options.contexts {
                self.group(rows, context, &mut raw)?;
            }
        }
        let (fixed, slope) = fit(&self.prefill);
        raw.prefill = PrefillCosts {
            each: fixed,
            per_context: slope,
        };
        let (fixed, each) = fit(&self.restore);
        raw.restore = Line { fixed, each };
        // Reading a file is one more copy, at best: until somebody measures the disk.
        raw.read = Line {
            fixed: fixed + 2e-4,
            each: each.max(1e-9),
        };
        for (source, points) in raw.sources.iter_mut().zip(&self.catch_up) {
            let (fixed, each) = fit(points);
            source.catch_up = Line { fixed, each };
        }
        Ok(raw)
    }

    /// All lengths of the menu at one number of rows and one context.
    fn group(&mut self, rows: usize, context: usize, raw: &mut Measurements) -> Result<()> {
        let options = self.options;
        let lengths = options.lengths.len();
        let Growth { start, most, kept } = self.growth(context);
        let contents: Vec<Vec<Token>> = (0..rows)
            .map(|row| self.content(row, context, most))
            .collect();
        let made_up = self.made_up(start);
        for (row, content) in contents.iter().enumerate() {
            self.cache.evict(name(row));
            for drafter in self.drafters.iter_mut() {
                drafter.evict(name(row));
            }
            self.fill(name(row), &content[..=start], made_up.as_ref())?;
        }
        self.restoring((name(0), name(rows)), start)?;
        let mut verified = vec![Samples::default(); lengths];
        let mut drafted = vec![Drafted::default(); lengths * self.drafters.len()];
        let mut firsts = Vec::new();
        if let Some(&shortest) = options.lengths.get(1) {
            for source in 0..self.drafters.len() {
                firsts.push(self.first_draft(source, &contents, start, shortest)?);
            }
        }
        let mut held = start;
        for round in 0..options.warm_up + options.rounds {
            let counts = round >= options.warm_up;
            for turn in 0..lengths {
                // Another order every round, each cell once.
                let cell = (turn * stride(lengths) + round * 7) % lengths;
                let length = options.lengths[cell];
                let keep = kept(length).min(most - held);
                let seconds = self.verify(&contents, held, length, keep)?;
                held += keep;
                if counts {
                    verified[cell].add(seconds);
                }
                if length == 0 {
                    continue;
                }
                for source in 0..self.drafters.len() {
                    let (seconds, tokens) = self.draft(source, &contents, held, length)?;
                    if counts {
                        drafted[source * lengths + cell].add(seconds, tokens, rows * length);
                    }
                }
            }
        }
        let mut verify = Vec::with_capacity(lengths);
        for samples in &verified {
            let (median, dropped) = samples.median();
            self.dropped.0 += dropped;
            self.dropped.1 += samples.len();
            // A clock too coarse to see a pass.
            verify.push(median.max(1e-9));
        }
        for (i, cells) in drafted.chunks(lengths).enumerate() {
            let prices: Vec<Price> = cells.iter().map(Drafted::price).collect();
            if let (Some(first), Some(later)) = (firsts.get(i), prices.get(1)) {
                let tokens = (rows * (start + 1)) as f64;
                self.catch_up[i].push((tokens, (first - later.timed).max(0.0)));
            }
            self.dropped.0 += prices.iter().map(|price| price.dropped).sum::<usize>();
            self.dropped.1 += cells.iter().map(Drafted::len).sum::<usize>();
            let cells = seconds(&options.lengths, &verify, &prices);
            raw.sources[i].draft.extend(cells);
        }
        raw.verify.extend(verify);
        Ok(())
    }

    /// How a context grows, as far as the model's allows.
    fn growth(&self, context: usize) -> Growth {
        let options = self.options;
        let longest = options.lengths.last().copied().unwrap_or(0);
        let room = self.target.spec().context - longest - 1;
        let rounds = options.warm_up.saturating_add(options.rounds);
        let about = |kept: fn(usize) -> usize| {
            let each: usize = options.lengths.iter().map(|length| kept(*length)).sum();
            let grows = each.saturating_mul(rounds);
            let most = context.saturating_add(grows).min(room);
            let start = most.saturating_sub(grows).max(1);
            (Growth { start, most, kept }, most - start == grows)
        };
        match about(|length| 1 + length.div_ceil(2)) {
            (growth, true) => growth,
            _ => about(|_| 1).0,
        }
    }

    /// Some text of `most` tokens and an anchor, that repeats itself at least once within `context`.
    fn content(&self, row: usize, context: usize, most: usize) -> Vec<Token> {
        let vocab = self.target.spec().vocab.max(1);
        let longest = self.options.lengths.last().copied().unwrap_or(0);
        let period = (context / 2).clamp(1, longest.max(24));
        let token = |i: usize| {
            let i = i % period;
            ((i * 7 + (i / 5) * 13 + row * 31 + 3) % vocab) as Token
        };
        (0..=most).map(token).collect()
    }

    /// Keys and values for the part of a context that is not computed.
    fn made_up(&self, context: usize) -> Option<KvSegment> {
        let len = context.saturating_sub(self.options.computed?);
        let spec = self.target.spec();
        let random = || {
            let shape = [len, spec.kv_heads, spec.head_dim];
            Tensor::<3>::random(shape, Distribution::Default, &spec.device)
        };
        (len > 0).then(|| KvSegment {
            range: 0..len,
            layers: (0..spec.layers).map(|_| (random(), random())).collect(),
        })
    }

    /// Prefills all of the content but the anchor, behind what is made up of it.
    fn fill(&mut self, seq: SeqId, content: &[Token], made_up: Option<&KvSegment>) -> Result<()> {
        let mut start = 0;
        if let Some(segment) = made_up {
            self.cache.import(seq, segment)?;
            start = segment.range.end;
        }
        let tokens = &content[start..content.len() - 1];
        for (i, chunk) in tokens.chunks(self.options.chunk).enumerate() {
            let at = start + i * self.options.chunk;
            let block = Block::single(seq, at, chunk, &self.target.spec().device);
            let started = Instant::now();
            let tapped = self.pass(&block, Phase::Prefill)?;
            let each = started.elapsed().as_secs_f64() / chunk.len() as f64;
            self.cache.commit(&[chunk.len()])?;
            if i > 0 || tokens.len() <= self.options.chunk {
                self.prefill
                    .push((at as f64 + chunk.len() as f64 / 2.0, each));
            }
            let rows = [ObservedRow::new(seq, content, at, 0..chunk.len())];
            for (source, drafter) in self.drafters.iter_mut().enumerate() {
                let taps = self.taps.pick(source, &tapped)?;
                drafter.observe(&Observation::new(Phase::Prefill, &rows, &taps))?;
            }
        }
        Ok(())
    }

    /// One pass and its result on the host; what it staged is left staged. The hidden states it
    /// tapped.
    fn pass(&mut self, block: &Block, phase: Phase) -> Result<Vec<Tensor<2>>> {
        let mut attend = self.cache.begin(block.rows(), phase)?;
        let forward = self.target.forward(block, &mut *attend, self.taps.union());
        drop(attend);
        let read = forward.and_then(|forward| {
            let hidden = if phase == Phase::Prefill {
                let [n, width] = forward.hidden.dims();
                forward.hidden.slice([n - 1..n, 0..width])
            } else {
                forward.hidden
            };
            let best = self.target.logits(hidden).argmax(1).try_into_data();
            best.map_err(|e| Error::Target(format!("its logits cannot be read: {e:?}").into()))?;
            Ok(forward.taps)
        });
        if read.is_err() {
            self.cache.rollback();
        }
        Ok(read?)
    }

    /// A pass over `length` drafts of each row behind `held` entries, of which it commits the first `keep`.
    fn verify(
        &mut self,
        contents: &[Vec<Token>],
        held: usize,
        length: usize,
        keep: usize,
    ) -> Result<f64> {
        let started = Instant::now();
        let mut block = Block::new(&self.target.spec().device);
        for (row, content) in contents.iter().enumerate() {
            let mut tokens = content[held..held + keep.max(1)].to_vec();
            tokens.extend((tokens.len()..=length).map(|j| content[(j * 3 + 1) % content.len()]));
            block.push(name(row), held, &tokens);
        }
        let tapped = self.pass(&block, Phase::Verify)?;
        let seconds = started.elapsed().as_secs_f64();
        if keep == 0 {
            self.cache.rollback();
            return Ok(seconds);
        }
        self.cache.commit(&vec![keep; contents.len()])?;
        let rows: Vec<ObservedRow<'_>> = contents
            .iter()
            .zip(block.ranges())
            .enumerate()
            .map(|(row, (content, range))| {
                let committed = range.start..range.start + keep;
                ObservedRow::new(name(row), &content[..=held + keep], held, committed)
            })
            .collect();
        for (source, drafter) in self.drafters.iter_mut().enumerate() {
            let taps = self.taps.pick(source, &tapped)?;
            drafter.observe(&Observation::new(Phase::Verify, &rows, &taps))?;
        }
        Ok(seconds)
    }

    /// Drafts for all rows behind `held` entries: seconds, and tokens that were drafted of those asked
    /// for.
    fn draft(
        &mut self,
        source: usize,
        contents: &[Vec<Token>],
        held: usize,
        length: usize,
    ) -> Result<(f64, usize)> {
        self.draft_for(0, source, contents, held, length)
    }

    /// The same for rows with names from `first` on.
    fn draft_for(
        &mut self,
        first: usize,
        source: usize,
        contents: &[Vec<Token>],
        held: usize,
        length: usize,
    ) -> Result<(f64, usize)> {
        let rows: Vec<DraftRow<'_>> = contents
            .iter()
            .enumerate()
            .map(|(row, content)| {
                let tokens = &content[..=held];
                let seq = name(first + row);
                DraftRow::new(seq, tokens, tokens.len(), length, &self.sampler)
            })
            .collect();
        let started = Instant::now();
        let drafted = self.drafters[source].draft(DraftContext {
            rows: &rows,
            target: self.target,
            cache: &mut *self.cache,
        });
        let seconds = started.elapsed().as_secs_f64();
        self.cache.rollback();
        let drafted = drafted?.rows;
        if drafted.len() != rows.len() {
            let what = format!("{} drafts for {} rows", drafted.len(), rows.len());
            let part = self.drafters[source].name();
            return Err(Error::Contract { part, what }.into());
        }
        let tokens = drafted.iter().map(|row| row.tokens.len().min(length));
        Ok((seconds, tokens.sum()))
    }

    /// Seconds of a draft that reads the whole content first: the least of some, since one disturbed
    /// reading would make drafting look dear for good. The others are done under names not used before,
    /// and count for drafters that read when they draft.
    fn first_draft(
        &mut self,
        source: usize,
        contents: &[Vec<Token>],
        held: usize,
        length: usize,
    ) -> Result<f64> {
        let rows = contents.len();
        let (mut least, _) = self.draft(source, contents, held, length)?;
        for reading in 1..READINGS {
            if !self.drafters[source].taps().is_empty() {
                break;
            }
            let first = 1 + reading * rows;
            let again = self.draft_for(first, source, contents, held, length);
            (first..first + rows).for_each(|row| self.drafters[source].evict(name(row)));
            match again {
                Ok((seconds, tokens)) if tokens == rows * length => least = least.min(seconds),
                // It lives on what was observed, or on the target's cache.
                _ => break,
            }
        }
        Ok(least)
    }

    /// Copies a sequence into another one: what taking it out did would tell on the passes after it.
    fn restoring(&mut self, (seq, into): (SeqId, SeqId), context: usize) -> Result<()> {
        let spec = self.target.spec();
        let (layers, heads) = (spec.layers, [spec.kv_heads, spec.head_dim]);
        for _ in 0..3 {
            let segment = match self.cache.export(seq, 0..context) {
                // Sliding windows have let go of the beginning: there is no prefix to restore.
                Err(Error::Cache(CacheError::Range { .. })) => return Ok(()),
                segment => segment?,
            };
            let host = HostSegment::read(segment, layers, heads)?.block(0..context);
            let started = Instant::now();
            let blocks = std::iter::once((&host, context));
            let segment = crate::store::Block::assemble(blocks, layers, heads, &spec.device);
            if let Some(segment) = segment {
                self.cache.import(into, &segment)?;
            }
            let seconds = started.elapsed().as_secs_f64();
            self.cache.evict(into);
            self.restore.push((host.size() as f64, seconds));
        }
        Ok(())
    }
}
