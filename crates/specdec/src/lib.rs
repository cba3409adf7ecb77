#![doc = include_str!("../README.md")]

mod device;
mod engine;
mod error;
mod generator;
mod model;

pub use device::{Backend, ChosenDevice, DeviceChoice, DeviceError};
pub use engine::{AsyncEngineStream, Engine, EngineStream};
pub use error::{Error, Result};
pub use generator::{
    DraftLength, Drafting, Generated, Generator, GeneratorBuilder, Options, Piece, Prompt,
    TextEvent, TextStream,
};
pub use model::{Model, ModelBuilder};

/// The Burn this was built with.
pub use burn;
pub use specdec_core as core;
pub use specdec_draft as draft;
pub use specdec_kernels as kernels;
pub use specdec_lilicorr as lilicorr;
pub use specdec_models as models;
pub use specdec_ragged as ragged;
pub use specdec_rakv as rakv;
pub use specdec_text as text;
pub use specdec_vegas as vegas;

/// The names every program types.
pub mod prelude {
    pub use crate::core::{Decoder, Drafter, KvCache, SamplingParams, TargetModel};
    pub use crate::text::Message;
    pub use crate::{Drafting, Generator, Model, Options, Prompt};
}
