//! AdamW (Loshchilov and Hutter 2019) without decay, on the host: its state is plain numbers that a file
//! can hold exactly.

use crate::draft_model::DraftModel;
use crate::error::{DraftModelError, Result};
use crate::named;
use crate::train::options::TrainOptions;
use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::Gradients;

const EPSILON: f64 = 1e-8;

/// A parameter with its moments.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moments {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) value: Vec<f32>,
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
}

/// All parameters in the order of the network's fields.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AdamW(pub(super) Vec<Moments>);

impl AdamW {
    pub(super) fn new(model: &DraftModel) -> Result<Self> {
        let values = named::values(model);
        let all = named::names(model).into_iter().zip(values);
        let moments = all.map(|((name, shape), data)| {
            let value = data
                .try_into_vec_as::<f32>()
                .map_err(|e| DraftModelError::Unreadable(format!("{name}: {e:?}")))?;
            Ok(Moments {
                first: vec![0.0; value.len()],
                second: vec![0.0; value.len()],
                name,
                shape,
                value,
            })
        });
        moments.collect::<Result<_>>().map(Self)
    }

    /// One step from these gradients; the network with its new values.
    pub(super) fn step(
        &mut self,
        model: DraftModel,
        gradients: &Gradients,
        step: usize,
        options: &TrainOptions,
    ) -> DraftModel {
        let mut collected = Collect {
            gradients,
            found: Vec::new(),
        };
        model.visit(&mut collected);
        let all = || collected.found.iter().flatten();
        let norm = all()
            .map(|&g| f64::from(g) * f64::from(g))
            .sum::<f64>()
            .sqrt();
        let cut = if norm > options.clip {
            options.clip / norm
        } else {
            1.0
        };
        let (b1, b2) = options.betas;
        let rate = options.rate_at(step);
        let turn = step as i32 + 1;
        let (c1, c2) = (1.0 - b1.powi(turn), 1.0 - b2.powi(turn));
        for (parameter, gradient) in self.0.iter_mut().zip(&collected.found) {
            let moments = parameter.first.iter_mut().zip(&mut parameter.second);
            let places = parameter.value.iter_mut().zip(moments);
            for ((value, (first, second)), &g) in places.zip(gradient) {
                let g = f64::from(g) * cut;
                *first = (b1 * f64::from(*first) + (1.0 - b1) * g) as f32;
                *second = (b2 * f64::from(*second) + (1.0 - b2) * g * g) as f32;
                let size = (f64::from(*second) / c2).sqrt() + EPSILON;
                *value -= (rate * f64::from(*first) / c1 / size) as f32;
            }
        }
        self.fill(model)
    }

    /// The network with these values.
    pub(super) fn fill(&self, model: DraftModel) -> DraftModel {
        let mut parameters = self.0.iter();
        named::filled(model, &mut |_, _| {
            parameters.next().map(|p| p.value.clone())
        })
    }
}

struct Collect<'g> {
    gradients: &'g Gradients,
    /// In the order of the fields; empty where there is no gradient.
    found: Vec<Vec<f32>>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.gradients);
        let numbers = gradient.and_then(|g| g.into_data().try_into_vec_as::<f32>().ok());
        self.found.push(numbers.unwrap_or_default());
    }
}
