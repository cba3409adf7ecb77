//! The crate from outside: real decoders over exact targets.

mod calibration;
mod crash;
mod damage;
mod decoding;
mod holding;
mod hostile;
mod index;
mod leftovers;
mod measuring;
mod policy;
mod store;
mod strategies;
mod switching;
mod world;
