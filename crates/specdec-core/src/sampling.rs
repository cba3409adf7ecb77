mod among;
mod noise;
mod params;
mod rules;
mod sampler;
mod warp;

pub use among::PickedCandidate;
pub use noise::{Noise, PositionNoise};
pub use params::SamplingParams;
pub use rules::{AllowOnly, Ban, Bias, History, LogitRule, MinNewTokens, Penalties};
pub use sampler::{Proposed, Sampler};
pub use warp::{argmax, probabilities, warp};

pub(crate) use sampler::logprobs;
pub(crate) use warp::log_sum_exp;
