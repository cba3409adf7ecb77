use crate::device;
use burn::prelude::*;
use specdec_core::{
    Attend, CacheError, Error, KvCache, KvSegment, ModelSpec, Phase, Result, RowSpan, SeqId,
};
use specdec_testkit::VecCache;
use specdec_testkit::conformance::{self, CachePromises};
use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    IgnoresKeep,
    KeepsOneMore,
    RollbackKeeps,
    EvictKeeps,
    LenCountsStaged,
    IgnoresWindows,
    IgnoresScale,
    WindowOneTooLong,
    SecondPassReplaces,
    VerifyDropsDrafts,
    CommitsDrafts,
    DraftsForget,
    AllowsDuplicates,
    AllowsEmptyRows,
    AllowsAnyStart,
    WrongErrorForKeep,
    ShapePanicsLater,
    UnknownLayerIsLast,
    ExportsOneOff,
    ExportsSilence,
    ImportDropsLast,
    ImportTakesAnyStart,
    SeesLater,
    SeesNeighbours,
    MixesRows,
    Poisoned,
    Leaks,
    RoundsByWidth,
}

/// The plain cache with one bug.
struct Mutant {
    inner: VecCache,
    spec: ModelSpec,
    bug: Bug,
    rows: Vec<RowSpan>,
    phase: Phase,
    open: bool,
    poisoned: bool,
    leaked: usize,
    seen: BTreeSet<SeqId>,
}

impl Mutant {
    fn new(spec: &ModelSpec, bug: Bug) -> Self {
        let mut inner = spec.clone();
        match bug {
            Bug::IgnoresWindows => inner.windows.clear(),
            Bug::WindowOneTooLong => {
                inner.windows.iter_mut().flatten().for_each(|w| *w += 1);
            }
            Bug::IgnoresScale => inner.scale = None,
            _ => {}
        }
        Self {
            inner: VecCache::new(&inner),
            spec: spec.clone(),
            bug,
            rows: Vec::new(),
            phase: Phase::Verify,
            open: false,
            poisoned: false,
            leaked: 0,
            seen: BTreeSet::new(),
        }
    }

    fn keep_all(&mut self) -> Result<()> {
        let all: Vec<usize> = self.rows.iter().map(|row| row.len).collect();
        self.inner.commit(&all)
    }
}

struct MutantAttend<'a> {
    inner: Box<dyn Attend + 'a>,
    bug: Bug,
    rows: Vec<RowSpan>,
    layers: usize,
    poisoned: &'a mut bool,
}

impl Attend for MutantAttend<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> Result<Tensor<3>> {
        let t: usize = self.rows.iter().map(|row| row.len).sum();
        let fits = q.dims()[0] == t && k.dims()[0] == t && v.dims()[0] == t;
        if self.bug == Bug::ShapePanicsLater && !fits {
            let device = q.device();
            return Ok(Tensor::zeros([t, q.dims()[1], q.dims()[2]], &device));
        }
        let layer = if self.bug == Bug::UnknownLayerIsLast {
            layer.min(self.layers - 1)
        } else {
            layer
        };
        let nan = v.clone().is_nan().any().into_scalar::<bool>();
        let mean = v.clone().mean_dim(0);
        let out = self.inner.attend(layer, q, k, v)?;
        let n = out.dims()[0];
        // Each row's last token's answer, and the answer of the token before.
        Ok(match self.bug {
            Bug::Poisoned => {
                *self.poisoned |= nan;
                if *self.poisoned { out * f32::NAN } else { out }
            }
            Bug::SeesLater if n > 1 => {
                let later = out.clone().narrow(0, 1, n - 1);
                let last = out.clone().narrow(0, n - 1, 1);
                out * 0.9 + Tensor::cat(vec![later, last], 0) * 0.1
            }
            Bug::SeesNeighbours if self.rows.len() > 1 => out + mean.mean_dim(1).mean_dim(2) * 0.05,
            Bug::MixesRows if self.rows.len() > 1 => out.flip([0]),
            Bug::RoundsByWidth => out * (1.0 + 1e-6 * n as f32),
            _ => out,
        })
    }
}

impl KvCache for Mutant {
    fn len(&self, seq: SeqId) -> usize {
        let staged = self
            .rows
            .iter()
            .find(|row| row.seq == seq && self.open)
            .map_or(0, |r| r.len);
        let counted = if self.bug == Bug::LenCountsStaged && self.phase == Phase::Draft {
            staged
        } else {
            0
        };
        self.inner.len(seq) + counted
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        let mut rows = rows.to_vec();
        match self.bug {
            Bug::SecondPassReplaces if self.phase != Phase::Draft => self.inner.rollback(),
            Bug::VerifyDropsDrafts if phase != Phase::Draft && self.phase == Phase::Draft => {
                self.inner.rollback();
            }
            Bug::DraftsForget if self.phase == Phase::Draft && phase == Phase::Draft => {
                self.inner.rollback();
                for row in &mut rows {
                    row.start = self.inner.len(row.seq);
                }
            }
            Bug::AllowsDuplicates => {
                let mut seen = BTreeSet::new();
                rows.retain(|row| seen.insert(row.seq));
            }
            Bug::AllowsEmptyRows => rows.retain(|row| row.len > 0),
            Bug::AllowsAnyStart if !self.open => {
                for row in &mut rows {
                    row.start = self.inner.len(row.seq);
                }
            }
            _ => {}
        }
        let attend = self.inner.begin(&rows, phase)?;
        self.rows = rows;
        self.phase = phase;
        self.open = true;
        self.seen.extend(self.rows.iter().map(|row| row.seq));
        Ok(Box::new(MutantAttend {
            inner: attend,
            bug: self.bug,
            rows: self.rows.clone(),
            layers: self.spec.layers,
            poisoned: &mut self.poisoned,
        }))
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        let mut keep = keep.to_vec();
        match self.bug {
            Bug::IgnoresKeep
                if keep.len() == self.rows.len()
                    && keep.iter().zip(&self.rows).all(|(k, row)| *k <= row.len) =>
            {
                self.keep_all()?;
                self.open = false;
                return Ok(());
            }
            Bug::KeepsOneMore if keep.len() == self.rows.len() => {
                for (k, row) in keep.iter_mut().zip(&self.rows) {
                    if *k + 1 == row.len {
                        *k += 1;
                    }
                }
            }
            Bug::CommitsDrafts if self.phase == Phase::Draft => {
                self.inner.rollback();
                return Ok(());
            }
            Bug::WrongErrorForKeep => {
                return self.inner.commit(&keep).map_err(|e| match e {
                    Error::Cache(CacheError::KeepTooMany { .. }) => CacheError::NoPass.into(),
                    e => e,
                });
            }
            _ => {}
        }
        self.inner.commit(&keep)?;
        self.open = false;
        self.leaked += 64 * self.rows.len();
        Ok(())
    }

    fn rollback(&mut self) {
        if self.bug == Bug::RollbackKeeps && self.phase != Phase::Draft {
            let _ = self.keep_all();
        }
        self.inner.rollback();
        self.open = false;
        self.phase = Phase::Verify;
    }

    fn evict(&mut self, seq: SeqId) {
        if self.bug != Bug::EvictKeeps {
            self.inner.evict(seq);
        }
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        let len = self.inner.len(seq);
        match self.bug {
            Bug::ExportsOneOff if range.start > 0 && range.end <= len => {
                let mut segment = self.inner.export(seq, range.start - 1..range.end - 1)?;
                segment.range = range;
                Ok(segment)
            }
            Bug::ExportsSilence => {
                let mut segment = self
                    .inner
                    .export(seq, range.start.min(len)..range.end.min(len))?;
                segment.range = range;
                Ok(segment)
            }
            _ => self.inner.export(seq, range),
        }
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        let mut segment = segment.clone();
        match self.bug {
            Bug::ImportTakesAnyStart => {
                let len = self.inner.len(seq);
                segment.range = len..len + segment.range.len();
            }
            Bug::ImportDropsLast if segment.range.len() > 1 => {
                let n = segment.range.len() - 1;
                segment.range.end -= 1;
                for (k, v) in &mut segment.layers {
                    *k = k.clone().narrow(0, 0, n);
                    *v = v.clone().narrow(0, 0, n);
                }
            }
            _ => {}
        }
        self.inner.import(seq, &segment)
    }

    fn memory_bytes(&self) -> usize {
        let leaked = if self.bug == Bug::Leaks {
            self.leaked
        } else {
            0
        };
        self.inner.memory_bytes() + leaked
    }
}

#[test]
fn the_plain_cache_keeps_its_contract() {
    let mut promises = CachePromises::default();
    promises.bitwise = true;
    let report = conformance::cache_promising(&promises, &device(), VecCache::new);
    let report = report.unwrap_or_else(|v| panic!("{v}"));
    let rare: Vec<_> = report.checks().filter(|(_, n)| *n < 3).collect();
    assert!(rare.is_empty(), "hardly checked: {rare:?}");
}

fn found(bug: Bug, promises: &CachePromises) -> String {
    let result = conformance::cache_promising(promises, &device(), |spec| Mutant::new(spec, bug));
    match result {
        Ok(_) => panic!("{bug:?} was not found"),
        Err(violation) => violation.check.to_owned(),
    }
}

#[test]
fn every_planted_bug_is_found_by_the_right_check() {
    let p = CachePromises::default();
    let attention = "attention sees all committed and earlier tokens of its own row, no others";
    let len = "len counts what was kept";
    for (bug, check) in [
        (Bug::IgnoresKeep, len),
        (Bug::KeepsOneMore, len),
        (Bug::RollbackKeeps, len),
        (Bug::EvictKeeps, len),
        (Bug::LenCountsStaged, len),
        (Bug::IgnoresWindows, attention),
        (Bug::WindowOneTooLong, attention),
        (Bug::IgnoresScale, attention),
        (
            Bug::SecondPassReplaces,
            "a second pass is refused with PassOpen",
        ),
        (
            Bug::VerifyDropsDrafts,
            "a verify pass before the drafts are gone is refused",
        ),
        (
            Bug::CommitsDrafts,
            "committing a draft is refused with DraftPass",
        ),
        (Bug::DraftsForget, attention),
        (
            Bug::AllowsDuplicates,
            "a sequence twice in a pass is refused with Duplicate",
        ),
        (
            Bug::AllowsEmptyRows,
            "a row without tokens is refused with EmptyRow",
        ),
        (
            Bug::AllowsAnyStart,
            "a row that starts too early is refused with Start",
        ),
        (
            Bug::WrongErrorForKeep,
            "keeping more than was staged is refused with KeepTooMany",
        ),
        (
            Bug::ShapePanicsLater,
            "q of another length is refused with Shape",
        ),
        (
            Bug::UnknownLayerIsLast,
            "a layer that does not exist is refused with Layer",
        ),
        (Bug::ExportsOneOff, "a segment holds what was committed"),
        (
            Bug::ExportsSilence,
            "copying what is not committed is refused with Range",
        ),
        (Bug::ImportDropsLast, len),
        (
            Bug::ImportTakesAnyStart,
            "a segment that does not continue the sequence is refused",
        ),
        (Bug::SeesLater, attention),
        (Bug::SeesNeighbours, attention),
        (Bug::MixesRows, attention),
        (Bug::Poisoned, "a row of NaN does not hurt its neighbours"),
        (Bug::Leaks, "memory is flat over generations that end"),
    ] {
        assert_eq!(found(bug, &p), check, "{bug:?}");
    }
}

/// What only a promise of bits shows.
#[test]
fn rounding_by_block_width_is_found_when_bits_are_promised() {
    let mut promises = CachePromises::default();
    let loose = conformance::cache_promising(&promises, &device(), |spec| {
        Mutant::new(spec, Bug::RoundsByWidth)
    });
    assert!(loose.is_ok(), "{loose:?}");
    promises.bitwise = true;
    assert!(found(Bug::RoundsByWidth, &promises).contains("same bits"));
}

/// Drafting by attending to less is found, and allowed when it is declared.
#[test]
fn approximate_drafts_are_a_promise_not_made() {
    let mut promises = CachePromises::default();
    promises.exact_drafts = false;
    let forgetful = conformance::cache_promising(&promises, &device(), |spec| {
        Mutant::new(spec, Bug::DraftsForget)
    });
    // The attention of drafts is not compared; that staged drafts add up is.
    assert!(forgetful.is_err());
}
