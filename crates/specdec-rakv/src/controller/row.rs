use super::arms::{Arm, Arms, Setting};
use super::correction::{Correction, Features, Known};
use super::decision::{Decision, Reason};
use crate::acceptance::{Estimate, SlowMean};
use crate::costs::{MAX_SOURCES, StepCosts};
use crate::switch::LOOK_BACK;
use specdec_core::{SeqId, SeqView};
use std::time::Duration;

/// Rounds of a row without a plain one after which a plain one is tried.
const NO_PLAIN: u32 = 256;
/// Most probes' worth of credit.
const MOST_PROBES: f64 = 4.0;

/// A row and one drafter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSource {
    pub(crate) estimate: Estimate,
    /// Content when it last drafted: what came after it has not seen.
    pub(crate) seen: usize,
    /// Share accepted in its last round.
    pub(crate) last: f64,
}

/// What is known of a row, and what was planned for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) sources: [RowSource; MAX_SOURCES],
    /// What it does when it does not try something out.
    pub(crate) current: Arm,
    /// Plain steps it may spend on finding out.
    pub(crate) credit: f64,
    /// Rounds since its last plain one.
    pub(crate) since_plain: u32,
    pub(crate) planned: Planned,
}

/// A row's part in the step being taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) decision: Decision,
    pub(crate) arm: Arm,
    /// Who drafts without being verified.
    pub(crate) silent: Option<usize>,
    /// Who looks back at emitted tokens.
    pub(crate) back: Option<usize>,
    pub(crate) arms: Arms,
    pub(crate) features: Features,
    /// Plain steps of the round, and those of them that were spent on finding out.
    pub(crate) steps: f64,
    pub(crate) probe: f64,
    /// Whether the arm is another one than before.
    pub(crate) switched: bool,
}

impl Planned {
    /// The decision, with what drafting would need to pay.
    pub(crate) fn explained(&self, lengths: &[usize], sources: usize) -> Decision {
        let mut decision = self.decision;
        let arms = &self.arms;
        let fastest = arms.best_draft(lengths.len() - 1, sources);
        decision.contender = (fastest.source, lengths[fastest.level]);
        for source in 0..sources {
            for (level, &length) in lengths.iter().enumerate().skip(1) {
                let needed = crate::costs::break_even(length, arms.cycle[source][level]);
                if needed.is_some_and(|a| decision.needed.is_none_or(|least| a < least)) {
                    (decision.contender, decision.needed) = ((source, length), needed);
                }
            }
        }
        decision
    }

    /// Whether a draft of the arm goes into the verify pass (if there is one at all).
    pub(crate) fn verifies(&self) -> bool {
        let aside = Some(self.arm.source);
        self.silent != aside && self.back != aside
    }
}

/// What a row may do in this step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) hysteresis: f64,
    /// Whether drafts can be compared without being verified.
    pub(crate) silent: bool,
    /// Which drafters can look back at emitted tokens.
    pub(crate) back: [bool; MAX_SOURCES],
    /// Tokens emitted so far.
    pub(crate) emitted: usize,
    /// Whether plain steps are to be seen now and then.
    pub(crate) plain: bool,
}

impl Row {
    pub(crate) fn new(means: &[SlowMean], credit: f64) -> Self {
        let fresh = SlowMean::new(0.5, 1.0);
        Self {
            sources: std::array::from_fn(|i| RowSource {
                estimate: Estimate::new(means.get(i).copied().unwrap_or(fresh)),
                seen: 0,
                last: 0.0,
            }),
            current: Arm::default(),
            credit,
            since_plain: 0,
            planned: Planned {
                decision: Decision {
                    seq: SeqId(0),
                    source: 0,
                    length: 0,
                    reason: Reason::NoRoom,
                    tokens: 1.0,
                    time: Duration::ZERO,
                    rate: 1.0,
                    acceptance: 0.0,
                    contender: (0, 0),
                    needed: None,
                },
                arm: Arm::default(),
                silent: None,
                back: None,
                arms: Arms::NONE,
                features: [0.0; super::FEATURES],
                steps: 1.0,
                probe: 0.0,
                switched: false,
            },
        }
    }

    /// Decides what the row does in this step.
    pub(crate) fn plan<C: Correction>(
        &mut self,
        view: &SeqView,
        setting: &Setting<'_, C>,
        step: &StepCosts,
        limits: &Limits,
    ) {
        let lengths = setting.table.lengths();
        // The first length that is cut to what the row can use is worth a look too.
        let top = lengths
            .partition_point(|k| *k < view.max_draft)
            .min(lengths.len() - 1);
        let left = view.left.max(view.max_draft + 1);
        let source = self.current.source;
        let known = Known {
            prompt: view.content.saturating_sub(view.emitted),
            reused: view.reused,
            context: view.cached,
            left,
            acceptance: self.sources[source].estimate.hazards(&setting.how),
            deviation: self.sources[source].estimate.deviation(&setting.how),
            last: self.sources[source].last,
            lag: view.content.saturating_sub(self.sources[source].seen),
            rows: limits.rows,
        };
        let features = known.features();
        let arms = setting.arms(self, step, (view.content, view.max_draft), &features);
        let (mut arm, mut reason) = self.choose(&arms, top, left as f64, setting.sources, limits);
        let switched = arm != self.current && reason == Reason::Better;
        if switched {
            self.current = arm;
        }
        let (mut silent, mut back) = (None, None);
        let mut probe = 0.0;
        if top > 0
            && let Some((what, price)) = self.probe(&arms, arm, top, setting.sources, limits)
        {
            probe = price;
            self.credit -= price;
            match what {
                Probe::Real(tried) => (arm, reason) = (tried, Reason::Probe),
                Probe::Plain => {
                    arm = Arm { level: 0, ..arm };
                    reason = Reason::PlainProbe;
                }
                Probe::Back(tried) => {
                    back = Some(tried.source);
                    if arm.level == 0 {
                        (arm, reason) = (tried, Reason::LookBack);
                    }
                }
                Probe::Silent(tried) => {
                    silent = Some(tried.source);
                    if arm.level == 0 {
                        (arm, reason) = (tried, Reason::SilentProbe);
                    }
                }
            }
        }
        let verified = !matches!(reason, Reason::SilentProbe | Reason::LookBack);
        let unverified = 1.0 + probe;
        let (s, level) = (arm.source, arm.level);
        let decision = Decision {
            seq: view.seq,
            source: s,
            length: lengths[level].min(view.max_draft),
            reason,
            tokens: if verified { arms.tokens[s][level] } else { 1.0 },
            time: seconds(
                arms.plain
                    * if verified {
                        arms.steps[s][level]
                    } else {
                        unverified
                    },
            ),
            rate: if verified && level > 0 {
                arms.per_token[s][0] / arms.per_token[s][level]
            } else {
                1.0
            },
            acceptance: self.sources[s].estimate.hazards(&setting.how)[0],
            contender: (0, 0),
            needed: None,
        };
        self.planned = Planned {
            decision,
            arm,
            silent,
            back,
            steps: if verified {
                arms.steps[s][level]
            } else {
                unverified
            },
            arms,
            features,
            probe,
            switched,
        };
    }

    /// The arm from which the row gains most, if it is better enough than the present one.
    fn choose(
        &self,
        arms: &Arms,
        top: usize,
        left: f64,
        sources: usize,
        limits: &Limits,
    ) -> (Arm, Reason) {
        let plain = Arm::default();
        if top == 0 {
            return (plain, Reason::NoRoom);
        }
        let current = Arm {
            level: self.current.level.min(top),
            source: self.current.source.min(sources.saturating_sub(1)),
        };
        let now = arms.per_token[current.source][current.level];
        let (mut best, mut best_gain) = (current, 0.0);
        let (mut fastest, mut least) = (current, now);
        for source in 0..sources {
            for level in 0..=top {
                let arm = Arm { source, level };
                if (level == 0 && source > 0) || arm == current {
                    continue;
                }
                let cost = arms.per_token[source][level];
                let in_step = level == 0 || (current.level > 0 && current.source == source);
                let lag = if in_step { 0.0 } else { arms.lag[source] };
                let gain = left * (now - cost) - lag;
                if gain > best_gain {
                    (best, best_gain) = (arm, gain);
                }
                if cost < least {
                    (fastest, least) = (arm, cost);
                }
            }
        }
        let enough = |cost: f64| now > cost * (1.0 + limits.hysteresis);
        if best != current && enough(arms.per_token[best.source][best.level]) {
            (best, Reason::Better)
        } else if best != current {
            (current, Reason::NotEnough)
        } else if fastest != current && enough(least) {
            (current, Reason::CatchUp)
        } else {
            (current, Reason::Best)
        }
    }

    /// What the row may find out in this step within its credit, and the price.
    fn probe(
        &mut self,
        arms: &Arms,
        arm: Arm,
        top: usize,
        sources: usize,
        limits: &Limits,
    ) -> Option<(Probe, f64)> {
        if arm.level > 0 {
            let lost = arms.per_token[0][0] / arms.per_token[arm.source][arm.level] - 1.0;
            if limits.plain && self.since_plain >= NO_PLAIN && lost.max(0.0) <= self.credit {
                return Some((Probe::Plain, lost.max(0.0)));
            }
        }
        let mut best: Option<(Probe, f64, f64)> = None;
        for source in (0..sources).filter(|s| arm.level == 0 || *s != arm.source) {
            if limits.back[source] {
                let tried = Arm { source, level: 1 };
                let price = arms.back[source].max(0.01);
                let each = price / LOOK_BACK as f64;
                if best.is_none_or(|(.., least)| each < least) {
                    best = Some((Probe::Back(tried), price, each));
                }
            }
            for level in 1..=top {
                // What a comparison costs, and how many a round gives: a bit less than its tokens.
                let seen = arms.tokens[source][level].max(1.0);
                let tried = Arm { source, level };
                let lag = arms.lag[source];
                let real = (Probe::Real(tried), arms.cycle[source][level] - 1.0 + lag);
                let silent = (Probe::Silent(tried), arms.draft[source][level] + lag);
                // Who drafts beside the one that is verified gets the same length.
                let silent_fits = limits.silent && (arm.level == 0 || level == arm.level);
                let offers = [(arm.level == 0, real), (silent_fits, silent)];
                for (_, (what, price)) in offers.into_iter().filter(|(fits, _)| *fits) {
                    let each = price.max(0.01) / seen;
                    if best.is_none_or(|(.., least)| each < least) {
                        best = Some((what, price.max(0.01), each));
                    }
                }
            }
        }
        let (what, price, _) = best?;
        if matches!(what, Probe::Back(_)) && limits.emitted < LOOK_BACK {
            // Soon there is enough to look back at.
            return None;
        }
        if price <= self.credit {
            return Some((what, price));
        }
        self.credit = self.credit.min(MOST_PROBES * price);
        None
    }
}

#[derive(Debug, Clone, Copy)]
enum Probe {
    Real(Arm),
    Silent(Arm),
    Back(Arm),
    Plain,
}

pub(crate) fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::ZERO)
}
