use specdec_core::{Completion, Token};

/// What a target is known to say: prompts and how they go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Continuations(Vec<(Vec<Token>, Vec<Token>)>);

impl Continuations {
    /// From prompts and the tokens that follow them.
    pub fn new<P: Into<Vec<Token>>, C: Into<Vec<Token>>>(
        known: impl IntoIterator<Item = (P, C)>,
    ) -> Self {
        Self(
            known
                .into_iter()
                .map(|(p, c)| (p.into(), c.into()))
                .collect(),
        )
    }

    /// From the results of a plain run of these prompts.
    pub fn of_runs<'a>(
        prompts: impl IntoIterator<Item = &'a [Token]>,
        runs: &'a [Completion],
    ) -> Self {
        Self::new(
            prompts
                .into_iter()
                .zip(runs)
                .map(|(p, run)| (p, run.tokens.clone())),
        )
    }

    /// What follows this content, whose first `prompt_len` tokens are the prompt; empty when
    /// nothing is known of it.
    pub fn after(&self, tokens: &[Token], prompt_len: usize) -> &[Token] {
        let (prompt, output) = tokens.split_at(prompt_len.min(tokens.len()));
        self.0
            .iter()
            .filter(|(known, _)| known == prompt)
            .find_map(|(_, after)| after.strip_prefix(output))
            .unwrap_or(&[])
    }

    /// The prompts.
    pub fn prompts(&self) -> impl Iterator<Item = &[Token]> {
        self.0.iter().map(|(prompt, _)| prompt.as_slice())
    }
}
