use super::arms::Setting;
use super::correction::{Correction, Features};
use super::options::AdaptiveOptions;
use super::report::ControlReport;
use super::row::{Limits, Row};
use crate::acceptance::SlowMean;
use crate::costs::{CostTable, MAX_MENU, MAX_SOURCES, Refresh};
use specdec_core::{Outcome, Plan, PoolView, RowOutcome, SeqId};
use std::collections::HashMap;

/// Most credit that ended rows leave to new ones, in plain steps.
pub(super) const MOST_BANK: f64 = 8.0;
/// Plain steps that may be spent on finding out before any were saved up: once in a controller's life.
const FIRST_BANK: f64 = 4.0;
/// Rounds of an arm after which the correction learns from them.
const LESSON: u32 = 32;

#[derive(Debug)]
pub(super) struct Inner<C> {
    pub(super) table: CostTable,
    pub(super) options: AdaptiveOptions,
    pub(super) correction: C,
    pub(super) refresh: Refresh,
    pub(super) means: Vec<SlowMean>,
    pub(super) rows: HashMap<SeqId, Row>,
    pub(super) bank: f64,
    pub(super) report: ControlReport,
    /// What each arm would have cost, in plain steps.
    pub(super) fixed: [[f64; MAX_MENU]; MAX_SOURCES],
    /// Predicted seconds of the step being taken.
    pub(super) predicted: f64,
    /// Rounds of each arm that the correction has not learnt from yet.
    pub(super) lessons: Vec<Lesson>,
    /// Controls the drafters of a switch that listens; else the decoder's only one.
    pub(super) drafters: usize,
}

/// Rounds of an arm together: single rounds yield too different numbers of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lesson {
    rounds: u32,
    seconds: f64,
    predicted: f64,
    /// Their mean features.
    features: Features,
}

impl<C: Correction> Inner<C> {
    pub(super) fn new(table: CostTable, options: AdaptiveOptions, correction: C) -> Self {
        let sources = table.measurements().sources.len().max(1);
        let mean = SlowMean::new(options.start, options.start_weight);
        Self {
            report: ControlReport {
                lengths: table.lengths().iter().map(|k| (*k, 0)).collect(),
                ..ControlReport::default()
            },
            means: vec![mean; sources],
            refresh: Refresh::default(),
            rows: HashMap::new(),
            bank: FIRST_BANK,
            fixed: [[0.0; MAX_MENU]; MAX_SOURCES],
            predicted: 0.0,
            lessons: vec![Lesson::default(); MAX_SOURCES * MAX_MENU],
            drafters: 0,
            table,
            options,
            correction,
        }
    }

    pub(super) fn report(&self) -> ControlReport {
        let mut report = self.report.clone();
        report.slowdown = self.refresh.common();
        let names = self.table.sources().map(str::to_owned);
        let how = self.options.forgetting();
        report.acceptance = names
            .zip(self.means.iter().map(|mean| mean.rates(&how)))
            .collect();
        let mut best: Option<(f64, (usize, usize))> = None;
        for source in 0..self.sources() {
            for (level, &length) in self.table.lengths().iter().enumerate() {
                let cost = self.fixed[source][level];
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, (source, length)));
                }
            }
        }
        if let Some((cost, choice)) = best {
            (report.best_fixed, report.best_choice) = (cost, choice);
        }
        report
    }

    /// Drafters that can be chosen.
    pub(super) fn sources(&self) -> usize {
        self.drafters.clamp(1, self.means.len())
    }

    /// What a new row may spend on finding out.
    fn start_credit(&self) -> f64 {
        if self.options.carry_over {
            self.bank
        } else {
            0.0
        }
    }

    pub(super) fn plan(
        &mut self,
        view: &PoolView,
        silent: bool,
        back: [bool; MAX_SOURCES],
    ) -> Plan {
        let rows = view.rows.len();
        let mut lengths = Vec::with_capacity(rows);
        let (mut verify, mut context) = (0.0, 0);
        let mut drafts = [(0usize, 0usize); MAX_SOURCES];
        let mut limits = Limits {
            back,
            emitted: 0,
            rows,
            hysteresis: self.options.hysteresis,
            silent,
            plain: self.options.refresh,
        };
        let sources = self.sources();
        for seen in &view.rows {
            let credit = self.start_credit();
            let row = self.rows.entry(seen.seq).or_insert_with(|| {
                self.bank = 0.0;
                Row::new(&self.means, credit)
            });
            let step = self.table.step(rows, seen.cached);
            let setting = Setting {
                table: &self.table,
                refresh: &self.refresh,
                correction: &self.correction,
                how: self.options.forgetting(),
                sources,
            };
            limits.emitted = seen.emitted;
            row.plan(seen, &setting, &step, &limits);
            let planned = &row.planned;
            let length = planned.decision.length;
            lengths.push(length);
            context += seen.cached;
            if planned.verifies() {
                verify += row.sources[planned.arm.source].estimate.cover() * length as f64;
            }
            if length > 0 {
                let draft = &mut drafts[planned.arm.source];
                *draft = (draft.0 + 1, draft.1.max(length));
            }
        }
        self.predicted = 0.0;
        if let Some(context) = context.checked_div(rows) {
            let mean = (verify / rows as f64).round() as usize;
            let level = self.level(mean);
            let mut seconds =
                self.table.verify_seconds(rows, context, mean) * self.refresh.of_verify(level);
            for (source, (drafting, length)) in drafts.into_iter().enumerate() {
                if drafting > 0 {
                    seconds += self.table.draft_seconds(source, drafting, context, length)
                        * self.refresh.of_draft(source);
                }
            }
            self.predicted = seconds * self.refresh.common();
        }
        Plan { lengths }
    }

    /// The place of the longest length of the menu that is not longer.
    fn level(&self, length: usize) -> usize {
        self.table.lengths().partition_point(|k| *k <= length) - 1
    }

    pub(super) fn observe(&mut self, outcome: &Outcome) {
        if outcome.rows.is_empty() {
            return;
        }
        let (draft, verify) = (
            outcome.draft_time.as_secs_f64(),
            outcome.verify_time.as_secs_f64(),
        );
        let taken = draft + verify;
        if taken > 0.0 && self.predicted > 0.0 {
            self.report.measured += taken;
            self.report.predicted += self.predicted;
            self.report.error_sum += (self.predicted - taken).abs() / taken;
            self.report.steps += 1;
        }
        if self.options.refresh {
            self.learn_costs(outcome, draft, verify);
        }
        for row in &outcome.rows {
            self.learn_row(row, taken);
        }
    }

    /// Costs are learnt from steps in which all rows did the same.
    fn learn_costs(&mut self, outcome: &Outcome, draft: f64, verify: f64) {
        let rows = outcome.rows.len();
        let first = &outcome.rows[0];
        let context = outcome.rows.iter().map(|row| row.context).sum::<usize>() / rows;
        if outcome.rows.iter().all(|row| row.drafted == first.drafted) {
            let level = self.level(first.drafted);
            if self.table.lengths()[level] == first.drafted {
                let predicted = self.table.verify_seconds(rows, context, first.drafted);
                self.refresh.verify(level, verify, predicted);
            }
        }
        let plan = |row: &RowOutcome| {
            let planned = &self.rows.get(&row.seq)?.planned;
            let lagging = planned.arms.lag[planned.arm.source] > 0.0;
            let alone = planned.silent.is_none_or(|s| s == planned.arm.source);
            let alone = alone && planned.back.is_none();
            (row.planned > 0 && !lagging && alone).then_some((planned.arm.source, row.planned))
        };
        if let Some((source, length)) = plan(first)
            && outcome
                .rows
                .iter()
                .all(|row| plan(row) == Some((source, length)))
        {
            let predicted = self.table.draft_seconds(source, rows, context, length);
            self.refresh.draft(source, draft, predicted);
        }
    }

    fn learn_row(&mut self, outcome: &RowOutcome, taken: f64) {
        let how = self.options.forgetting();
        let sources = self.sources();
        let credit = self.start_credit();
        let row = self.rows.entry(outcome.seq);
        let row = row.or_insert_with(|| Row::new(&self.means, credit));
        let planned = &mut row.planned;
        let source = planned.arm.source;
        let content = outcome.context + 1;
        if let Some(silent) = planned.silent {
            row.sources[silent].seen = content;
        }
        if planned.verifies() && outcome.planned > 0 {
            let own = &mut row.sources[source];
            own.seen = content;
            own.estimate.asked(outcome.drafted > 0);
            let right = outcome.accepted.min(outcome.drafted);
            // Where an end cut the round, what lies behind it was not compared.
            let failed = right < outcome.drafted && outcome.emitted > right;
            let alarms = own.estimate.alarms;
            own.estimate.compared(right, failed, &how);
            self.report.alarms += u64::from(own.estimate.alarms - alarms);
            own.last = right as f64 / outcome.drafted.max(1) as f64;
        }
        row.since_plain = if outcome.drafted == 0 {
            0
        } else {
            row.since_plain.saturating_add(1)
        };
        row.credit += self.options.exploration * planned.steps;
        let emitted = outcome.emitted as f64;
        for (source, fixed) in self.fixed.iter_mut().enumerate().take(sources) {
            for (level, fixed) in fixed.iter_mut().enumerate() {
                *fixed += emitted * planned.arms.per_token[source][level];
            }
        }
        let report = &mut self.report;
        report.tokens += outcome.emitted as u64;
        report.spent += planned.steps;
        report.switches += u64::from(planned.switched);
        report.probes += u64::from(planned.probe > 0.0);
        report.probe_steps += planned.probe;
        if let Some((_, n)) = report.lengths.get_mut(planned.arm.level) {
            *n += 1;
        }
        if planned.silent.is_none() && planned.back.is_none() && taken > 0.0 {
            let per_token = planned.arms.per_token[source][planned.arm.level];
            let lesson = &mut self.lessons[source * MAX_MENU + planned.arm.level];
            lesson.rounds += 1;
            lesson.seconds += taken;
            lesson.predicted += emitted * planned.arms.plain * per_token;
            for (sum, x) in lesson.features.iter_mut().zip(&planned.features) {
                *sum += x / f64::from(LESSON);
            }
            if lesson.rounds == LESSON {
                let Lesson {
                    seconds,
                    predicted,
                    features,
                    ..
                } = std::mem::take(lesson);
                if predicted > 0.0 {
                    let error = (seconds / predicted).ln();
                    self.correction.learn(planned.arm, &features, error);
                }
            }
        }
        // What was planned has been done.
        planned.switched = false;
    }

    pub(super) fn evict(&mut self, seq: SeqId) {
        let Some(row) = self.rows.remove(&seq) else {
            return;
        };
        if self.options.carry_over {
            for (mean, own) in self.means.iter_mut().zip(&row.sources) {
                own.estimate.give(mean);
            }
            self.bank = (self.bank + row.credit).clamp(0.0, MOST_BANK);
        }
    }
}
