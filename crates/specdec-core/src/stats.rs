//! Counts that say whether speculation paid.

use std::time::Duration;

/// Drafts at one place of the draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PositionCount {
    /// How often a token was drafted at this place.
    pub drafted: u64,
    /// How often it was emitted.
    pub accepted: u64,
}

impl PositionCount {
    /// `accepted / drafted`; `None` when nothing was drafted.
    pub fn rate(&self) -> Option<f64> {
        ratio(self.accepted, self.drafted)
    }
}

/// Counts and times of one sequence, or of a whole decoder (the sum over its sequences).
///
/// Only what was emitted counts: a draft that the target agreed with but that lay behind an end
/// token or a limit is drafted and not accepted.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Verify passes this sequence took part in; a plain step is one with nothing drafted.
    pub rounds: u64,
    /// Tokens emitted.
    pub emitted: u64,
    /// Tokens drafted and verified.
    pub drafted: u64,
    /// Drafted tokens that were emitted.
    pub accepted: u64,
    /// The same by place in the draft, first token first.
    pub by_position: Vec<PositionCount>,
    /// Rounds in which something was drafted.
    pub speculative_rounds: u64,
    /// Tokens prefilled: of prompts, and of content whose memory was lost.
    pub prefilled: u64,
    /// Tokens whose keys and values were taken from a prefix cache instead of being prefilled.
    pub reused: u64,
    /// Times entries were fetched from a prefix cache and could not be taken in.
    pub reuse_failures: u64,
    /// Times a sequence lost its memory to an older one and was prefilled again.
    pub preempted: u64,
    /// Verify passes whose two best logits were closer than the decoder's tie margin, per token.
    pub ties: u64,
    /// Time of fetching and importing reused tokens.
    pub reuse_time: Duration,
    /// Time in prefill passes. A pass over several rows counts in full for each of them, and once
    /// in a decoder's total.
    pub prefill_time: Duration,
    /// Time in the drafter, counted likewise.
    pub draft_time: Duration,
    /// Time in verify passes, counted likewise.
    pub verify_time: Duration,
    /// Time of choosing tokens from what verify passes gave, of committing, and of telling the drafter, counted
    /// likewise.
    pub settle_time: Duration,
}

impl Stats {
    /// Share of the drafts that were emitted, in 0..=1; `None` when nothing was drafted.
    pub fn acceptance_rate(&self) -> Option<f64> {
        ratio(self.accepted, self.drafted)
    }

    /// Mean acceptance length: `1 + accepted / rounds`, the tokens a round yields when no end
    /// cuts it; `None` before the first round.
    pub fn acceptance_length(&self) -> Option<f64> {
        ratio(self.accepted, self.rounds).map(|r| 1.0 + r)
    }

    /// Time of all rounds: drafting, verifying, settling.
    pub fn decode_time(&self) -> Duration {
        self.draft_time + self.verify_time + self.settle_time
    }

    /// Emitted tokens per second of [`Self::decode_time`]; `None` when no time was measured.
    pub fn tokens_per_second(&self) -> Option<f64> {
        per_second(self.emitted, self.decode_time())
    }

    /// Prefilled tokens per second of prefill time; `None` when no time was measured.
    pub fn prefill_tokens_per_second(&self) -> Option<f64> {
        per_second(self.prefilled, self.prefill_time)
    }

    /// Adds one round's counts.
    pub(crate) fn round(&mut self, drafted: usize, accepted: usize, emitted: usize) {
        self.rounds += 1;
        self.emitted += emitted as u64;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.speculative_rounds += u64::from(drafted > 0);
        if self.by_position.len() < drafted {
            self.by_position.resize(drafted, PositionCount::default());
        }
        for (i, count) in self.by_position.iter_mut().take(drafted).enumerate() {
            count.drafted += 1;
            count.accepted += u64::from(i < accepted);
        }
    }
}

fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

fn per_second(n: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}
