//! Tests of the block-parallel drafter, its head, its files and its training.

mod checkpoint;
mod drafting;
mod enumeration;
mod golden;
mod gradients;
mod hostile;
mod losses;
mod lossless;
mod output_maps;
mod paths;
mod reference;
mod training;
mod world;
