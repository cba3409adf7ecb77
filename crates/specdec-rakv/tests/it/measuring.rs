//! Drafters that draft while they are measured, and those that do not.

use crate::calibration::options;
use crate::world::*;
use burn::prelude::*;
use specdec_core::{Draft, DraftContext, DraftRow, Drafter, Observation, Phase, RowDraft, SeqId};
use specdec_draft::NgramDrafter;
use specdec_lilicorr::{
    DFlashDrafter, DraftConfig, DraftModel, HeadConfig, LayerKind, LiLiCorrDrafter,
};
use specdec_rakv::{CostTable, RakvError, calibrate};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Drafts as long as it has observed every position before the anchor, with the layers it asked for
/// in the order it asked; each draft takes its time.
#[derive(Default)]
struct Fed {
    taps: Vec<usize>,
    /// Positions, and the numbers that came with them.
    seen: BTreeMap<SeqId, Vec<Vec<f32>>>,
    /// Most tokens of a draft.
    most: Option<usize>,
    takes: Duration,
    drafts: usize,
    empty: usize,
}

impl Drafter for Fed {
    fn name(&self) -> &'static str {
        "fed"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> specdec_core::Result<Draft> {
        let row = |row: &DraftRow<'_>| {
            let seen = self.seen.get(&row.seq).map_or(0, Vec::len);
            let ready = seen == row.tokens.len() - 1;
            let k = row.k.min(self.most.unwrap_or(row.k));
            RowDraft::deterministic(vec![1; if ready { k } else { 0 }])
        };
        let rows: Vec<RowDraft> = cx.rows.iter().map(row).collect();
        if rows.iter().any(|row| row.tokens.is_empty()) {
            self.empty += 1;
        } else {
            self.drafts += 1;
            std::thread::sleep(self.takes);
        }
        Ok(Draft { rows })
    }

    fn observe(&mut self, observation: &Observation<'_>) -> specdec_core::Result<()> {
        assert_ne!(observation.phase, Phase::Draft);
        assert_eq!(observation.taps.len(), self.taps.len());
        for row in observation.rows {
            let seen = self.seen.entry(row.seq).or_default();
            assert_eq!(row.start, seen.len(), "each position once, in order");
            assert!(row.tokens.len() > row.start + row.committed.len());
            for at in row.committed.clone() {
                let state = |tap: &Tensor<2>| {
                    let tap = tap.clone().slice([at..at + 1, 0..1]).into_data();
                    tap.iter::<f32>().next().expect("one number")
                };
                seen.push(observation.taps.iter().map(state).collect());
            }
        }
        Ok(())
    }

    fn evict(&mut self, seq: SeqId) {
        self.seen.remove(&seq);
    }

    fn taps(&self) -> &[usize] {
        &self.taps
    }
}

/// A drafter that lives on hidden states is given them, and is measured while it drafts.
#[test]
fn drafters_that_need_hidden_states_draft_while_they_are_measured() {
    let target = target();
    let mut cache = slots(&target);
    let fed = |taps: &[usize]| Fed {
        taps: taps.to_vec(),
        takes: Duration::from_millis(3),
        ..Fed::default()
    };
    let (mut one, mut two) = (fed(&[2, 0]), fed(&[1]));
    let drafters: &mut [&mut dyn Drafter] = &mut [&mut one, &mut two];
    let measured = calibrate(&*target, &mut cache, drafters, &options()).expect("measured");
    for (source, drafter) in [&one, &two].into_iter().enumerate() {
        // Each of four groups: two lengths four times, and once to see what catching up costs.
        assert_eq!((drafter.drafts, drafter.empty), (4 * (2 * 4 + 1), 0));
        assert!(drafter.seen.is_empty(), "evicted");
        for k in [1, 4] {
            let seconds = measured.table.draft_seconds(source, 3, 30, k);
            assert!(seconds >= 0.003, "{k}: {seconds}");
        }
    }
}

/// Each drafter sees its own layers, in its own order.
#[test]
fn drafters_see_their_own_taps() {
    struct Kept<'a>(Fed, &'a mut Vec<Vec<f32>>);
    impl Drafter for Kept<'_> {
        fn name(&self) -> &'static str {
            "kept"
        }
        fn draft(&mut self, cx: DraftContext<'_>) -> specdec_core::Result<Draft> {
            self.0.draft(cx)
        }
        fn observe(&mut self, observation: &Observation<'_>) -> specdec_core::Result<()> {
            self.0.observe(observation)
        }
        fn evict(&mut self, seq: SeqId) {
            self.1.extend(self.0.seen.remove(&seq).unwrap_or_default());
        }
        fn taps(&self) -> &[usize] {
            self.0.taps()
        }
    }
    let target = target();
    let run = |taps: [&[usize]; 2]| {
        let [mut one, mut two] = [Vec::new(), Vec::new()];
        let fed = |taps: &[usize]| Fed {
            taps: taps.to_vec(),
            ..Fed::default()
        };
        let mut kept = [Kept(fed(taps[0]), &mut one), Kept(fed(taps[1]), &mut two)];
        let [a, b] = &mut kept;
        let drafters: &mut [&mut dyn Drafter] = &mut [a, b];
        calibrate(&*target, &mut slots(&target), drafters, &options()).expect("measured");
        (one, two)
    };
    let (both, last) = run([&[2, 0], &[2]]);
    let (turned, first) = run([&[0, 2], &[0]]);
    assert!(!both.is_empty() && both.len() == last.len());
    for i in 0..both.len() {
        assert_eq!(both[i], [last[i][0], first[i][0]]);
        assert_eq!(turned[i], [first[i][0], last[i][0]]);
    }
    assert_ne!(first, last);
}

/// Drafts that came back short, or not at all, are not taken for cheap ones.
#[test]
fn short_drafts_are_not_cheap() {
    let target = target();
    let table = |most| {
        let mut drafter = Fed {
            most: Some(most),
            takes: Duration::from_millis(4),
            ..Fed::default()
        };
        let drafters: &mut [&mut dyn Drafter] = &mut [&mut drafter];
        let measured = calibrate(&*target, &mut slots(&target), drafters, &options());
        measured.expect("measured").table
    };
    let one = table(1);
    assert!(one.draft_seconds(0, 3, 30, 4) >= 0.016);
    // As they were measured: repairs may move either afterwards.
    let none = table(0);
    let raw = none.measurements();
    let cells = raw.sources[0].draft.iter().zip(&raw.verify);
    for (i, (draft, verify)) in cells.enumerate() {
        let plain = raw.lengths[i % raw.lengths.len()] == 0;
        let good = if plain {
            *draft == 0.0
        } else {
            draft >= verify
        };
        assert!(good, "cell {i}: {draft} {verify}");
    }
}

/// Any drafter, with how many tokens each row asked for and got.
struct Lengths<D>(D, Vec<(usize, usize)>);

impl<D: Drafter> Lengths<D> {
    fn measured(drafter: D, target: &Target) -> (CostTable, Self) {
        let mut lengths = Self(drafter, Vec::new());
        let drafters: &mut [&mut dyn Drafter] = &mut [&mut lengths];
        let measured = calibrate(&**target, &mut slots(target), drafters, &options());
        (measured.expect("measured").table, lengths)
    }

    /// All drafts were as long as asked.
    fn all_whole(&self) {
        let short = self.1.iter().filter(|(asked, got)| got < asked).count();
        assert!(!self.1.is_empty() && short == 0, "{:?}", self.1);
    }
}

impl<D: Drafter> Drafter for Lengths<D> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> specdec_core::Result<Draft> {
        let asked: Vec<usize> = cx.rows.iter().map(|row| row.k).collect();
        let draft = self.0.draft(cx)?;
        let got = draft.rows.iter().map(|row| row.tokens.len());
        self.1.extend(asked.into_iter().zip(got));
        Ok(draft)
    }

    fn observe(&mut self, observation: &Observation<'_>) -> specdec_core::Result<()> {
        self.0.observe(observation)
    }

    fn evict(&mut self, seq: SeqId) {
        self.0.evict(seq);
    }

    fn taps(&self) -> &[usize] {
        self.0.taps()
    }
}

/// The text of the measurement repeats itself: an n-gram drafter has something to say.
#[test]
fn n_grams_are_found_in_the_text() {
    let (_, drafter) = Lengths::measured(NgramDrafter::default(), &target());
    drafter.all_whole();
}

/// The block drafters, which need features of the position before the anchor.
#[test]
fn block_drafters_are_measured_while_they_draft() {
    let target = target();
    let spec = target.spec();
    let config = DraftConfig {
        hidden: spec.hidden,
        layers: vec![LayerKind::Full],
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        intermediate: 8,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        vocab: spec.vocab,
        target_layers: spec.layers,
        taps: DraftConfig::usual_taps(spec.layers, 3),
        mask_token: 39,
        block_size: 5,
        draft_vocab: None,
        head: Some(HeadConfig {
            heads: 2,
            ..HeadConfig::new(8, 8)
        }),
    };
    let model = || DraftModel::new(&config, 1, &spec.device).expect("a small network");
    let dflash = DFlashDrafter::new(model(), &*target).expect("it fits");
    let (table, dflash) = Lengths::measured(dflash, &target);
    dflash.all_whole();
    assert!(table.draft_seconds(0, 3, 30, 4) > 0.0);
    assert!(dflash.0.positions(SeqId(u64::MAX)).is_empty(), "evicted");
    let lilicorr = LiLiCorrDrafter::new(model(), &*target).expect("it fits");
    let (table, lilicorr) = Lengths::measured(lilicorr, &target);
    lilicorr.all_whole();
    assert!(table.draft_seconds(0, 3, 30, 4) > 0.0);
}

/// A tap of a layer that the target does not have.
#[test]
fn taps_the_target_has_not() {
    let target = target();
    let mut drafter = Fed {
        taps: vec![0, target.spec().layers],
        ..Fed::default()
    };
    let drafters: &mut [&mut dyn Drafter] = &mut [&mut drafter];
    let refused = calibrate(&*target, &mut slots(&target), drafters, &options());
    assert!(
        matches!(
            &refused,
            Err(RakvError::Setting {
                setting: "taps",
                ..
            })
        ),
        "{refused:?}"
    );
}

/// Where all layers slide, the beginning is gone and no prefix can be restored; all else is measured.
#[test]
fn models_with_windows_are_measured_too() {
    let target: Target = Arc::new(hash_lm().with_window(6, true));
    let drafters: &mut [&mut dyn Drafter] = &mut [&mut NgramDrafter::default()];
    let measured = calibrate(&*target, &mut slots(&target), drafters, &options());
    let table = measured.expect("measured").table;
    let raw = table.measurements();
    assert_eq!(raw.verify.len(), 12);
    assert_eq!((raw.restore.fixed, raw.restore.each), (0.0, 0.0));
}
