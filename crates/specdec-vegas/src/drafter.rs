use specdec_core::sampling::{Proposed, probabilities};
use specdec_core::{
    Block, BuildError, Draft, DraftContext, DraftRow, Drafter, Error, KvCache, ModelSpec, Phase,
    Result, RowDraft, RowSpan, TargetModel, Token,
};
use std::sync::Arc;

/// Drafts with the target itself, through the target's cache.
///
/// With a [`Vegas`](crate::Vegas) cache draft passes attend to the keys that matter, with any other
/// one to everything: then every draft is the target's own next token, and nothing is gained.
///
/// All rows draft in lock-step, one packed pass a token; rows with shorter drafts leave earlier. What
/// the passes stage is always rolled back, so the cache never keeps an entry computed from a part of
/// the context.
pub struct VegasDrafter {
    model: Option<Arc<dyn TargetModel>>,
    name: &'static str,
    most_entropy: f64,
}

impl std::fmt::Debug for VegasDrafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VegasDrafter")
            .field("name", &self.name)
            .field("model", &self.model.as_ref().map(|model| model.spec()))
            .field("most_entropy", &self.most_entropy)
            .finish()
    }
}

impl Default for VegasDrafter {
    fn default() -> Self {
        Self::new()
    }
}

/// A row while it is being drafted for.
struct Running<'r, 'a> {
    /// Its place among the rows asked for.
    at: usize,
    row: &'r DraftRow<'a>,
    k: usize,
    going: bool,
    picks: Vec<Proposed>,
    tokens: Vec<Token>,
}

impl VegasDrafter {
    /// Drafts with the target.
    pub fn new() -> Self {
        Self {
            model: None,
            name: "vegas",
            most_entropy: f64::INFINITY,
        }
    }

    /// Drafts with a cheaper copy of the target, such as one with quantised weights, in its place. It
    /// reads the target's keys and values, so it must be of the same architecture; `name` stands in
    /// results and statistics.
    pub fn with_model(mut self, model: Arc<dyn TargetModel>, name: &'static str) -> Self {
        self.model = Some(model);
        self.name = name;
        self
    }

    /// Ends a row's draft where the draft's own next-token distribution (softmax of its logits, before
    /// rules and temperature) has more than `nats` of entropy. That is decided before the token is
    /// picked: whether a token is proposed does not depend on which one it would be.
    ///
    /// # Errors
    /// [`BuildError::Setting`] for a number below 0, or none.
    pub fn with_entropy_limit(mut self, nats: f64) -> Result<Self, BuildError> {
        if nats.is_nan() || nats < 0.0 {
            return Err(BuildError::Setting {
                setting: "entropy limit",
                value: nats.to_string(),
                allowed: "0 or above",
            });
        }
        self.most_entropy = nats;
        Ok(self)
    }

    /// Whether to go no further from these logits.
    fn unsure(&self, logits: &[f32]) -> bool {
        self.most_entropy < f64::INFINITY && entropy(logits) > self.most_entropy
    }
}

/// Entropy of the softmax of these logits in nats.
fn entropy(logits: &[f32]) -> f64 {
    let p = probabilities(logits);
    p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

impl Running<'_, '_> {
    /// The newest token and its position.
    fn newest(&self) -> (Token, usize) {
        let (content, drafted) = (self.row.tokens, &self.tokens);
        let newest = drafted.last().or(content.last()).copied();
        (
            newest.unwrap_or_default(),
            (content.len() + drafted.len()).saturating_sub(1),
        )
    }

    fn pick(&mut self, logits: &mut [f32]) {
        match self.row.pick(&self.tokens, logits) {
            Some(pick) => {
                self.tokens.push(pick.token);
                self.picks.push(pick);
                self.going = self.tokens.len() < self.k;
            }
            None => self.going = false,
        }
    }
}

/// What the rows will need in the cache.
fn spans(rows: &[Running<'_, '_>]) -> Vec<RowSpan> {
    let span = |running: &Running<'_, '_>| RowSpan {
        seq: running.row.seq,
        start: running.row.tokens.len().saturating_sub(1),
        len: running.k,
    };
    rows.iter().map(span).collect()
}

/// One pass over one token of each row; the next logits, `[rows][V]`.
fn pass(model: &dyn TargetModel, cache: &mut dyn KvCache, block: &Block) -> Result<Vec<Vec<f32>>> {
    let mut attend = cache.begin(block.rows(), Phase::Draft)?;
    let hidden = model.forward(block, &mut *attend, &[])?.hidden;
    drop(attend);
    let logits = model.logits(hidden);
    let ([_, width], vocab) = (logits.dims(), model.spec().vocab);
    if width < vocab {
        let what = format!("{width} logits for a vocabulary of {vocab}");
        let part = "draft model";
        return Err(Error::Contract { part, what });
    }
    let values = logits.into_data().try_into_vec_as::<f32>();
    let values =
        values.map_err(|e| Error::Drafter(format!("logits cannot be read: {e:?}").into()))?;
    let rows = values.chunks(width).map(|row| row[..vocab].to_vec());
    Ok(rows.collect())
}

impl Drafter for VegasDrafter {
    fn name(&self) -> &'static str {
        self.name
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let model = self.model.as_deref().unwrap_or(cx.target);
        let context = model.spec().context.min(cx.target.spec().context);
        let mut running: Vec<Running<'_, '_>> = Vec::new();
        for (at, row) in cx.rows.iter().enumerate() {
            // The last drafted token is verified at the last position of the context at most.
            let k = row.k.min(context.saturating_sub(row.tokens.len()));
            if k > 0 && !row.tokens.is_empty() {
                running.push(Running {
                    at,
                    row,
                    k,
                    going: true,
                    picks: Vec::new(),
                    tokens: Vec::new(),
                });
            }
        }
        // Rows that there is no memory for go without drafts.
        while !running.is_empty() && !cx.cache.fits(&spans(&running)) {
            running.pop();
        }
        while running.iter().any(|running| running.going) {
            let mut block = Block::new(&model.spec().device);
            for running in running.iter().filter(|running| running.going) {
                let (token, position) = running.newest();
                block.push(running.row.seq, position, &[token]);
            }
            let logits = match pass(model, cx.cache, &block) {
                Ok(logits) => logits,
                Err(error) => {
                    cx.cache.rollback();
                    return Err(error);
                }
            };
            let going = running.iter_mut().filter(|running| running.going);
            for (running, mut logits) in going.zip(logits) {
                if self.unsure(&logits) {
                    running.going = false;
                } else {
                    running.pick(&mut logits);
                }
            }
        }
        cx.cache.rollback();
        let mut rows = vec![RowDraft::default(); cx.rows.len()];
        for running in running {
            rows[running.at] = Proposed::into_draft(running.picks);
        }
        Ok(Draft { rows })
    }

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        self.model
            .as_ref()
            .map_or(Ok(()), |model| same_shape(model.spec(), target))
    }
}

/// Whether one model may read and write the other's keys and values.
fn same_shape(draft: &ModelSpec, target: &ModelSpec) -> Result<(), BuildError> {
    if draft.vocab != target.vocab {
        let (a, b) = (draft.vocab, target.vocab);
        return Err(BuildError::Vocabulary(format!("{a} and {b} tokens")));
    }
    let windows = |spec: &ModelSpec| -> Vec<Option<usize>> {
        (0..spec.layers).map(|layer| spec.window(layer)).collect()
    };
    let shown = |spec: &ModelSpec| {
        [
            ("number of layers", spec.layers.to_string()),
            ("number of query heads", spec.heads.to_string()),
            ("number of key/value heads", spec.kv_heads.to_string()),
            ("head dimension", spec.head_dim.to_string()),
            ("attention scale", format!("{:?}", spec.scale)),
            ("sliding windows", format!("{:?}", windows(spec))),
            ("device", format!("{:?}", spec.device)),
        ]
    };
    for ((what, draft), (_, target)) in shown(draft).into_iter().zip(shown(target)) {
        if draft != target {
            return Err(BuildError::Shape {
                what,
                draft,
                target,
            });
        }
    }
    Ok(())
}
