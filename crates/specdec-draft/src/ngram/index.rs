//! Where an n-gram occurred before, kept up to date one token at a time.

use specdec_core::Token;
use std::collections::HashMap;

/// No earlier occurrence.
const NONE: u32 = u32::MAX;

/// A hash chain over one text, as in LZ77: for each place the last earlier place that follows the
/// same `n` tokens. Adding a token takes constant time and four bytes beside the token itself.
#[derive(Debug, Clone, Default)]
pub(super) struct ChainIndex {
    /// Latest place that follows an n-gram, by the n-gram's hash.
    head: HashMap<u64, u32>,
    /// For place p, the place before it with the same hash; [`NONE`] where there is none.
    prev: Vec<u32>,
}

/// A place in a text whose preceding tokens are those before the anchor's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Index of the token that followed.
    pub(super) next: usize,
    /// Tokens that agree before it.
    pub(super) len: usize,
}

impl ChainIndex {
    /// Places that are indexed.
    pub(super) fn indexed(&self) -> usize {
        self.prev.len()
    }

    /// Indexes the places of `text` that are not yet. A place needs a token to propose, so the end
    /// of the text is not one.
    pub(super) fn extend(&mut self, text: &[Token], n: usize) {
        for place in self.prev.len()..text.len() {
            let earlier = match place.checked_sub(n) {
                Some(from) => self
                    .head
                    .insert(hash(&text[from..place]), place as u32)
                    .unwrap_or(NONE),
                None => NONE,
            };
            self.prev.push(earlier);
        }
    }

    /// The place in `text` that agrees with the end of `suffix` over the most tokens (at least `n`,
    /// counted up to `most`), the latest of several; looks at no more than `candidates` places.
    pub(super) fn longest(
        &self,
        text: &[Token],
        suffix: &[Token],
        n: usize,
        most: usize,
        candidates: usize,
    ) -> Option<Match> {
        let from = suffix.len().checked_sub(n)?;
        let mut place = *self.head.get(&hash(&suffix[from..]))?;
        let mut best: Option<Match> = None;
        for _ in 0..candidates {
            if place == NONE {
                break;
            }
            let next = place as usize;
            let len = text[..next]
                .iter()
                .rev()
                .zip(suffix.iter().rev())
                .take(most)
                .take_while(|(a, b)| a == b)
                .count();
            // Hashes may collide: only tokens that agree count.
            if len >= n && best.is_none_or(|b| len > b.len) {
                best = Some(Match { next, len });
            }
            if len == most {
                break;
            }
            place = self.prev[next];
        }
        best
    }
}

fn hash(tokens: &[Token]) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |h, &t| {
        (h ^ u64::from(t))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(text: &[Token], n: usize) -> Option<Match> {
        let mut index = ChainIndex::default();
        index.extend(text, n);
        index.longest(text, text, n, 8, 16)
    }

    #[test]
    fn the_longest_match_wins_over_a_later_shorter_one() {
        let text = [1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3];
        assert_eq!(longest(&text, 2), Some(Match { next: 3, len: 3 }));
    }

    #[test]
    fn of_equal_matches_the_latest_wins() {
        let text = [2, 3, 9, 5, 2, 3, 8, 6, 2, 3];
        assert_eq!(longest(&text, 2), Some(Match { next: 6, len: 2 }));
    }

    #[test]
    fn the_end_of_the_text_is_not_a_match_of_itself() {
        assert_eq!(longest(&[1, 2, 3], 2), None);
        assert_eq!(longest(&[1], 2), None);
        assert_eq!(longest(&[4, 4, 4], 2), Some(Match { next: 2, len: 2 }));
    }

    #[test]
    fn growing_by_pieces_is_the_same_as_at_once() {
        let text: Vec<Token> = (0..200u32).map(|i| (i * i) % 7).collect();
        let mut pieces = ChainIndex::default();
        for end in 0..=text.len() {
            pieces.extend(&text[..end], 3);
            let mut whole = ChainIndex::default();
            whole.extend(&text[..end], 3);
            let at = |i: &ChainIndex| i.longest(&text[..end], &text[..end], 3, 9, 5);
            assert_eq!(at(&pieces), at(&whole), "after {end} tokens");
        }
    }
}
