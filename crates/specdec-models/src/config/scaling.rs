//! How rotary frequencies are stretched for contexts longer than those of pre-training.

use crate::{LoadError, error::Result};

/// The stretching of rotary frequencies. With theta the base, d the rotating dimensions and
/// `f_i = theta^(-2i/d)` the plain frequencies, the variants replace `f_i`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// `f_i`.
    None,
    /// `f_i / factor`.
    Linear {
        /// How many times longer the context became.
        factor: f64,
    },
    /// The base grows with the context: `theta (factor c / original - (factor - 1))^(d / (d - 2))`
    /// for a context of c tokens above `original`; unchanged up to there.
    ///
    /// Elsewhere c is the current length, so that every key changes when a token is added; a key
    /// cached earlier is then wrong. Here c is fixed when the model is loaded (the context asked
    /// for there), so that cached keys stay exact. Up to `original` both are the same.
    DynamicNtk {
        /// How many times longer the context became.
        factor: f64,
        /// The context of pre-training, in tokens.
        original_context: usize,
    },
    /// Llama 3.1: long waves are divided by `factor`, short ones kept, those between blended.
    Llama3 {
        /// How many times longer the context became.
        factor: f64,
        /// Waves longer than `original_context` over this are divided.
        low_freq_factor: f64,
        /// Waves shorter than `original_context` over this are kept.
        high_freq_factor: f64,
        /// The context of pre-training, in tokens.
        original_context: usize,
    },
    /// YaRN (Peng et al. 2023, section 3.2 and 3.4).
    Yarn {
        /// How many times longer the context became.
        factor: f64,
        /// The context of pre-training, in tokens.
        original_context: usize,
        /// Dimensions that turn more often than this over the original context are kept.
        beta_fast: f64,
        /// Dimensions that turn less often than this are divided by `factor`.
        beta_slow: f64,
        /// Multiplies cosine and sine.
        attention_factor: f64,
        /// Whether the bounds of the blend are rounded to whole dimensions.
        truncate: bool,
    },
    /// `f_i / divisors[i]`: ggml's `rope_freqs.weight`, one for each pair of dimensions.
    PerFrequency {
        /// The divisors, d/2 of them.
        divisors: Vec<f32>,
    },
}

impl RopeScaling {
    /// YaRN's attention factor for a stretching of `factor` where none is given:
    /// `0.1 mscale ln(factor) + 1`.
    pub(crate) fn yarn_attention(factor: f64, mscale: f64) -> f64 {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    }

    pub(crate) fn check(&self, rope_dim: usize) -> Result<()> {
        let positive = |name: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                Ok(())
            } else {
                let key = format!("rope_scaling.{name}");
                Err(LoadError::invalid(
                    key,
                    value,
                    "a positive number is needed",
                ))
            }
        };
        match self {
            Self::None => Ok(()),
            Self::Linear { factor } => positive("factor", *factor),
            Self::DynamicNtk {
                factor,
                original_context,
            } => {
                positive("factor", *factor)?;
                positive("original_context", *original_context as f64)
            }
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                positive("factor", *factor)?;
                positive("low_freq_factor", *low_freq_factor)?;
                positive("high_freq_factor", *high_freq_factor)?;
                positive("original_context", *original_context as f64)?;
                if high_freq_factor <= low_freq_factor {
                    return Err(LoadError::invalid(
                        "rope_scaling.high_freq_factor",
                        high_freq_factor,
                        "it must be above low_freq_factor",
                    ));
                }
                Ok(())
            }
            Self::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate: _,
            } => {
                positive("factor", *factor)?;
                positive("original_context", *original_context as f64)?;
                positive("beta_fast", *beta_fast)?;
                positive("beta_slow", *beta_slow)?;
                positive("attention_factor", *attention_factor)
            }
            Self::PerFrequency { divisors } => {
                if divisors.len() != rope_dim / 2 {
                    return Err(LoadError::ShapeMismatch {
                        tensor: "rope_freqs.weight".to_owned(),
                        expected: vec![rope_dim / 2],
                        got: vec![divisors.len()],
                    });
                }
                divisors
                    .iter()
                    .try_for_each(|&d| positive("divisors", d.into()))
            }
        }
    }
}
