//! A training run.

use crate::calibration::Calibration;
use crate::config::DraftConfig;
use crate::draft_model::DraftModel;
use crate::fit::check;
use crate::frozen::{ids, output_rows};
use crate::named::Uniform;
use crate::train::adamw::AdamW;
use crate::train::batch::{Batch, anchors};
use crate::train::error::{Result, TrainError};
use crate::train::forward::{Constants, objective};
use crate::train::metrics::StepMetrics;
use crate::train::options::TrainOptions;
use crate::train::state::StateFile;
use crate::train::store::FeatureStore;
use burn::module::Module;
use specdec_core::TargetModel;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Texts with room for a block, and the blocks of any step.
#[derive(Debug)]
struct Source {
    store: FeatureStore,
    usable: Vec<usize>,
    constants: Constants,
}

impl Source {
    fn new(config: &DraftConfig, target: &dyn TargetModel, store: &FeatureStore) -> Result<Self> {
        if store.taps() != config.taps {
            return Err(TrainError::Mismatch {
                what: "the list of tapped layers",
                stored: format!("{:?}", store.taps()),
                wanted: format!("{:?}", config.taps),
            });
        }
        let mut usable = Vec::new();
        for index in 0..store.len() {
            let length = store.length(index)?;
            if length.tokens >= length.prompt + config.block_size {
                usable.push(index);
            }
        }
        if usable.is_empty() {
            return Err(TrainError::NoBlocks {
                texts: store.len(),
                block_size: config.block_size,
            });
        }
        let spec = target.spec();
        let table = spec.vocab.max(config.mask_token as usize + 1);
        Ok(Self {
            store: store.clone(),
            usable,
            constants: Constants {
                embed: target.embed(ids(0..table as i64, &spec.device)),
                output: output_rows(target, config.draft_vocab.as_deref())?,
            },
        })
    }

    /// The texts of a step: all of them in a new order each time round.
    fn texts(&self, step: usize, count: usize, seed: u64) -> Vec<usize> {
        let n = self.usable.len();
        (step * count..(step + 1) * count)
            .map(|place| {
                let round = (place / n) as u64;
                let mut draws = Uniform::new("order", seed.wrapping_add(round.wrapping_mul(7919)));
                let mut order: Vec<usize> = (0..n).collect();
                for i in (1..n).rev() {
                    order.swap(i, (draws.bits() % (i as u64 + 1)) as usize);
                }
                self.usable[order[place % n]]
            })
            .collect()
    }

    fn batch(
        &self,
        config: &DraftConfig,
        texts: &[usize],
        count: usize,
        draws: &mut Uniform,
    ) -> Result<Batch> {
        let mut read = Vec::with_capacity(texts.len());
        let mut places = Vec::with_capacity(texts.len());
        for &index in texts {
            let text = self.store.read(index)?;
            let (tokens, prompt) = (text.tokens.len(), text.prompt_len);
            places.push(anchors(tokens, prompt, config.block_size, count, draws));
            read.push(text);
        }
        let kept = config.draft_vocab.as_deref();
        let draft_id = |token: u32| match kept {
            Some(kept) => kept.binary_search(&token).ok(),
            None => Some(token as usize).filter(|&t| t < config.vocab),
        };
        let device = self.constants.embed.device();
        Ok(Batch::new(config, &read, &places, &draft_id, &device))
    }
}

/// A run that can be stopped at any time: it goes on from the last saved state, and ends with the same
/// weights as without the stop.
#[derive(Debug)]
pub struct Trainer {
    model: DraftModel,
    adamw: AdamW,
    source: Source,
    options: TrainOptions,
    state: StateFile,
    step: usize,
    saved: Instant,
}

impl Trainer {
    /// Begins a run, or goes on with the one whose state is in `folder`.
    ///
    /// # Errors
    /// [`TrainError::Setting`]; [`TrainError::Mismatch`] when the folder's run had other settings, or the
    /// store other layers; [`TrainError::NoBlocks`]; [`crate::DraftModelError::NotLinear`] for targets whose
    /// logits are no linear map; as [`DraftConfig::check`].
    pub fn new(
        config: &DraftConfig,
        target: &dyn TargetModel,
        store: &FeatureStore,
        folder: impl AsRef<Path>,
        options: TrainOptions,
    ) -> Result<Self> {
        options.check()?;
        let device = target.spec().device.clone().autodiff();
        let (seed, deviation) = (options.seed, options.deviation);
        let fresh = DraftModel::with_deviation(config, seed, deviation, &target.spec().device)?;
        check(&fresh, target.spec())?;
        let model = DraftModel::with_deviation(config, seed, deviation, &device)?;
        let source = Source::new(config, target, store)?;
        let mut decisive = options.clone();
        // How often it is saved decides nothing.
        decisive.save_every = std::time::Duration::ZERO;
        let settings = format!("{config:?}\n{decisive:?}\n{} texts\n", source.usable.len());
        let state = StateFile::new(folder.as_ref(), settings)?;
        let mut adamw = AdamW::new(&model)?;
        let step = state.load(&mut adamw)?.unwrap_or(0);
        Ok(Self {
            model: adamw.fill(model),
            adamw,
            source,
            options,
            state,
            step,
            saved: Instant::now(),
        })
    }

    /// Steps taken, those of earlier runs of the same folder included.
    pub fn steps_taken(&self) -> usize {
        self.step
    }

    /// Takes one step.
    ///
    /// # Errors
    /// [`TrainError::Diverged`]; those of reading the store.
    pub fn step(&mut self) -> Result<StepMetrics> {
        let o = &self.options;
        let mut draws = Uniform::new("blocks", o.seed.wrapping_add(self.step as u64 * 104_729));
        let texts = self.source.texts(self.step, o.texts, o.seed);
        let config = self.model.config();
        let batch = self.source.batch(config, &texts, o.anchors, &mut draws)?;
        let found = objective(&self.model, &batch, &self.source.constants, o, &mut draws)?;
        let loss = found.metrics.loss;
        if !loss.is_finite() {
            return Err(TrainError::Diverged {
                step: self.step + 1,
                loss,
            });
        }
        let gradients = found.loss.backward();
        let rate = o.rate_at(self.step);
        self.model = self
            .adamw
            .step(self.model.clone(), &gradients, self.step, o);
        self.step += 1;
        Ok(StepMetrics {
            step: self.step,
            rate,
            ..found.metrics
        })
    }

    /// Takes the steps that are left, saving the state every so often and at the end. `told` hears of
    /// every step; `Break` saves and stops there.
    ///
    /// # Errors
    /// As [`step`](Self::step) and [`save`](Self::save).
    pub fn run(&mut self, told: &mut dyn FnMut(&StepMetrics) -> ControlFlow<()>) -> Result<()> {
        while self.step < self.options.steps {
            let metrics = self.step()?;
            if told(&metrics).is_break() {
                break;
            }
            if self.saved.elapsed() >= self.options.save_every {
                self.save()?;
            }
        }
        self.save()
    }

    /// Saves the whole state now, in one move.
    ///
    /// # Errors
    /// [`crate::DraftModelError::Io`].
    pub fn save(&mut self) -> Result<()> {
        self.state.save(&self.adamw, self.step)?;
        self.saved = Instant::now();
        Ok(())
    }

    /// The network as it is now, on the target's device, for drafting.
    pub fn model(&self) -> DraftModel {
        self.model.valid()
    }
}

/// How good a network's drafts are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Evaluation {
    /// Means over all blocks of all texts.
    pub metrics: StepMetrics,
    /// The sharpness under which the head's chances are those of the text.
    pub calibration: Calibration,
}

/// Measures a network on stored texts, best ones it was not trained on: at most `anchors` blocks of each,
/// the same for the same seed.
///
/// # Errors
/// As [`Trainer::new`] for store and target; those of reading the store.
pub fn evaluate(
    model: &DraftModel,
    target: &dyn TargetModel,
    store: &FeatureStore,
    anchors: usize,
    seed: u64,
) -> Result<Evaluation> {
    let config = model.config();
    check(model, target.spec())?;
    let source = Source::new(config, target, store)?;
    let mut options = TrainOptions::new(0, config.block_size);
    options.anchors = anchors;
    options.check()?;
    let mut sum = StepMetrics::default();
    let mut rows = Vec::new();
    for &text in &source.usable {
        let mut draws = Uniform::new("evaluation", seed.wrapping_add(text as u64));
        let batch = source.batch(config, &[text], anchors, &mut draws)?;
        let found = objective(model, &batch, &source.constants, &options, &mut draws)?;
        let m = found.metrics;
        let n = m.blocks as f64;
        for (sum, value) in [
            (&mut sum.oracle_prefix, m.oracle_prefix),
            (&mut sum.selected_prefix, m.selected_prefix),
            (&mut sum.top1_prefix, m.top1_prefix),
        ] {
            *sum += value * n;
        }
        for (sum, value) in [
            (&mut sum.loss, m.loss),
            (&mut sum.drafter, m.drafter),
            (&mut sum.cross_entropy, m.cross_entropy),
            (&mut sum.margin, m.margin),
            (&mut sum.penalty, m.penalty),
            (&mut sum.soft, m.soft),
        ] {
            *sum += value * n as f32;
        }
        sum.blocks += m.blocks;
        sum.alive += m.alive;
        rows.extend(found.rows);
    }
    let n = sum.blocks.max(1) as f64;
    for sum in [
        &mut sum.oracle_prefix,
        &mut sum.selected_prefix,
        &mut sum.top1_prefix,
    ] {
        *sum /= n;
    }
    for sum in [
        &mut sum.loss,
        &mut sum.drafter,
        &mut sum.cross_entropy,
        &mut sum.margin,
        &mut sum.penalty,
        &mut sum.soft,
    ] {
        *sum /= n as f32;
    }
    Ok(Evaluation {
        metrics: sum,
        calibration: if rows.is_empty() {
            Calibration::default()
        } else {
            Calibration::fit(&rows)
        },
    })
}
