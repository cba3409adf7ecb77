use crate::hard_attention::{HEAD_DIM, MAX_CONTEXT, keys, queries, values};
use burn::prelude::*;
use specdec_core::{Attend, Block, Forward, ModelSpec, Result, TargetModel, Token};
use std::fmt;
use std::sync::Arc;

/// What a [`ScriptedTarget`] knows when it is asked for the next token's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Content index of the newest token.
    pub position: usize,
    /// The newest token.
    pub token: Token,
    /// The token before it, found by attention (at position 0: the token itself).
    pub previous: Token,
    /// The token at position 0, found by attention.
    pub first: Token,
}

type Script = dyn Fn(Seen) -> Vec<f32> + Send + Sync;

/// A target whose logits the test decides, through the real attention path.
///
/// Two layers look at position 0 and at the position before; what they find is handed to the
/// script together with the newest token and its position.
#[derive(Clone)]
pub struct ScriptedTarget {
    spec: ModelSpec,
    script: Arc<Script>,
}

impl fmt::Debug for ScriptedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedTarget")
            .field("vocab", &self.spec.vocab)
            .finish_non_exhaustive()
    }
}

impl ScriptedTarget {
    /// A target of `vocab` tokens and a context of 512. Logits a script leaves out are minus
    /// infinity; those it gives beyond the vocabulary are left out.
    pub fn new(
        vocab: usize,
        device: &Device,
        script: impl Fn(Seen) -> Vec<f32> + Send + Sync + 'static,
    ) -> Self {
        let mut spec = ModelSpec::new(vocab, 2, 4, device)
            .with_heads(1, 1, HEAD_DIM)
            .with_context(512);
        spec.scale = Some(1.0);
        Self {
            spec,
            script: Arc::new(script),
        }
    }

    /// A target that continues each prompt as listed and then, and after any other prompt, with
    /// token 0. Prompts are told apart by their first token. The wanted token has logit 10, every
    /// other one 0.
    pub fn following<P: AsRef<[Token]>, C: Into<Vec<Token>>>(
        vocab: usize,
        device: &Device,
        scripts: impl IntoIterator<Item = (P, C)>,
    ) -> Self {
        let scripts: Vec<(Option<Token>, usize, Vec<Token>)> = scripts
            .into_iter()
            .map(|(p, c)| {
                let prompt = p.as_ref();
                (prompt.first().copied(), prompt.len(), c.into())
            })
            .collect();
        Self::new(vocab, device, move |seen| {
            let wanted = scripts
                .iter()
                .find(|(first, ..)| *first == Some(seen.first))
                .and_then(|(_, prompt_len, after)| {
                    after.get((seen.position + 1).checked_sub(*prompt_len)?)
                });
            let mut logits = vec![0.0; vocab];
            if let Some(l) = logits.get_mut(wanted.copied().unwrap_or(0) as usize) {
                *l = 10.0;
            }
            logits
        })
    }

    /// Longest content; at most 1024, beyond which attention would no longer be exact.
    pub fn with_context(mut self, context: usize) -> Self {
        self.spec.context = context.min(MAX_CONTEXT);
        self
    }
}

impl TargetModel for ScriptedTarget {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(&self, block: &Block, attend: &mut dyn Attend, taps: &[usize]) -> Result<Forward> {
        let t = block.len();
        let position = block.position_tensor().float().reshape([t, 1]);
        let token = self.embed(block.token_tensor()).slice([0..t, 0..1]);
        let mut look = |layer, at: Tensor<2>| -> Result<Tensor<2>> {
            let out = attend.attend(layer, queries(&at, 1), keys(&position, 1), values(&token))?;
            Ok(out.slice([0..t, 0..1, 0..1]).reshape([t, 1]).round())
        };
        let first = look(0, position.zeros_like())?;
        let previous = look(1, (position.clone() - 1.0).clamp_min(0.0))?;
        let hidden = Tensor::cat(vec![token, position, previous, first], 1);
        let taps = taps.iter().map(|_| hidden.clone()).collect();
        Ok(Forward { hidden, taps })
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let (n, vocab) = (hidden.dims()[0], self.spec.vocab);
        let hidden = hidden
            .into_data()
            .try_into_vec_as::<f32>()
            .unwrap_or_default();
        let mut out = Vec::with_capacity(n * vocab);
        for row in hidden.chunks_exact(4) {
            let mut logits = (self.script)(Seen {
                token: row[0] as Token,
                position: row[1] as usize,
                previous: row[2] as Token,
                first: row[3] as Token,
            });
            logits.resize(vocab, f32::NEG_INFINITY);
            out.extend(logits);
        }
        out.resize(n * vocab, f32::NAN);
        Tensor::from_data(TensorData::new(out, [n, vocab]), &self.spec.device)
    }

    fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let n = tokens.dims()[0];
        let zeros = Tensor::zeros([n, 3], &self.spec.device);
        Tensor::cat(vec![tokens.float().reshape([n, 1]), zeros], 1)
    }
}
