//! A drafter that is several.

use crate::costs::MAX_SOURCES;
use crate::error::{RakvError, Result};
use crate::steering::{Choice, Sample, Steering};
use crate::taps::Taps;
use specdec_core::{
    BuildError, Draft, DraftContext, DraftRow, Drafter, Error, ModelSpec, Observation, RowDraft,
    SeqId, Token,
};
use std::collections::HashMap;

/// Emitted tokens a drafter looks back at.
pub(crate) const LOOK_BACK: usize = 32;

/// Several drafters, of which the controller chooses one for every row and step.
///
/// All of them observe every pass. Beside the chosen one, or instead of it, a drafter may draft
/// *silently*: its tokens are not verified but kept and compared with what the target emits, which
/// costs a draft and no verify pass. Or it *looks back* ([`Drafter::look_back`]) at the last emitted
/// tokens, which costs even less. Under greedy and coupled acceptance such a comparison is what
/// verification would have said; under rejection sampling it is a lower bound, since a draft is then
/// accepted more often than it equals an independent draw.
///
/// Without a controller that steers it (an [`crate::Adaptive`] whose [`Steering`] it was given) the
/// first drafter drafts.
pub struct SwitchDrafter {
    sources: Vec<Box<dyn Drafter>>,
    steering: Steering,
    taps: Taps,
    /// Silent drafts not yet compared to the end.
    silent: HashMap<SeqId, Vec<Silent>>,
}

#[derive(Debug)]
struct Silent {
    source: usize,
    /// Content index of the first token.
    start: usize,
    tokens: Vec<Token>,
}

impl std::fmt::Debug for SwitchDrafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.sources.iter().map(|s| s.name()).collect();
        f.debug_struct("SwitchDrafter")
            .field("sources", &names)
            .finish_non_exhaustive()
    }
}

impl SwitchDrafter {
    /// Switches between these drafters, as the controller with this handle says. They stand in the
    /// order of the controller's cost table.
    ///
    /// # Errors
    /// [`RakvError::Setting`] for no drafter, or more than [`MAX_SOURCES`].
    pub fn new(
        sources: impl IntoIterator<Item = Box<dyn Drafter>>,
        steering: Steering,
    ) -> Result<Self> {
        let sources: Vec<Box<dyn Drafter>> = sources.into_iter().collect();
        if sources.is_empty() || sources.len() > MAX_SOURCES {
            return Err(RakvError::Setting {
                setting: "drafters",
                value: sources.len().to_string(),
                allowed: "1 to 4",
            });
        }
        steering.board().drafters = sources.len();
        Ok(Self {
            taps: Taps::of(sources.iter().map(|s| s.taps())),
            sources,
            steering,
            silent: HashMap::new(),
        })
    }

    /// Who drafts for each row.
    fn choices(&self, rows: &[DraftRow<'_>]) -> Vec<Choice> {
        let board = self.steering.board();
        let first = Choice {
            verified: Some(0),
            ..Choice::default()
        };
        let choice = |row: &DraftRow<'_>| board.choices.get(&row.seq).copied().unwrap_or(first);
        rows.iter().map(choice).collect()
    }

    /// Lets the drafters that are to look back do so, and tells the controller.
    fn look(&mut self, choices: &[Choice], cx: &mut DraftContext<'_>) -> specdec_core::Result<()> {
        for (source, drafter) in self.sources.iter_mut().enumerate() {
            let asked = cx.rows.iter().zip(choices);
            let rows: Vec<DraftRow<'_>> = asked
                .filter(|(_, choice)| choice.back == Some(source))
                .map(|(row, _)| {
                    let mut row = *row;
                    row.k = LOOK_BACK;
                    row
                })
                .collect();
            if rows.is_empty() {
                continue;
            }
            let looks = drafter.look_back(DraftContext {
                rows: &rows,
                target: cx.target,
                cache: &mut *cx.cache,
            });
            cx.cache.rollback();
            let mut board = self.steering.board();
            match looks? {
                None => board.blind[source] = true,
                Some(looks) => {
                    let looks = rows.iter().zip(looks);
                    board
                        .looks
                        .extend(looks.map(|(row, look)| (row.seq, source, look)));
                }
            }
        }
        Ok(())
    }

    /// Compares silent drafts with what has been emitted, and tells the controller.
    fn compare(&mut self, seq: SeqId, tokens: &[Token]) {
        let Some(drafts) = self.silent.get_mut(&seq) else {
            return;
        };
        let mut board = self.steering.board();
        drafts.retain(|draft| {
            let emitted = tokens.get(draft.start..).unwrap_or_default();
            let pairs = draft.tokens.iter().zip(emitted);
            let right = pairs.take_while(|(a, b)| a == b).count();
            let failed = right < draft.tokens.len() && right < emitted.len();
            let done = failed || right == draft.tokens.len();
            if done {
                board.samples.push(Sample {
                    seq,
                    source: draft.source,
                    right,
                    failed,
                });
            }
            !done
        });
        if drafts.is_empty() {
            self.silent.remove(&seq);
        }
    }
}

impl Drafter for SwitchDrafter {
    fn name(&self) -> &'static str {
        "switch"
    }

    fn draft(&mut self, mut cx: DraftContext<'_>) -> specdec_core::Result<Draft> {
        let choices = self.choices(cx.rows);
        self.look(&choices, &mut cx)?;
        let mut drafts = vec![RowDraft::default(); cx.rows.len()];
        for (source, drafter) in self.sources.iter_mut().enumerate() {
            let asked: Vec<usize> = (0..cx.rows.len())
                .filter(|&i| {
                    choices[i].verified == Some(source) || choices[i].silent == Some(source)
                })
                .collect();
            if asked.is_empty() {
                continue;
            }
            let rows: Vec<DraftRow<'_>> = asked.iter().map(|&i| cx.rows[i]).collect();
            let proposed = drafter.draft(DraftContext {
                rows: &rows,
                target: cx.target,
                cache: &mut *cx.cache,
            });
            // A drafter that ran the target leaves its entries staged.
            cx.cache.rollback();
            let proposed = proposed?;
            if proposed.rows.len() != asked.len() {
                return Err(Error::Contract {
                    part: drafter.name(),
                    what: format!("{} drafts for {} rows", proposed.rows.len(), asked.len()),
                });
            }
            for (&i, draft) in asked.iter().zip(proposed.rows) {
                let row = &cx.rows[i];
                if choices[i].verified == Some(source) {
                    drafts[i] = draft;
                } else if !draft.tokens.is_empty() {
                    let mut tokens = draft.tokens;
                    tokens.truncate(row.k);
                    self.silent.entry(row.seq).or_default().push(Silent {
                        source,
                        start: row.tokens.len(),
                        tokens,
                    });
                }
            }
        }
        Ok(Draft { rows: drafts })
    }

    fn observe(&mut self, observation: &Observation<'_>) -> specdec_core::Result<()> {
        for row in observation.rows {
            self.compare(row.seq, row.tokens);
        }
        let mut result = Ok(());
        for (i, source) in self.sources.iter_mut().enumerate() {
            let taps = self.taps.pick(i, observation.taps)?;
            // All learn, even when one fails.
            let learned = source.observe(&Observation::new(
                observation.phase,
                observation.rows,
                &taps,
            ));
            result = result.and(learned);
        }
        result
    }

    fn evict(&mut self, seq: SeqId) {
        self.silent.remove(&seq);
        for source in &mut self.sources {
            source.evict(seq);
        }
    }

    fn taps(&self) -> &[usize] {
        self.taps.union()
    }

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        self.sources.iter().try_for_each(|s| s.check(target))
    }
}
