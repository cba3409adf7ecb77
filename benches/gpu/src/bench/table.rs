//! What was measured, in rows.

use std::time::{Duration, Instant};

/// Rows of the table, and the time there is for more.
#[derive(Debug)]
pub struct Table {
    rows: Vec<[String; 4]>,
    started: Instant,
    budget: Duration,
}

impl Table {
    /// An empty table that takes rows for so long.
    pub fn new(budget: Duration) -> Self {
        Self {
            rows: Vec::new(),
            started: Instant::now(),
            budget,
        }
    }

    /// Adds a row, and says so on the way.
    pub fn row(
        &mut self,
        what: impl Into<String>,
        model: &str,
        place: impl Into<String>,
        figure: impl Into<String>,
    ) {
        let row = [what.into(), model.into(), place.into(), figure.into()];
        eprintln!(
            "[{:>4} s] {}",
            self.started.elapsed().as_secs(),
            row.join(" | ")
        );
        self.rows.push(row);
    }

    /// Whether there is time for another measurement; where there is not, a row says what is missing.
    pub fn has_time(&mut self, what: &str, model: &str, place: impl Into<String>) -> bool {
        let left = self.started.elapsed() < self.budget;
        if !left {
            self.row(what, model, place, "not measured: out of time");
        }
        left
    }

    /// All rows, as Markdown.
    pub fn print(&self) {
        println!("| what | model | where | figure |\n|---|---|---|---|");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
        println!("\n{} s in all", self.started.elapsed().as_secs());
    }
}

/// The median of repeated measurements, after two that do not count.
pub fn median(times: usize, mut work: impl FnMut() -> Duration) -> Duration {
    work();
    work();
    let mut all: Vec<Duration> = (0..times.max(1)).map(|_| work()).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

/// Milliseconds with three digits.
pub fn ms(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
