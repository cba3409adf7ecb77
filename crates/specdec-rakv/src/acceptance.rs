//! How likely drafts are to be right, by drafter and place in the draft.

use serde::{Deserialize, Serialize};

/// Constants of the acceptance estimates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forgetting {
    /// What an observation leaves of the row's earlier ones.
    pub(crate) row: f64,
    /// The same for the slow mean.
    pub(crate) slow: f64,
    /// Weight of the slow mean in a row's estimate, in observations.
    pub(crate) prior: f64,
    /// Drift that is not counted as one.
    pub(crate) slack: f64,
    /// Summed drift at which the past is given up.
    pub(crate) limit: f64,
    /// What later places are taken for at the least before they are compared.
    pub(crate) start: f64,
}

/// Weight of a row's observations after a change of topic, and of the slow mean.
const AFTER_CHANGE: (f64, f64) = (8.0, 10.0);
/// What a round leaves of the earlier ones in the share of rounds that had a draft.
const COVER: f64 = 0.95;

/// The first place of a draft, and all later ones.
const KINDS: usize = 2;
/// Weight, in comparisons, with which later places are taken to be like the first, or as before anything is known
/// where that is better: drafts of one token say nothing else of them.
const TIE: f64 = 20.0;

/// Right observations and all of them, the newer ones weighing more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    right: f64,
    all: f64,
}

impl Share {
    fn rate(self) -> f64 {
        self.right / self.all
    }

    /// The rate, drawn towards another one.
    fn tied(self, to: f64) -> f64 {
        (self.right + TIE * to) / (self.all + TIE)
    }

    fn is_sane(self) -> bool {
        self.all.is_finite() && self.all >= 0.0 && (0.0..=self.all).contains(&self.right)
    }

    fn scale(&mut self, by: f64) {
        self.right *= by;
        self.all *= by;
    }
}

/// A share that grows in one row, and what the row does to the one it began with: `kept` of that,
/// and `added`.
#[derive(Debug, Clone, Copy)]
struct Grown {
    now: Share,
    kept: f64,
    added: Share,
}

impl Grown {
    fn new(now: Share) -> Self {
        Self {
            now,
            kept: 1.0,
            added: Share {
                right: 0.0,
                all: 0.0,
            },
        }
    }

    fn observe(&mut self, x: f64, keep: f64) {
        self.scale(keep);
        for share in [&mut self.now, &mut self.added] {
            share.right += x;
            share.all += 1.0;
        }
    }

    fn scale(&mut self, by: f64) {
        self.now.scale(by);
        self.added.scale(by);
        self.kept *= by;
    }

    /// Lets no more weight than this stand.
    fn shrink(&mut self, to: f64) {
        if self.now.all > to {
            self.scale(to / self.now.all);
        }
    }

    fn give(&self, to: &mut Share) {
        to.scale(self.kept);
        to.right += self.added.right;
        to.all += self.added.all;
    }
}

/// What is known of a drafter over many sequences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlowMean {
    slow: [Share; KINDS],
    fast: [Share; KINDS],
    /// Rounds that had a draft when one was asked for.
    cover: Share,
}

impl SlowMean {
    pub(crate) fn new(start: f64, weight: f64) -> Self {
        let share = |right, all| Share { right, all };
        Self {
            slow: [share(start * weight, weight), share(0.0, 0.0)],
            fast: [share(0.0, 0.0); KINDS],
            cover: share(1.0, 1.0),
        }
    }

    pub(crate) fn is_sane(&self) -> bool {
        let nothing = |share: &Share| share.all <= 0.0;
        let mut all = self.slow.iter().chain(&self.fast).chain([&self.cover]);
        all.all(|share| share.is_sane()) && !nothing(&self.slow[0]) && !nothing(&self.cover)
    }

    /// Shares of right drafts: first place, later places.
    pub(crate) fn rates(&self, how: &Forgetting) -> [f64; KINDS] {
        let first = self.slow[0].rate();
        [first, self.slow[1].tied(first.max(how.start))]
    }
}

/// A row's estimate for one drafter: a decaying share of comparisons, drawn towards a slow mean, with
/// a test for change (CUSUM).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Estimate {
    fast: [Grown; KINDS],
    slow: [Grown; KINDS],
    cover: Grown,
    drift: [(f64, f64); KINDS],
    /// Changes of topic found.
    pub(crate) alarms: u32,
}

impl Estimate {
    pub(crate) fn new(mean: SlowMean) -> Self {
        Self {
            fast: mean.fast.map(Grown::new),
            slow: mean.slow.map(Grown::new),
            cover: Grown::new(mean.cover),
            drift: [(0.0, 0.0); KINDS],
            alarms: 0,
        }
    }

    /// The chance that a draft is right at the first place, and at a later one if all before it
    /// were.
    pub(crate) fn hazards(&self, how: &Forgetting) -> [f64; KINDS] {
        let drawn = |own: Share, slow: f64| (own.right + how.prior * slow) / (own.all + how.prior);
        let [own, slow] = [self.fast, self.slow].map(|kinds| kinds.map(|kind| kind.now));
        let first = drawn(own[0], slow[0].rate());
        [first, drawn(own[1], slow[1].tied(first.max(how.start)))]
    }

    /// Standard deviation of the first hazard.
    pub(crate) fn deviation(&self, how: &Forgetting) -> f64 {
        let h = self.hazards(how)[0];
        (h * (1.0 - h) / (self.fast[0].now.all + how.prior + 1.0)).sqrt()
    }

    /// Share of rounds in which the drafter had something to propose.
    pub(crate) fn cover(&self) -> f64 {
        self.cover.now.rate().clamp(0.0, 1.0)
    }

    /// The drafter was asked and had a draft, or had none.
    pub(crate) fn asked(&mut self, had: bool) {
        self.cover.observe(f64::from(u8::from(had)), COVER);
    }

    /// A draft's first `right` tokens were right, and the next one was wrong if `failed`; what lies
    /// behind was not compared.
    pub(crate) fn compared(&mut self, right: usize, failed: bool, how: &Forgetting) {
        for place in 0..right + usize::from(failed) {
            self.observe(usize::from(place > 0), place < right, how);
        }
    }

    /// Of some emitted tokens the drafter would have drafted these, each after what was emitted
    /// before it: as good as a first place, and as a later one.
    pub(crate) fn looked_back(&mut self, right: impl Iterator<Item = bool>, how: &Forgetting) {
        for right in right {
            self.observe(0, right, how);
            self.observe(1, right, how);
        }
    }

    fn observe(&mut self, i: usize, right: bool, how: &Forgetting) {
        let expected = self.hazards(how)[i];
        let x = f64::from(u8::from(right));
        self.fast[i].observe(x, how.row);
        self.slow[i].observe(x, how.slow);
        let (up, down) = &mut self.drift[i];
        *up = (*up + (x - expected) - how.slack).max(0.0);
        *down = (*down + (expected - x) - how.slack).max(0.0);
        if up.max(*down) > how.limit {
            // The topic has changed: little of the past counts.
            self.alarms += 1;
            self.drift[i] = (0.0, 0.0);
            self.fast[i].shrink(AFTER_CHANGE.0);
            self.slow[i].shrink(AFTER_CHANGE.1);
        }
    }

    /// Gives what the row has seen to its drafter's mean.
    pub(crate) fn give(&self, mean: &mut SlowMean) {
        for i in 0..KINDS {
            self.fast[i].give(&mut mean.fast[i]);
            self.slow[i].give(&mut mean.slow[i]);
        }
        self.cover.give(&mut mean.cover);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: Forgetting = Forgetting {
        row: 0.995,
        slow: 0.999,
        prior: 2.0,
        slack: 0.1,
        limit: 8.0,
        start: 0.8,
    };

    /// Drafts of `k` in which each token is right with probability `a`, from a linear congruence.
    fn rounds(estimate: &mut Estimate, k: usize, a: f64, n: usize) {
        let mut state = 12345u64;
        let mut draw = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        for _ in 0..n {
            let right = (0..k).take_while(|_| draw() < a).count();
            estimate.compared(right, right < k, &HOW);
        }
    }

    #[test]
    fn c4_places_behind_a_rejection_are_unknown_not_wrong() {
        let mut estimate = Estimate::new(SlowMean::new(0.8, 20.0));
        rounds(&mut estimate, 4, 0.8, 10_000);
        let [first, later] = estimate.hazards(&HOW);
        // 200 comparisons of memory: a standard deviation of 0.028.
        assert!((first - 0.8).abs() < 0.06, "{first}");
        assert!((later - 0.8).abs() < 0.06, "{later}");
        // The slow mean remembers 1,000 and is far from 0.59, what accepted / drafted gives.
        for slow in estimate.slow {
            let rate = slow.now.rate();
            assert!((rate - 0.8).abs() < 0.03, "{rate}");
        }
    }

    /// Else drafts of one token are never found to be worth lengthening.
    #[test]
    fn drafts_of_one_token_say_that_later_places_are_like_the_first() {
        for a in [0.85, 0.95] {
            let mut estimate = Estimate::new(SlowMean::new(0.8, 20.0));
            rounds(&mut estimate, 1, a, 2_000);
            let [first, later] = estimate.hazards(&HOW);
            assert!((first - a).abs() < 0.06 && (later - first).abs() < 1e-9);
        }
        // Once there are comparisons, they count.
        let mut estimate = Estimate::new(SlowMean::new(0.8, 20.0));
        for _ in 0..500 {
            estimate.compared(1, true, &HOW);
        }
        let [first, later] = estimate.hazards(&HOW);
        assert!(first > 0.95 && later < 0.05, "{first} {later}");
    }

    #[test]
    fn c4_rounds_without_drafts_change_nothing() {
        let mut estimate = Estimate::new(SlowMean::new(0.8, 20.0));
        rounds(&mut estimate, 4, 0.5, 100);
        let before = estimate.hazards(&HOW);
        for _ in 0..10_000 {
            estimate.compared(0, false, &HOW);
        }
        assert_eq!(estimate.hazards(&HOW), before);
    }

    #[test]
    fn c5_a_change_of_topic_is_found_and_the_past_given_up() {
        let mut estimate = Estimate::new(SlowMean::new(0.8, 20.0));
        rounds(&mut estimate, 4, 0.95, 1_000);
        assert!(estimate.hazards(&HOW)[0] > 0.9);
        let alarms = estimate.alarms;
        rounds(&mut estimate, 4, 0.2, 40);
        assert!(estimate.alarms > alarms, "no alarm");
        assert!(
            estimate.hazards(&HOW)[0] < 0.5,
            "{:?}",
            estimate.hazards(&HOW)
        );
    }

    #[test]
    fn what_rows_saw_adds_up_in_the_slow_mean_as_if_it_were_one_row() {
        let start = SlowMean::new(0.8, 20.0);
        let mut whole = Estimate::new(start);
        rounds(&mut whole, 3, 0.6, 50);
        rounds(&mut whole, 3, 0.6, 50);
        let mut mean = start;
        for _ in 0..2 {
            let mut part = Estimate::new(mean);
            rounds(&mut part, 3, 0.6, 50);
            part.give(&mut mean);
        }
        let mut once = start;
        whole.give(&mut once);
        for (a, b) in mean.rates(&HOW).iter().zip(once.rates(&HOW)) {
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
        let (parts, whole) = (Estimate::new(mean), Estimate::new(once));
        assert!((parts.hazards(&HOW)[0] - whole.hazards(&HOW)[0]).abs() < 1e-9);
    }
}
