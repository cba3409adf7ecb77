//! AdamW over batches of fresh text.

use crate::model::{Positions, TinyLm, values};
use crate::vocabulary::{Batch, Batches};
use anyhow::Result;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::activation::{log_softmax, softmax};
use indicatif::{ProgressBar, ProgressStyle};
use std::f64::consts::PI;
use std::time::Instant;

/// Rows and tokens of the usual batches, and of every fourth: both hold the same number of tokens.
const SHAPES: [[usize; 2]; 2] = [[4, 256], [2, 512]];

/// What to train with.
pub struct Course<'a> {
    pub name: &'static str,
    pub steps: usize,
    pub rate: f64,
    /// Learn the teacher's probabilities instead of the texts themselves.
    pub teacher: Option<&'a TinyLm>,
}

/// Trains a model; also the seconds it took.
pub fn train(
    mut model: TinyLm,
    course: &Course<'_>,
    batches: &mut Batches<'_>,
    device: &Device,
) -> Result<(TinyLm, f64)> {
    let started = Instant::now();
    let mut optimizer = AdamWConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-8)
        .with_weight_decay(0.05)
        .with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)))
        .init();
    let positions = SHAPES.map(|[_, len]| Positions::new(len, model.sizes(), device));
    let teaching = course.teacher.map(|teacher| {
        let plain = device.clone().inner();
        (
            teacher,
            SHAPES.map(|[_, len]| Positions::new(len, teacher.sizes(), &plain)),
        )
    });
    let bar = ProgressBar::new(course.steps as u64).with_style(ProgressStyle::with_template(
        "{prefix} {bar:30} {pos}/{len} steps, loss {msg}, {eta} left",
    )?);
    bar.set_prefix(course.name);
    let mut shown = f32::NAN;
    for step in 0..course.steps {
        let kind = usize::from(step % 4 == 3);
        let batch = batches.batch(SHAPES[kind], device)?;
        let taught = teaching.as_ref().map(|(teacher, positions)| {
            let logits = teacher.forward(batch.tokens.clone().inner(), &positions[kind]);
            Tensor::from_inner(softmax(logits, 1))
        });
        let logits = model.forward(batch.tokens, &positions[kind]);
        let loss = match taught {
            Some(taught) => {
                let each = (log_softmax(logits, 1) * taught).sum_dim(1);
                (each * batch.counts).sum().neg()
            }
            None => cross_entropy(logits, batch.next, batch.counts),
        };
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(rate(course, step), model, gradients);
        let value = values(loss)?[0];
        anyhow::ensure!(value.is_finite(), "the loss is {value} in step {step}");
        shown = if shown.is_nan() {
            value
        } else {
            0.95 * shown + 0.05 * value
        };
        bar.set_message(format!("{shown:.3}"));
        bar.inc(1);
        // In a log file there is no bar.
        if bar.is_hidden() && (step + 1) % course.steps.div_ceil(20) == 0 {
            let seconds = started.elapsed().as_secs();
            eprintln!(
                "{} {}/{} steps, loss {shown:.3}, {seconds} s",
                course.name,
                step + 1,
                course.steps
            );
        }
    }
    bar.finish();
    Ok((model, started.elapsed().as_secs_f64()))
}

/// Up in the first twentieth of the steps, then down a cosine to a twentieth of the rate.
fn rate(course: &Course<'_>, step: usize) -> f64 {
    let warm = (course.steps / 20).max(1);
    if step < warm {
        return course.rate * (step + 1) as f64 / warm as f64;
    }
    let done = (step - warm) as f64 / (course.steps - warm).max(1) as f64;
    course.rate * (0.05 + 0.95 * 0.5 * (1.0 + (PI * done).cos()))
}

fn cross_entropy(logits: Tensor<2>, next: Tensor<2, Int>, counts: Tensor<2>) -> Tensor<1> {
    (log_softmax(logits, 1).gather(1, next) * counts)
        .sum()
        .neg()
}

/// How well models do on texts that no training saw.
pub struct HeldOut {
    /// Nats a token of the target and of the draft.
    pub losses: [f32; 2],
    /// Share of the places at which both find the same token best.
    pub agreement: f64,
}

pub fn evaluate(
    target: &TinyLm,
    draft: &TinyLm,
    batches: &mut Batches<'_>,
    device: &Device,
) -> Result<HeldOut> {
    const BATCHES: usize = 16;
    let models =
        [target, draft].map(|m| (m.valid(), Positions::new(SHAPES[0][1], m.sizes(), device)));
    let (mut losses, mut agreement) = ([0.0; 2], 0.0);
    for _ in 0..BATCHES {
        let Batch {
            tokens,
            next,
            counts,
        } = batches.batch(SHAPES[0], device)?;
        let mut best = Vec::new();
        for ((model, positions), sum) in models.iter().zip(&mut losses) {
            let logits = model.forward(tokens.clone(), positions);
            best.push(logits.clone().argmax(1));
            *sum +=
                values(cross_entropy(logits, next.clone(), counts.clone()))?[0] / BATCHES as f32;
        }
        let [a, b] = [best[0].clone(), best[1].clone()];
        agreement += f64::from(values((a.equal(b).float() * counts).sum())?[0]) / BATCHES as f64;
    }
    Ok(HeldOut { losses, agreement })
}
