//! Generations with their times.

use crate::world::options;
use cpu_time::ThreadTime;
use specdec::core::Stats;
use specdec::prelude::*;
use std::time::{Duration, Instant};

/// One generation.
#[derive(Clone)]
pub struct Run {
    /// From prompt to last token, while the thread had a processor.
    pub seconds: f64,
    pub stats: Stats,
}

/// Times generations by the thread's own time, which all the work is done on: what else the machine does takes
/// the processor away now and then, and does not count.
#[derive(Debug, Default)]
pub struct Clock {
    on: Duration,
    wall: Duration,
}

impl Clock {
    /// Generates; the output must be the one wanted.
    pub fn generate(&mut self, generator: &mut Generator, prompt: &[u32], want: &[u32]) -> Run {
        let (prompt, options) = (prompt.to_vec(), options(want.len()));
        let (started, on) = (Instant::now(), ThreadTime::now());
        let done = generator.generate(prompt, &options).expect("it fits");
        let on = on.elapsed();
        self.wall += started.elapsed();
        self.on += on;
        assert_eq!(done.tokens, want, "another output than plain decoding's");
        Run {
            seconds: on.as_secs_f64(),
            stats: done.stats,
        }
    }

    /// The share of the time for which the thread had a processor; near 1 on a quiet machine.
    pub fn share(&self) -> f64 {
        self.on.as_secs_f64() / self.wall.as_secs_f64()
    }
}
