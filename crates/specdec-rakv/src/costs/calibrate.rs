//! Costs measured on the device and with the parts at hand.

use super::calibration_options::CalibrationOptions;
use super::samples::Samples;
use super::table::{CostTable, Line, Measurements, PrefillCosts, SourceCosts};
use crate::error::{RakvError, Result};
use crate::store::HostSegment;
use specdec_core::sampling::Sampler;
use specdec_core::{
    Block, DraftContext, DraftRow, Drafter, Error, Greedy, KvCache, Phase, SamplingParams, SeqId,
    TargetModel, Token,
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
/// # Errors
/// [`RakvError::Setting`] for options out of range, and contexts longer than the model takes;
/// [`RakvError::Decoding`] when a part fails; [`RakvError::Table`] when the clock gave nonsense.
pub fn calibrate(
    target: &dyn TargetModel,
    cache: &mut dyn KvCache,
    drafters: &mut [&mut dyn Drafter],
    options: &CalibrationOptions,
) -> Result<Calibrated> {
    options.check()?;
    let longest = options.contexts.iter().chain(&options.lengths).max();
    let needed = options.contexts.last().unwrap_or(&0) + options.lengths.last().unwrap_or(&0) + 1;
    if needed > target.spec().context {
        return Err(RakvError::Setting {
            setting: "contexts",
            value: format!("{longest:?}"),
            allowed: "less than the model's context, with the longest draft",
        });
    }
    let rows = options.rows.iter().max().copied().unwrap_or(1);
    let mut bench = Bench {
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
    for row in 0..rows {
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

fn name(row: usize) -> SeqId {
    SeqId(u64::MAX - row as u64)
}

struct Bench<'a, 'd> {
    target: &'a dyn TargetModel,
    cache: &'a mut dyn KvCache,
    drafters: &'a mut [&'d mut dyn Drafter],
    options: &'a CalibrationOptions,
    sampler: Sampler,
    /// Mean context, seconds of a token.
    prefill: Vec<(f64, f64)>,
    /// Bytes, seconds.
    restore: Vec<(f64, f64)>,
    /// For each drafter: tokens, seconds.
    catch_up: Vec<Vec<(f64, f64)>>,
    dropped: (usize, usize),
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
        let contents: Vec<Vec<Token>> = (0..rows).map(|row| self.content(row, context)).collect();
        for (row, content) in contents.iter().enumerate() {
            self.cache.evict(name(row));
            for drafter in self.drafters.iter_mut() {
                drafter.evict(name(row));
            }
            self.fill(name(row), &content[..context])?;
        }
        self.restoring(name(0), context)?;
        let lengths = self.options.lengths.len();
        let cells = lengths * (1 + self.drafters.len());
        let mut samples = vec![Samples::default(); cells];
        for source in 0..self.drafters.len() {
            self.catching_up(source, &contents)?;
        }
        for round in 0..self.options.warm_up + self.options.rounds {
            for turn in 0..cells {
                // Another order every round, each cell once.
                let cell = (turn * stride(cells) + round * 7) % cells;
                let (part, length) = (cell / lengths, self.options.lengths[cell % lengths]);
                let seconds = match part.checked_sub(1) {
                    None => self.verify(&contents, context, length)?,
                    Some(_) if length == 0 => 0.0,
                    Some(source) => self.draft(source, &contents, length)?,
                };
                if round >= self.options.warm_up {
                    samples[cell].add(seconds);
                }
            }
        }
        for (cell, samples) in samples.iter().enumerate() {
            let (median, dropped) = samples.median();
            self.dropped.0 += dropped;
            self.dropped.1 += samples.len();
            match (cell / lengths).checked_sub(1) {
                // A clock too coarse to see a pass.
                None => raw.verify.push(median.max(1e-9)),
                Some(source) => raw.sources[source].draft.push(median),
            }
        }
        Ok(())
    }

    /// Some text of `context` tokens and an anchor.
    fn content(&self, row: usize, context: usize) -> Vec<Token> {
        let vocab = self.target.spec().vocab.max(1);
        let token = |i: usize| ((i * 7 + (i / 5) * 13 + row * 31 + 3) % vocab) as Token;
        (0..=context).map(token).collect()
    }

    fn fill(&mut self, seq: SeqId, tokens: &[Token]) -> Result<()> {
        for (i, chunk) in tokens.chunks(self.options.chunk).enumerate() {
            let at = i * self.options.chunk;
            let block = Block::single(seq, at, chunk, &self.target.spec().device);
            let started = Instant::now();
            self.pass(&block, Phase::Prefill)?;
            let each = started.elapsed().as_secs_f64() / chunk.len() as f64;
            self.cache.commit(&[chunk.len()])?;
            if i > 0 || tokens.len() <= self.options.chunk {
                self.prefill
                    .push((at as f64 + chunk.len() as f64 / 2.0, each));
            }
        }
        Ok(())
    }

    /// One pass and its result on the host; what it staged is left staged.
    fn pass(&mut self, block: &Block, phase: Phase) -> Result<()> {
        let mut attend = self.cache.begin(block.rows(), phase)?;
        let forward = self.target.forward(block, &mut *attend, &[]);
        drop(attend);
        let read = forward.and_then(|forward| {
            let hidden = if phase == Phase::Prefill {
                let [n, width] = forward.hidden.dims();
                forward.hidden.slice([n - 1..n, 0..width])
            } else {
                forward.hidden
            };
            let best = self.target.logits(hidden).argmax(1).try_into_data();
            best.map_err(|e| Error::Target(format!("its logits cannot be read: {e:?}").into()))
        });
        if let Err(error) = read {
            self.cache.rollback();
            return Err(error.into());
        }
        Ok(())
    }

    fn verify(&mut self, contents: &[Vec<Token>], context: usize, length: usize) -> Result<f64> {
        let started = Instant::now();
        let mut block = Block::new(&self.target.spec().device);
        for (row, content) in contents.iter().enumerate() {
            let mut tokens = vec![content[context]];
            tokens.extend((0..length).map(|j| content[(j * 3 + 1) % content.len()]));
            block.push(name(row), context, &tokens);
        }
        self.pass(&block, Phase::Verify)?;
        self.cache.rollback();
        Ok(started.elapsed().as_secs_f64())
    }

    fn draft(&mut self, source: usize, contents: &[Vec<Token>], length: usize) -> Result<f64> {
        let rows: Vec<DraftRow<'_>> = contents
            .iter()
            .enumerate()
            .map(|(row, tokens)| {
                DraftRow::new(name(row), tokens, tokens.len(), length, &self.sampler)
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
        drafted?;
        Ok(seconds)
    }

    /// The first draft reads the whole content; what later ones take is subtracted.
    fn catching_up(&mut self, source: usize, contents: &[Vec<Token>]) -> Result<()> {
        let first = self.draft(source, contents, 1)?;
        let later = self.draft(source, contents, 1)?;
        let tokens: usize = contents.iter().map(Vec::len).sum();
        self.catch_up[source].push((tokens as f64, (first - later).max(0.0)));
        Ok(())
    }

    fn restoring(&mut self, seq: SeqId, context: usize) -> Result<()> {
        let spec = self.target.spec();
        let (layers, heads) = (spec.layers, [spec.kv_heads, spec.head_dim]);
        for _ in 0..3 {
            let segment = self.cache.export(seq, 0..context)?;
            let host = HostSegment::read(segment, layers, heads)?.block(0..context);
            self.cache.evict(seq);
            let started = Instant::now();
            let blocks = std::iter::once((&host, context));
            let segment = crate::store::Block::assemble(blocks, layers, heads, &spec.device);
            if let Some(segment) = segment {
                self.cache.import(seq, &segment)?;
            }
            let seconds = started.elapsed().as_secs_f64();
            self.restore.push((host.size() as f64, seconds));
        }
        Ok(())
    }
}

/// A step through `n` cells that visits each once.
fn stride(n: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (n / 2 + 1..).find(|s| gcd(*s, n) == 1).unwrap_or(1)
}

/// Least squares through points, neither part negative; flat where all points have one x.
fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    if points.is_empty() {
        return (0.0, 0.0);
    }
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread = mean(|p| p.0 * p.0) - x * x;
    if spread <= 1e-9 * x * x {
        return (0.0, if x > 0.0 { y / x } else { 0.0 });
    }
    let slope =
        ((mean(|p| p.0 * p.1) - x * y) / spread).clamp(0.0, if x > 0.0 { y / x } else { 0.0 });
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_fitted_without_negative_parts() {
        let (fixed, each) = fit(&[(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]);
        assert!((fixed - 1.0).abs() < 1e-9 && (each - 2.0).abs() < 1e-9);
        assert_eq!(fit(&[(1.0, 3.0), (2.0, 1.0)]), (2.0, 0.0));
        assert_eq!(fit(&[(2.0, 4.0), (2.0, 6.0)]), (0.0, 2.5));
        assert_eq!(fit(&[]), (0.0, 0.0));
    }

    #[test]
    fn every_cell_has_its_turn() {
        for n in 1..30 {
            let mut seen: Vec<usize> = (0..n).map(|turn| turn * stride(n) % n).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }
}
