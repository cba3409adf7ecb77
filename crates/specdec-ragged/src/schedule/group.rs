use specdec_core::{PoolView, Scheduler, SeqId, SeqView};
use std::collections::HashMap;

/// Whom [`GroupByLength`] takes when no group is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fallback {
    /// Those that have waited longest.
    #[default]
    Oldest,
    /// Those whose lengths are closest together, so that least has to be padded; those that have
    /// waited longest among equals.
    Nearest,
}

/// The pool of EXSPEC: of a window of W sequences, B run in a step, if possible B of one length, so
/// that nothing has to be aligned for them.
///
/// Sequences of one content length, all prefilled or none, make a group; the first full one in the
/// order of the window runs. Where there is none, the [`Fallback`] decides. No member of the window
/// waits longer than [`max_wait`](Self::with_max_wait) steps: before somebody would, those that
/// have waited longest run, whatever their lengths. A sequence that ends is replaced at once.
///
/// Grouping is for caches that must be aligned. [`SlotCache`](crate::SlotCache) needs no alignment
/// and no groups.
#[derive(Debug, Clone)]
pub struct GroupByLength {
    window: usize,
    rows: usize,
    max_wait: u64,
    fallback: Fallback,
    by_length: bool,
    /// In order of admission.
    members: Vec<SeqId>,
    /// The step in which a member ran last, or was admitted.
    last_run: HashMap<SeqId, u64>,
}

impl GroupByLength {
    /// A window of this many sequences (at least `rows`), of which `rows` (at least 1) run in a
    /// step; nobody waits more than `3 window / rows` steps.
    pub fn new(window: usize, rows: usize) -> Self {
        let rows = rows.max(1);
        let window = window.max(rows);
        Self {
            window,
            rows,
            max_wait: window.saturating_mul(3).div_ceil(rows) as u64,
            fallback: Fallback::default(),
            by_length: false,
            members: Vec::new(),
            last_run: HashMap::new(),
        }
    }

    /// The most steps from one run of a member (or its admission to the window) to the next; at
    /// least `window / rows`, which is what taking turns needs.
    pub fn with_max_wait(mut self, steps: u64) -> Self {
        self.max_wait = steps.max(self.window.div_ceil(self.rows) as u64);
        self
    }

    /// Whom to take when no group is full.
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Of the sequences that wait for a place in the window, the one with the shortest prompt is
    /// next, so that equal lengths meet. Results come in the order of requests all the same. As
    /// long as shorter prompts keep arriving, a long one waits: use it for a fixed list of prompts.
    pub fn admitting_by_length(mut self) -> Self {
        self.by_length = true;
        self
    }

    /// The most steps between two runs of a member.
    pub fn max_wait(&self) -> u64 {
        self.max_wait
    }

    /// The sequences of the window, in order of admission.
    pub fn window(&self) -> &[SeqId] {
        &self.members
    }

    fn refill(&mut self, pool: &PoolView) {
        let live: HashMap<SeqId, &SeqView> = pool.rows.iter().map(|row| (row.seq, row)).collect();
        self.members.retain(|seq| live.contains_key(seq));
        self.last_run.retain(|seq, _| live.contains_key(seq));
        let mut waiting: Vec<&SeqView> = pool
            .rows
            .iter()
            .filter(|row| !self.last_run.contains_key(&row.seq))
            .collect();
        if self.by_length {
            waiting.sort_by_key(|row| row.content - row.emitted);
        }
        let free = self.window - self.members.len();
        for row in waiting.into_iter().take(free) {
            self.members.push(row.seq);
            self.last_run.insert(row.seq, pool.step);
        }
    }

    /// The members, those that have waited longest first.
    fn oldest(&self) -> Vec<SeqId> {
        let mut members = self.members.clone();
        members.sort_by_key(|seq| self.last_run[seq]);
        members
    }

    /// Whether those that have waited longest must run now: if a group ran instead, and they took
    /// turns from the next step on, somebody would wait too long.
    fn is_pressing(&self, oldest: &[SeqId], step: u64) -> bool {
        oldest.iter().enumerate().any(|(turn, seq)| {
            let runs = step + 1 + (turn / self.rows) as u64;
            runs > self.last_run[seq].saturating_add(self.max_wait)
        })
    }

    /// The first full group.
    fn group(&self, views: &[&SeqView], full: usize) -> Option<Vec<SeqId>> {
        let mut groups: HashMap<(usize, bool), Vec<SeqId>> = HashMap::new();
        views.iter().find_map(|row| {
            let group = groups.entry((row.content, row.is_prefilled())).or_default();
            group.push(row.seq);
            (group.len() == full).then(|| group.clone())
        })
    }

    /// The `full` members whose lengths are closest together.
    fn nearest(&self, views: &[&SeqView], full: usize) -> Vec<SeqId> {
        let mut by_length = views.to_vec();
        by_length.sort_by_key(|row| (row.content, self.last_run[&row.seq]));
        let tightest = by_length.windows(full).min_by_key(|run| {
            let spread = run[full - 1].content - run[0].content;
            (spread, run.iter().map(|row| self.last_run[&row.seq]).min())
        });
        tightest
            .unwrap_or(&by_length)
            .iter()
            .map(|row| row.seq)
            .collect()
    }
}

impl Scheduler for GroupByLength {
    fn select(&mut self, pool: &PoolView) -> Vec<SeqId> {
        self.refill(pool);
        if self.members.is_empty() {
            return Vec::new();
        }
        let live: HashMap<SeqId, &SeqView> = pool.rows.iter().map(|row| (row.seq, row)).collect();
        let views: Vec<&SeqView> = self.members.iter().map(|seq| live[seq]).collect();
        let full = self.rows.min(views.len());
        let mut oldest = self.oldest();
        let pressing = self.is_pressing(&oldest, pool.step);
        oldest.truncate(full);
        let chosen = if pressing {
            oldest
        } else {
            self.group(&views, full)
                .unwrap_or_else(|| match self.fallback {
                    Fallback::Oldest => oldest,
                    Fallback::Nearest => self.nearest(&views, full),
                })
        };
        for &seq in &chosen {
            self.last_run.insert(seq, pool.step);
        }
        chosen
    }
}
