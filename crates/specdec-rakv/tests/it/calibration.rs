//! Costs measured through the traits, and their files.

use crate::world::*;
use specdec_core::{Draft, DraftContext, Drafter, KvCache, Observation, Result, SeqId};
use specdec_draft::{ModelDrafter, NgramDrafter};
use specdec_rakv::{CalibrationOptions, Conditions, CostTable, RakvError, calibrate};
use specdec_testkit::oracle::Counted;
use std::sync::Arc;

pub(crate) fn options() -> CalibrationOptions {
    CalibrationOptions {
        rows: vec![1, 3],
        contexts: vec![10, 30],
        lengths: vec![0, 1, 4],
        warm_up: 1,
        rounds: 3,
        chunk: 8,
        computed: None,
    }
}

/// Made-up entries take the place of prefill passes, and leave no more trace.
#[test]
fn contexts_that_are_made_up_are_not_computed() {
    let counted = Counted::new(hash_lm());
    let calls = counted.calls();
    let target: Target = Arc::new(counted);
    let mut cache = slots(&target);
    let mut ngram = NgramDrafter::default();
    let options = CalibrationOptions {
        computed: Some(8),
        ..options()
    };
    let measured = calibrate(
        &*target,
        &mut cache,
        &mut [&mut ngram as &mut dyn Drafter],
        &options,
    )
    .expect("measured");
    assert_eq!(measured.table.measurements().contexts, [10, 30]);
    let (groups, verify) = (4, 3 * 4);
    let prefill = (1 + 3) * (1 + 1);
    assert_eq!(calls.passes(), groups * verify + prefill);
    for row in 0..=3 {
        assert_eq!(cache.len(SeqId(u64::MAX - row)), 0);
    }
    let nothing = CalibrationOptions {
        computed: Some(0),
        ..options
    };
    let refused = calibrate(&*target, &mut cache, &mut [], &nothing);
    assert!(matches!(
        refused,
        Err(RakvError::Setting {
            setting: "computed",
            ..
        })
    ));
}

/// C17: calibration leaves cache, drafters and output as they were, and measures every cell as often
/// as it says.
#[test]
fn c17_calibration_leaves_no_trace() {
    let counted = Counted::new(hash_lm());
    let calls = counted.calls();
    let target: Target = Arc::new(counted);
    let mut cache = slots(&target);
    // A sequence that is there already.
    let seq = SeqId(1);
    let tokens = text(1, 12);
    let made = entries(&target, &tokens, 0..12);
    cache.import(seq, &made).expect("it continues nothing");
    let mut ngram = NgramDrafter::default();
    let mut model = ModelDrafter::new(target_of_drafts(), slots(&target));
    let measured = calibrate(
        &*target,
        &mut cache,
        &mut [&mut ngram as &mut dyn Drafter, &mut model],
        &options(),
    )
    .expect("measured");
    let table = &measured.table;
    assert_eq!(
        table.sources().collect::<Vec<_>>(),
        ["ngram", "draft-model"]
    );
    assert_eq!(table.lengths(), [0, 1, 4]);
    for rows in [1, 3] {
        for context in [10, 30] {
            let at = |k| table.verify_seconds(rows, context, k);
            // Between cells there is rounding.
            let rises = |a: f64, b: f64| a <= b * (1.0 + 1e-9);
            assert!(at(0) > 0.0 && rises(at(0), at(1)) && rises(at(1), at(4)));
            assert_eq!(table.draft_seconds(1, rows, context, 0), 0.0);
            assert!(table.draft_seconds(1, rows, context, 4) > 0.0);
        }
    }
    assert!((0.0..=1.0).contains(&measured.dropped));
    // The target ran for prefill and verify passes alone: each cell four times.
    let groups = 4;
    let verify = groups * 3 * 4;
    let prefill = (1 + 3) * (2 + 4);
    assert_eq!(calls.passes(), verify + prefill);
    for row in 0..3 {
        assert_eq!(cache.len(SeqId(u64::MAX - row)), 0);
        assert_eq!(model.cache().len(SeqId(u64::MAX - row)), 0);
    }
    same(&cache.export(seq, 0..12).expect("still there"), &made);
    let prompt = text(2, 20);
    let mut decoder = speculating(&target, &store(&target), model, four());
    warm(&mut decoder, &prompt, 20);
}

/// A draft model that says how often it drafted what was asked for, and how often less.
struct Whole {
    inner: ModelDrafter,
    whole: usize,
    short: usize,
}

impl Drafter for Whole {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let rows = cx.rows;
        let draft = self.inner.draft(cx)?;
        for (row, draft) in rows.iter().zip(&draft.rows) {
            let counted = if draft.tokens.len() == row.k {
                &mut self.whole
            } else {
                &mut self.short
            };
            *counted += 1;
        }
        Ok(draft)
    }

    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        self.inner.observe(observation)
    }

    fn evict(&mut self, seq: SeqId) {
        self.inner.evict(seq);
    }
}

/// A draft model has nothing to say about a text it has taken in to the end: each draft that is timed
/// has something new before it, so that what is timed is a draft.
#[test]
fn a_draft_model_drafts_in_every_pass() {
    let target = target();
    let room = target.spec().context - 4 - 1;
    for contexts in [vec![10, 30], vec![room]] {
        let mut drafter = Whole {
            inner: ModelDrafter::new(target_of_drafts(), slots(&target)),
            whole: 0,
            short: 0,
        };
        let options = CalibrationOptions {
            rows: vec![1],
            contexts,
            ..options()
        };
        let groups = options.contexts.len();
        let mut cache = slots(&target);
        let drafters: &mut [&mut dyn Drafter] = &mut [&mut drafter];
        calibrate(&*target, &mut cache, drafters, &options).expect("measured");
        // Two lengths four times, and three drafts that read the context.
        assert_eq!((drafter.whole, drafter.short), (groups * (2 * 4 + 3), 0));
    }
}

fn target_of_drafts() -> Target {
    Arc::new(hash_lm().with_mistakes(0.2, 1))
}

#[test]
fn calibration_options_out_of_range() {
    let target = target();
    let mut cache = slots(&target);
    let mut refuse = |options: CalibrationOptions, what: &str| {
        let refused = calibrate(&*target, &mut cache, &mut [], &options);
        let good = matches!(&refused, Err(RakvError::Setting { setting, .. }) if *setting == what);
        assert!(good, "{what}: {refused:?}");
    };
    refuse(
        CalibrationOptions {
            rows: vec![],
            ..options()
        },
        "rows",
    );
    refuse(
        CalibrationOptions {
            rows: vec![0, 1],
            ..options()
        },
        "rows",
    );
    refuse(
        CalibrationOptions {
            rows: vec![1, 1025],
            ..options()
        },
        "rows",
    );
    refuse(
        CalibrationOptions {
            rows: vec![usize::MAX],
            ..options()
        },
        "rows",
    );
    refuse(
        CalibrationOptions {
            contexts: vec![usize::MAX],
            ..options()
        },
        "contexts",
    );
    refuse(
        CalibrationOptions {
            lengths: vec![1, 2],
            ..options()
        },
        "lengths",
    );
    refuse(
        CalibrationOptions {
            lengths: (0..9).collect(),
            ..options()
        },
        "lengths",
    );
    refuse(
        CalibrationOptions {
            rounds: 0,
            ..options()
        },
        "rounds",
    );
    refuse(
        CalibrationOptions {
            chunk: 0,
            ..options()
        },
        "chunk",
    );
    refuse(
        CalibrationOptions {
            contexts: vec![510],
            ..options()
        },
        "contexts",
    );
}

/// C10: a table of another machine, model, drafter or note is refused, with the reason.
#[test]
fn c10_a_table_measured_on_something_else_is_refused() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("costs.json");
    let table = CostTable::flat(0.125, &[(1, 1.5), (4, 2.0)], &[("ngram", 0.25)]).expect("a table");
    let here = Conditions::here(target.spec(), &["ngram"]);
    assert!(matches!(
        CostTable::load(&path, &here),
        Err(RakvError::Io { .. })
    ));
    table.save(&path, &here).expect("written");
    assert_eq!(CostTable::load(&path, &here).expect("its own"), table);

    let other: Target = Arc::new(hash_lm().seeded(3));
    let elsewhere = [
        (Conditions::here(other.spec(), &["ngram"]), "target"),
        (Conditions::here(target.spec(), &["model"]), "drafters"),
        (here.clone().with_note("one thread"), "note"),
    ];
    for (conditions, what) in elsewhere {
        let refused = CostTable::load(&path, &conditions).expect_err("measured elsewhere");
        assert!(
            matches!(&refused, RakvError::Mismatch { what: w, .. } if *w == what),
            "{refused}"
        );
    }
    let whole = std::fs::read(&path).expect("a file");
    for at in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..at]).expect("written");
        let torn = CostTable::load(&path, &here);
        assert!(
            matches!(torn, Err(RakvError::Damaged { .. })),
            "cut at {at}: {torn:?}"
        );
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 7);
        std::fs::write(&path, &flipped).expect("written");
        // White space and the like may change without a meaning; numbers may not.
        if let Ok(read) = CostTable::load(&path, &here) {
            assert_eq!(read, table, "bit at {at}");
        }
    }
}

/// A table measured here drives a controller.
#[test]
fn a_measured_table_drives_a_controller() {
    let target = target();
    let mut cache = slots(&target);
    let prompts = vec![text(1, 20), text(2, 25)];
    let mut drafter = often_right(&prompts, 0.9);
    let drafters: &mut [&mut dyn Drafter] = &mut [&mut drafter];
    let measured = calibrate(&*target, &mut cache, drafters, &options()).expect("measured");
    let controller = specdec_rakv::Adaptive::new(measured.table);
    let mut decoder = speculating(&target, &store(&target), drafter, controller.clone());
    for prompt in &prompts {
        warm(&mut decoder, prompt, 30);
    }
    let report = controller.report();
    assert_eq!(report.tokens, 60);
    assert!(report.measured > 0.0 && report.steps > 0);
    assert_eq!(target.spec().vocab, VOCAB);
}
