use crate::seeded::Seeded;
use specdec_core::{Draft, DraftContext, Drafter, Proposal, Result, RowDraft, Token};
use std::fmt;

/// How a [`SamplingDrafter`] drafts from its q, and what it states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QForm {
    /// Draws a token and states q over the whole vocabulary.
    Dense,
    /// Draws a token and states the candidates that q gives a chance.
    Sparse,
    /// Takes the likeliest token (lowest id on ties) and says that it was chosen.
    Greedy,
    /// Takes the likeliest token but states q as if it had been drawn: a lie that costs nothing
    /// under coupling and biases rejection sampling. For negative controls.
    Misstated,
}

type Q = dyn Fn(&[Token]) -> Vec<f32> + Send;

/// A drafter that draws from a distribution the test gives as a function of the content so far.
pub struct SamplingDrafter {
    form: QForm,
    draws: Seeded,
    q: Box<Q>,
}

impl fmt::Debug for SamplingDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SamplingDrafter")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

impl SamplingDrafter {
    /// `q` gives probabilities over the vocabulary, `[V]`, summing to 1. Draws come from `seed`
    /// alone, never from the requests' noise.
    pub fn new(form: QForm, seed: u64, q: impl Fn(&[Token]) -> Vec<f32> + Send + 'static) -> Self {
        Self {
            form,
            draws: Seeded::new(seed),
            q: Box::new(q),
        }
    }

    fn pick(&mut self, q: &[f32]) -> Token {
        if matches!(self.form, QForm::Greedy | QForm::Misstated) {
            return specdec_core::sampling::argmax(q).unwrap_or(0);
        }
        let u = self.draws.unit();
        let mut sum = 0.0;
        let mut last = 0;
        for (t, &p) in q.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            sum += f64::from(p);
            last = t as Token;
            if u < sum {
                break;
            }
        }
        last
    }
}

impl Drafter for SamplingDrafter {
    fn name(&self) -> &'static str {
        "sampling"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let mut rows = Vec::with_capacity(cx.rows.len());
        for row in cx.rows {
            let mut content = row.tokens.to_vec();
            let (mut tokens, mut all) = (Vec::new(), Vec::new());
            for _ in 0..row.k {
                let q = (self.q)(&content);
                let token = self.pick(&q);
                content.push(token);
                tokens.push(token);
                all.push(q);
            }
            let proposal = match self.form {
                QForm::Dense | QForm::Misstated => Proposal::Dense(all),
                QForm::Sparse => sparse(&all),
                QForm::Greedy => Proposal::Deterministic,
            };
            rows.push(RowDraft { tokens, proposal });
        }
        Ok(Draft { rows })
    }
}

fn sparse(all: &[Vec<f32>]) -> Proposal {
    let candidates = |q: &[f32]| -> (Vec<Token>, Vec<f32>) {
        let likely = q.iter().enumerate().filter(|(_, p)| **p > 0.0);
        likely.map(|(t, &p)| (t as Token, p)).unzip()
    };
    let (ids, probs) = all.iter().map(|q| candidates(q)).unzip();
    Proposal::Sparse { ids, probs }
}
