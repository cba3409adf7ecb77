//! The step and its rules on exact targets. Tests are named after the situations they guard.

mod acceptance;
mod batches;
mod caches;
mod constraints;
mod equality;
mod robustness;
mod rounds;
mod rounds_batch;
mod sampling;
mod seams;
mod statistics;
mod stopping;
mod world;
