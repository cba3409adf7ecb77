use crate::{FinishReason, Token};

/// What a sequence may still emit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Tokens emitted so far.
    pub emitted: usize,
    /// Most tokens to emit.
    pub max_new: usize,
    /// Places left in the context.
    pub room: usize,
}

impl Budget {
    /// Tokens that may still be emitted.
    pub fn left(&self) -> usize {
        self.max_new.saturating_sub(self.emitted).min(self.room)
    }

    /// The longest useful draft: the target's own token needs a place too.
    pub fn max_draft(&self) -> usize {
        self.left().saturating_sub(1)
    }
}

/// What is kept of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Tokens kept, from the front.
    pub kept: usize,
    /// Why the sequence ends here, if it does.
    pub finish: Option<FinishReason>,
}

/// Cuts the tokens a round chose at the first end token or stop, or at the budget. The one rule of
/// every path, plain decoding included.
///
/// `ends` is asked for each kept token in turn (and never for one beyond the budget) whether it
/// ends the sequence. An end inside the budget wins over the limit; one beyond it does not exist.
pub fn commit(
    chosen: &[Token],
    budget: Budget,
    mut ends: impl FnMut(Token) -> Option<FinishReason>,
) -> Committed {
    let left = budget.left();
    for (i, &token) in chosen.iter().enumerate() {
        if i >= left {
            return Committed {
                kept: i,
                finish: Some(FinishReason::Length),
            };
        }
        if let Some(reason) = ends(token) {
            return Committed {
                kept: i + 1,
                finish: Some(reason),
            };
        }
    }
    let finish = (chosen.len() >= left).then_some(FinishReason::Length);
    Committed {
        kept: chosen.len(),
        finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        chosen: &[Token],
        emitted: usize,
        max_new: usize,
        room: usize,
    ) -> (usize, Option<FinishReason>) {
        let end = |t: Token| (t == 2).then_some(FinishReason::EndToken);
        let c = commit(
            chosen,
            Budget {
                emitted,
                max_new,
                room,
            },
            end,
        );
        (c.kept, c.finish)
    }

    /// eqspec C14: an end inside the limit wins, one beyond it does not exist.
    #[test]
    fn stop_before_at_and_beyond_the_cap() {
        use FinishReason::{EndToken, Length};
        assert_eq!(run(&[9, 9, 2, 9, 9, 9], 0, 5, 99), (3, Some(EndToken)));
        assert_eq!(run(&[9, 9, 9, 9, 2, 9], 0, 5, 99), (5, Some(EndToken)));
        assert_eq!(run(&[9, 9, 9, 9, 9, 2], 0, 5, 99), (5, Some(Length)));
        assert_eq!(run(&[9, 9], 0, 5, 99), (2, None));
        assert_eq!(run(&[9, 9], 3, 5, 99), (2, Some(Length)));
        assert_eq!(run(&[9, 9], 0, 5, 1), (1, Some(Length)));
        assert_eq!(run(&[9, 9], 5, 5, 9), (0, Some(Length)));
        assert_eq!(run(&[], 0, 5, 9), (0, None));
    }

    #[test]
    fn ends_is_never_asked_beyond_the_budget() {
        let mut asked = Vec::new();
        commit(
            &[1, 2, 3],
            Budget {
                emitted: 0,
                max_new: 2,
                room: 9,
            },
            |t| {
                asked.push(t);
                None
            },
        );
        assert_eq!(asked, [1, 2]);
    }
}
