/// Why these counts are no sample of the distribution `p`, in words; `None` when they may well be.
///
/// Something that happened with probability 0 is always named. Otherwise Pearson's chi-square is
/// compared with a bound far out in its tail (about one false alarm in a million), cells that expect
/// fewer than five being taken together.
pub fn unlikely(counts: &[u64], p: &[f64]) -> Option<String> {
    if counts.len() != p.len() {
        return Some(format!(
            "{} counts for {} probabilities",
            counts.len(),
            p.len()
        ));
    }
    let total: u64 = counts.iter().sum();
    let expect = |p: f64| p * total as f64;
    let (mut chi, mut cells) = (0.0, 0usize);
    let mut rest = (0u64, 0.0);
    for (i, (&n, &p)) in counts.iter().zip(p).enumerate() {
        if n > 0 && p <= 0.0 {
            return Some(format!("{i} came {n} times and has probability 0"));
        }
        if expect(p) < 5.0 {
            rest = (rest.0 + n, rest.1 + expect(p));
        } else {
            chi += (n as f64 - expect(p)).powi(2) / expect(p);
            cells += 1;
        }
    }
    if rest.1 >= 1.0 {
        chi += (rest.0 as f64 - rest.1).powi(2) / rest.1;
        cells += 1;
    }
    let freedom = cells.saturating_sub(1) as f64;
    let bound = freedom + 4.0 * (2.0 * freedom).sqrt() + 16.0;
    (chi > bound)
        .then(|| format!("chi-square {chi:.1} with {freedom} degrees of freedom, {total} draws"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_pass_and_others_do_not() {
        let p = [0.5, 0.3, 0.2, 0.0];
        assert_eq!(unlikely(&[510, 295, 195, 0], &p), None);
        assert!(unlikely(&[600, 200, 200, 0], &p).is_some());
        assert!(unlikely(&[500, 300, 199, 1], &p).is_some_and(|why| why.contains("probability 0")));
        assert!(unlikely(&[1, 2], &p).is_some());
        assert_eq!(unlikely(&[3, 2, 0, 0], &p), None);
        assert_eq!(unlikely(&[0; 4], &p), None);
    }
}
