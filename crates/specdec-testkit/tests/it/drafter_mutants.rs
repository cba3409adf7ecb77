use crate::device;
use specdec_core::sampling::probabilities;
use specdec_core::{
    Block, Draft, DraftContext, Drafter, FixedLength, KvCache, Observation, Phase, Proposal,
    Result, RowDraft, RowSpan, SeqId, TargetModel, Token,
};
use specdec_testkit::conformance;
use specdec_testkit::scripted::{QForm, SamplingDrafter};
use specdec_testkit::{HashLm, VecCache};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// The last draft is never fed: a hole after full acceptance, filled with what comes next.
    HoleAfterFullAcceptance,
    /// Rejected drafts stay.
    KeepsRejected,
    /// Feeds nothing when a round had no draft.
    NotFedWithoutDrafts,
    /// Takes one committed token too few as valid: nothing wrong but slow.
    FeedsTwice,
}

/// A drafter that runs a model of its own over a [`VecCache`], one row at a time.
struct ModelDrafter {
    model: Arc<dyn TargetModel>,
    cache: VecCache,
    /// What is in the cache, per sequence.
    held: BTreeMap<SeqId, Vec<Token>>,
    bug: Bug,
}

impl ModelDrafter {
    fn new(model: Arc<dyn TargetModel>, bug: Bug) -> Self {
        let cache = VecCache::new(model.spec());
        Self {
            model,
            cache,
            held: BTreeMap::new(),
            bug,
        }
    }

    /// Feeds tokens and gives the logits after the last one.
    fn feed(&mut self, seq: SeqId, tokens: &[Token]) -> Result<Vec<f32>> {
        let start = self.cache.len(seq);
        let block = Block::single(seq, start, tokens, &self.model.spec().device);
        let mut attend = self.cache.begin(block.rows(), Phase::Prefill)?;
        let forward = self.model.forward(&block, &mut *attend, &[])?;
        drop(attend);
        self.cache.commit(&[tokens.len()])?;
        self.held.entry(seq).or_default().extend(tokens);
        let last = forward.hidden.narrow(0, tokens.len() - 1, 1);
        Ok(self
            .model
            .logits(last)
            .into_data()
            .try_into_vec_as::<f32>()
            .expect("floats"))
    }

    /// Cuts the cache back to `len` entries, by copying.
    fn cut(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let kept = self.cache.export(seq, 0..len)?;
        self.cache.evict(seq);
        self.cache.import(seq, &kept)?;
        self.held.entry(seq).or_default().truncate(len);
        Ok(())
    }
}

impl Drafter for ModelDrafter {
    fn name(&self) -> &'static str {
        "model"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let mut rows = Vec::new();
        for row in cx.rows {
            let held = self.held.entry(row.seq).or_default();
            let known = held
                .iter()
                .zip(row.tokens)
                .take_while(|(a, b)| a == b)
                .count();
            let known = known.min(row.tokens.len() - 1);
            let mut lag = match self.bug {
                Bug::KeepsRejected => row.tokens[known..].to_vec(),
                _ => {
                    self.cut(row.seq, known)?;
                    row.tokens[known..].to_vec()
                }
            };
            if self.bug == Bug::HoleAfterFullAcceptance && lag.len() == 2 && known > 0 {
                // The newest token stands where the one before it should be.
                lag = vec![row.tokens[row.tokens.len() - 1]];
            }
            if self.bug == Bug::NotFedWithoutDrafts && known > 0 && lag.len() > 2 {
                lag = lag[lag.len() - 2..].to_vec();
            }
            let mut logits = self.feed(row.seq, &lag)?;
            let mut tokens = Vec::new();
            while let Some(picked) = row.pick(&tokens, &mut logits) {
                tokens.push(picked.token);
                if tokens.len() == row.k {
                    break;
                }
                logits = self.feed(row.seq, &[picked.token])?;
            }
            if self.bug == Bug::FeedsTwice {
                let len = self.cache.len(row.seq);
                self.cut(row.seq, len.saturating_sub(2))?;
            }
            rows.push(RowDraft::deterministic(tokens));
        }
        Ok(Draft { rows })
    }

    fn evict(&mut self, seq: SeqId) {
        self.cache.evict(seq);
        self.held.remove(&seq);
    }
}

#[test]
fn a_right_model_drafter_keeps_both_contracts() {
    for bug in [Bug::None, Bug::FeedsTwice] {
        let report = conformance::model_drafter(&device(), |m| ModelDrafter::new(m, bug));
        report.unwrap_or_else(|v| panic!("{bug:?}: {v}"));
    }
    let target: Arc<dyn TargetModel> = Arc::new(HashLm::new(20, &device()).with_spread(2.0));
    let draft: Arc<dyn TargetModel> = Arc::new(
        HashLm::new(20, &device())
            .with_spread(2.0)
            .with_mistakes(0.4, 2),
    );
    let report = conformance::drafter(&target, || ModelDrafter::new(Arc::clone(&draft), Bug::None));
    report.unwrap_or_else(|v| panic!("{v}"));
}

/// Every form of a sampling drafter passes but the one that states a q it did not draw from.
#[test]
fn a_misstated_q_is_found() {
    let target: Arc<dyn TargetModel> = Arc::new(HashLm::new(6, &device()).with_spread(3.0));
    let other = HashLm::new(6, &device()).with_spread(3.0).seeded(1);
    for form in [QForm::Dense, QForm::Sparse, QForm::Greedy, QForm::Misstated] {
        let report = conformance::drafter(&target, || {
            let other = other.clone();
            SamplingDrafter::new(form, 1, move |content| {
                let logits = other.reference(content);
                probabilities(&logits).iter().map(|&p| p as f32).collect()
            })
        });
        match (form, report) {
            (QForm::Misstated, Err(v)) => assert_eq!(
                v.check, "under rejection, tokens have the target's distribution",
                "{v}"
            ),
            (QForm::Misstated, Ok(_)) => panic!("a false q was not found"),
            (_, report) => {
                report.unwrap_or_else(|v| panic!("{form:?}: {v}"));
            }
        }
    }
}

/// Output equality never sees these; the acceptance trace does.
#[test]
fn a_draft_model_that_lost_its_way_is_found() {
    for bug in [
        Bug::HoleAfterFullAcceptance,
        Bug::KeepsRejected,
        Bug::NotFedWithoutDrafts,
    ] {
        match conformance::model_drafter(&device(), |m| ModelDrafter::new(m, bug)) {
            Ok(_) => panic!("{bug:?} was not found"),
            Err(v) => assert_eq!(v.check, "drafts are the draft model's own", "{bug:?}: {v}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Fine,
    TooLong,
    OutsideVocabulary,
    RowsMissing,
    QOfAnotherToken,
    QTooShort,
    QNotADistribution,
    CommitsToTheTargetsCache,
    LeavesAPassOpen,
    EvictsTheTarget,
    FailsOnSecondUse,
    DropsFirstToken,
}

#[derive(Debug)]
struct Faulty {
    fault: Fault,
    seen: BTreeMap<SeqId, usize>,
    ended: usize,
}

impl Drafter for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let vocab = cx.target.spec().vocab;
        let device = cx.target.spec().device.clone();
        let mut rows = Vec::new();
        for row in cx.rows {
            *self.seen.entry(row.seq).or_default() += 1;
            let token = row.tokens[row.tokens.len() - 1];
            let mut tokens = vec![token; row.k];
            let mut proposal = Proposal::Deterministic;
            let q = |token: Token| {
                let mut q = vec![0.0f32; vocab];
                q[token as usize] = 1.0;
                q
            };
            match self.fault {
                Fault::TooLong => tokens.push(token),
                Fault::OutsideVocabulary => tokens[0] = vocab as Token,
                Fault::QOfAnotherToken => {
                    proposal = Proposal::Dense(vec![q((token + 1) % vocab as Token); row.k]);
                }
                Fault::QTooShort => proposal = Proposal::Dense(vec![q(token); row.k - 1]),
                Fault::QNotADistribution => {
                    proposal = Proposal::Sparse {
                        ids: vec![vec![token]; row.k],
                        probs: vec![vec![0.5]; row.k],
                    };
                }
                Fault::CommitsToTheTargetsCache
                | Fault::LeavesAPassOpen
                | Fault::EvictsTheTarget => {
                    let (seq, start) = (row.seq, cx.cache.len(row.seq));
                    if self.fault == Fault::EvictsTheTarget {
                        cx.cache.evict(seq);
                    } else {
                        let block = Block::single(seq, start, &[token], &device);
                        let span = [RowSpan { seq, start, len: 1 }];
                        if let Ok(mut attend) = cx.cache.begin(&span, Phase::Verify) {
                            cx.target.forward(&block, &mut *attend, &[])?;
                        }
                        if self.fault == Fault::CommitsToTheTargetsCache {
                            cx.cache.commit(&[1])?;
                        }
                    }
                }
                Fault::FailsOnSecondUse if self.ended > 2 => {
                    return Err(specdec_core::Error::Drafter("worn out".into()));
                }
                Fault::DropsFirstToken => {
                    // Not a fault of the contract: a bad draft is still a draft.
                    tokens.remove(0);
                }
                _ => {}
            }
            rows.push(RowDraft { tokens, proposal });
        }
        if self.fault == Fault::RowsMissing {
            rows.pop();
        }
        Ok(Draft { rows })
    }

    fn observe(&mut self, observation: &Observation<'_>) -> Result<()> {
        for row in observation.rows {
            self.seen.entry(row.seq).or_default();
        }
        Ok(())
    }

    fn evict(&mut self, seq: SeqId) {
        self.ended += usize::from(self.seen.remove(&seq).is_some());
    }
}

fn put(fault: Fault) -> Result<conformance::Report, conformance::Violation> {
    let target: Arc<dyn TargetModel> = Arc::new(HashLm::new(20, &device()).with_spread(2.0));
    conformance::drafter(&target, || Faulty {
        fault,
        seen: BTreeMap::new(),
        ended: 0,
    })
}

#[test]
fn every_planted_fault_is_found_by_the_right_check() {
    for fault in [Fault::Fine, Fault::DropsFirstToken] {
        put(fault).unwrap_or_else(|v| panic!("{fault:?}: {v}"));
    }
    for (fault, check) in [
        (Fault::TooLong, "at most k tokens are drafted"),
        (
            Fault::OutsideVocabulary,
            "drafted tokens are in the vocabulary",
        ),
        (Fault::RowsMissing, "one draft comes for each row"),
        (
            Fault::QOfAnotherToken,
            "a drafted token has a chance in its q",
        ),
        (Fault::QTooShort, "each drafted token has its q"),
        (Fault::QNotADistribution, "q is a distribution"),
        (
            Fault::CommitsToTheTargetsCache,
            "the target's cache is left as it was",
        ),
        (
            Fault::EvictsTheTarget,
            "the target's cache is left as it was",
        ),
        (Fault::FailsOnSecondUse, "decoding does not fail"),
    ] {
        match put(fault) {
            Ok(_) => panic!("{fault:?} was not found"),
            Err(v) => assert_eq!(v.check, check, "{fault:?}: {v}"),
        }
    }
    // The decoder closes it.
    put(Fault::LeavesAPassOpen).unwrap_or_else(|v| panic!("{v}"));
}

#[test]
fn lengths_of_zero_draft_nothing() {
    let target = HashLm::new(20, &device());
    let mut decoder = specdec_core::Decoder::builder(Arc::new(target.clone()))
        .cache(VecCache::new(target.spec()))
        .drafter(ModelDrafter::new(Arc::new(target.clone()), Bug::None))
        .controller(FixedLength(0))
        .build()
        .expect("the parts fit");
    let done = decoder.generate(specdec_core::Request::new([1, 2]).max_new_tokens(6));
    let done = done.expect("decoding");
    assert_eq!(done.tokens, target.greedy(&[1, 2], 6));
    assert_eq!(done.stats.acceptance_rate(), None);
}
