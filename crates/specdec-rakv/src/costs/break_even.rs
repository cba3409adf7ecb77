/// Expected tokens of a round with `length` drafts of which each is right with probability
/// `acceptance` if all before it were: `1 + a + .. + a^k` (Leviathan et al., arXiv 2211.17192,
/// section 3.1).
pub fn expected_tokens(length: usize, acceptance: f64) -> f64 {
    let mut survival = 1.0;
    let mut tokens = 1.0;
    for _ in 0..length {
        survival *= acceptance;
        tokens += survival;
    }
    tokens
}

/// The acceptance from which drafts of `length` pay, when their round costs `cycle` plain steps: the
/// a with `1 + a + .. + a^length = cycle`, by bisection. `None` when even drafts that are always
/// right do not pay.
pub fn break_even(length: usize, cycle: f64) -> Option<f64> {
    if cycle <= 1.0 {
        return Some(0.0);
    }
    if cycle.is_nan() || cycle >= (length + 1) as f64 {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if expected_tokens(length, middle) < cycle {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((low + high) / 2.0)
}
