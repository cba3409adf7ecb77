use burn::prelude::*;
use specdec_core::sampling::Proposed;
use specdec_core::{
    Block, BuildError, Draft, DraftContext, DraftRow, Drafter, Error, KvCache, ModelSpec, Phase,
    PrefixCache, PrefixQuery, Result, RowDraft, RowSpan, SeqId, TargetModel, Token,
};
use std::collections::HashSet;
use std::sync::Arc;

/// Drafts with a smaller model of the same vocabulary.
///
/// It keeps its own cache, and catches up by one rule: whatever part of a sequence's content the
/// cache does not hold is run through the model, in one packed pass, before the first proposal.
/// Proposed tokens are staged and always rolled back; those that were accepted are content the next
/// time. So there is nothing to trim after a rejection and no hole to fill after full acceptance,
/// whichever draft lengths (0 included) the rounds had.
///
/// A row goes on without drafts when its content outgrows the draft model's context, or when it
/// holds a token that the draft model does not know.
pub struct ModelDrafter {
    model: Arc<dyn TargetModel>,
    cache: Box<dyn KvCache>,
    /// Sequences with a token the model does not know.
    foreign: HashSet<SeqId>,
    catch_up_chunk: usize,
    prefixes: Option<Box<dyn PrefixCache>>,
}

impl std::fmt::Debug for ModelDrafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelDrafter")
            .field("spec", self.model.spec())
            .finish_non_exhaustive()
    }
}

/// Tokens that are read before those that are looked back at.
const LEAD_IN: usize = 16;

/// The name under which the draft model reads beside its sequences; no decoder gets that far.
const ASIDE: SeqId = SeqId(u64::MAX);

/// A row while it is being drafted for.
struct Running<'r, 'a> {
    /// Its place among the rows asked for.
    at: usize,
    row: &'r DraftRow<'a>,
    k: usize,
    picks: Vec<Proposed>,
    tokens: Vec<Token>,
}

impl ModelDrafter {
    /// Drafts with `model`, whose keys and values are kept in `cache`.
    pub fn new(model: Arc<dyn TargetModel>, cache: impl KvCache + 'static) -> Self {
        Self {
            model,
            cache: Box::new(cache),
            foreign: HashSet::new(),
            catch_up_chunk: 512,
            prefixes: None,
        }
    }

    /// Keys and values of earlier texts of the draft model, in place of reading them again. They are
    /// the draft model's own: the target's are of no use to it.
    pub fn with_prefixes(mut self, prefixes: impl PrefixCache + 'static) -> Self {
        self.prefixes = Some(Box::new(prefixes));
        self
    }

    /// Starts rows that the cache does not know with what is stored of their content; true for those
    /// whose entries are to be stored when they have been read.
    fn reuse(&mut self, rows: &[Running<'_, '_>]) -> Vec<bool> {
        let Some(prefixes) = &mut self.prefixes else {
            return vec![false; rows.len()];
        };
        let mut new = Vec::with_capacity(rows.len());
        for running in rows {
            let unknown = self.cache.len(running.row.seq) == 0;
            new.push(unknown);
            if unknown {
                let query = PrefixQuery::new(running.row.seq, running.row.tokens);
                // What cannot be taken in is read.
                let _ = prefixes.load(&mut *self.cache, &query);
            }
        }
        new
    }

    /// Stores the content of these rows, which the cache has now.
    fn publish(&mut self, rows: &[Running<'_, '_>], new: &[bool]) {
        let Some(prefixes) = &mut self.prefixes else {
            return;
        };
        for (running, _) in rows.iter().zip(new).filter(|(_, new)| **new) {
            let query = PrefixQuery::new(running.row.seq, running.row.tokens);
            prefixes.save(&*self.cache, &query);
        }
    }

    /// The draft model's cache.
    pub fn cache(&self) -> &dyn KvCache {
        &*self.cache
    }

    /// How many tokens can be drafted for a row.
    fn usable(&mut self, row: &DraftRow<'_>) -> usize {
        let spec = self.model.spec();
        let known = self.cache.len(row.seq);
        let new = row.tokens.get(known..).unwrap_or_default();
        if new.iter().any(|&t| t as usize >= spec.vocab) {
            self.foreign.insert(row.seq);
        }
        if self.foreign.contains(&row.seq) {
            return 0;
        }
        row.k.min(spec.context.saturating_sub(row.tokens.len()))
    }

    /// Runs the content the cache does not hold, all rows packed, in chunks; the last logits of
    /// each row, `[rows][V]`.
    fn catch_up(&mut self, rows: &[Running<'_, '_>]) -> Result<Vec<Vec<f32>>> {
        let mut last: Vec<Vec<f32>> = vec![Vec::new(); rows.len()];
        loop {
            let mut block = Block::new(&self.model.spec().device);
            let mut ends = Vec::new();
            for (i, running) in rows.iter().enumerate() {
                let (seq, tokens) = (running.row.seq, running.row.tokens);
                let from = self.cache.len(seq);
                let take = (tokens.len() - from).min(self.catch_up_chunk - block.len());
                if take == 0 {
                    continue;
                }
                block.push(seq, from, &tokens[from..from + take]);
                if from + take == tokens.len() {
                    ends.push((i, block.len() - 1));
                }
            }
            if block.is_empty() {
                return Ok(last);
            }
            let places: Vec<usize> = ends.iter().map(|&(_, place)| place).collect();
            let logits = self.pass(&block, Phase::Prefill, &places)?;
            let keep: Vec<usize> = block.rows().iter().map(|row| row.len).collect();
            self.cache.commit(&keep)?;
            for ((i, _), logits) in ends.into_iter().zip(logits) {
                last[i] = logits;
            }
        }
    }

    /// The next logits of rows that have just been given a proposed token, staged only.
    fn advance(&mut self, rows: &[&Running<'_, '_>]) -> Result<Vec<Vec<f32>>> {
        let mut block = Block::new(&self.model.spec().device);
        for running in rows {
            let newest = running.tokens.len() - 1;
            block.push(
                running.row.seq,
                running.row.tokens.len() + newest,
                &running.tokens[newest..],
            );
        }
        let places: Vec<usize> = (0..rows.len()).collect();
        self.pass(&block, Phase::Draft, &places)
    }

    /// One pass; the logits at these places of the block, `[places][V]`.
    fn pass(&mut self, block: &Block, phase: Phase, places: &[usize]) -> Result<Vec<Vec<f32>>> {
        let mut attend = self.cache.begin(block.rows(), phase)?;
        let forward = self.model.forward(block, &mut *attend, &[]);
        drop(attend);
        let hidden = match forward {
            Ok(forward) => forward.hidden,
            Err(error) => {
                self.cache.rollback();
                return Err(error);
            }
        };
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let index: Vec<i64> = places.iter().map(|&p| p as i64).collect();
        let n = index.len();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [n]), block.device());
        let logits = self.model.logits(hidden.select(0, index));
        let [_, width] = logits.dims();
        let vocab = self.model.spec().vocab;
        if width < vocab {
            self.cache.rollback();
            let what = format!("{width} logits for a vocabulary of {vocab}");
            return Err(Error::Contract {
                part: "draft model",
                what,
            });
        }
        let values = logits.into_data().try_into_vec_as::<f32>().map_err(|e| {
            Error::Drafter(format!("the draft model's logits cannot be read: {e:?}").into())
        })?;
        Ok(values
            .chunks(width)
            .map(|row| row[..vocab].to_vec())
            .collect())
    }
}

/// What the rows will need in the draft model's cache: the content it lacks, and the proposals.
fn spans(cache: &dyn KvCache, rows: &[Running<'_, '_>]) -> Vec<RowSpan> {
    rows.iter()
        .map(|running| {
            let (seq, start) = (running.row.seq, cache.len(running.row.seq));
            RowSpan {
                seq,
                start,
                len: running.row.tokens.len() - start + running.k,
            }
        })
        .collect()
}

impl Running<'_, '_> {
    /// Picks a token from the draft model's logits; false when the row is done.
    fn pick(&mut self, logits: &mut [f32]) -> bool {
        let Some(pick) = self.row.pick(&self.tokens, logits) else {
            self.k = self.tokens.len();
            return false;
        };
        self.tokens.push(pick.token);
        self.picks.push(pick);
        self.tokens.len() < self.k
    }
}

impl Drafter for ModelDrafter {
    fn name(&self) -> &'static str {
        "draft-model"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let mut running: Vec<Running<'_, '_>> = Vec::new();
        for (at, row) in cx.rows.iter().enumerate() {
            let k = self.usable(row);
            if k > 0 {
                running.push(Running {
                    at,
                    row,
                    k,
                    picks: Vec::new(),
                    tokens: Vec::new(),
                });
            }
        }
        // Rows that the draft model has no memory for go without drafts.
        while !running.is_empty() && !self.cache.fits(&spans(&*self.cache, &running)) {
            running.pop();
        }
        if !running.is_empty() {
            let new = self.reuse(&running);
            let mut logits = self.catch_up(&running)?;
            self.publish(&running, &new);
            let mut going: Vec<bool> = running
                .iter_mut()
                .zip(&mut logits)
                .map(|(r, logits)| r.pick(logits))
                .collect();
            while going.iter().any(|&g| g) {
                let active: Vec<&Running<'_, '_>> = running
                    .iter()
                    .zip(&going)
                    .filter(|(_, g)| **g)
                    .map(|(r, _)| r)
                    .collect();
                let mut logits = self.advance(&active)?.into_iter();
                for (r, going) in running.iter_mut().zip(&mut going).filter(|(_, g)| **g) {
                    *going = logits.next().is_some_and(|mut logits| r.pick(&mut logits));
                }
            }
            self.cache.rollback();
        }
        let mut rows = vec![RowDraft::default(); cx.rows.len()];
        for r in running {
            rows[r.at] = Proposed::into_draft(r.picks);
        }
        Ok(Draft { rows })
    }

    /// One pass over each row's last tokens alone, as if its text began there: what came before them
    /// is not looked at, so the answer is a bit too pessimistic, and always costs the same.
    fn look_back(&mut self, cx: DraftContext<'_>) -> Result<Option<Vec<Vec<bool>>>> {
        let vocab = self.model.spec().vocab;
        let mut seen = vec![Vec::new(); cx.rows.len()];
        for (row, seen) in cx.rows.iter().zip(&mut seen) {
            let n = row
                .k
                .min(row.tokens.len() / 2)
                .min(row.tokens.len() - row.prompt_len);
            let from = row.tokens.len().saturating_sub(n + LEAD_IN);
            let tokens = &row.tokens[from..];
            let unknown = tokens.iter().any(|&t| t as usize >= vocab);
            let span = RowSpan {
                seq: ASIDE,
                start: 0,
                len: tokens.len(),
            };
            if n == 0 || unknown || !self.cache.fits(&[span]) {
                continue;
            }
            let block = Block::single(ASIDE, 0, tokens, &self.model.spec().device);
            // The token at place p is judged by the logits of the one before it.
            let first = tokens.len() - n;
            let places: Vec<usize> = (first - 1..tokens.len() - 1).collect();
            let logits = self.pass(&block, Phase::Draft, &places);
            self.cache.rollback();
            self.cache.evict(ASIDE);
            for (place, mut logits) in (first..).zip(logits?) {
                let mut before = *row;
                before.tokens = &row.tokens[..from + place];
                let pick = before.pick(&[], &mut logits);
                seen.push(pick.is_some_and(|pick| pick.token == tokens[place]));
            }
        }
        Ok(Some(seen))
    }

    fn evict(&mut self, seq: SeqId) {
        self.cache.evict(seq);
        self.foreign.remove(&seq);
    }

    fn check(&self, _: &ModelSpec) -> Result<(), BuildError> {
        if !self.cache.can_rewind() {
            return Err(BuildError::CannotRewind);
        }
        let prefixes = self.prefixes.as_ref();
        prefixes.map_or(Ok(()), |prefixes| prefixes.check(self.model.spec()))
    }
}
