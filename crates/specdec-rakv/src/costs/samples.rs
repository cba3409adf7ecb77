/// Seconds of the passes of one cell.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn add(&mut self, seconds: f64) {
        self.0.push(seconds);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The median without those more than five deviations (1.4826 times the median distance) above
    /// it, and how many those are.
    pub(super) fn median(&self) -> (f64, usize) {
        let first = middle(self.0.clone());
        let distances = self.0.iter().map(|x| (x - first).abs()).collect();
        let limit = first + 5.0 * 1.4826 * middle(distances);
        let kept: Vec<f64> = self.0.iter().copied().filter(|x| *x <= limit).collect();
        let dropped = self.0.len() - kept.len();
        (middle(kept), dropped)
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_pass_does_not_count() {
        let mut samples = Samples::default();
        for x in [1.0, 1.1, 0.9, 1.0, 50.0] {
            samples.add(x);
        }
        assert_eq!(samples.median(), (1.0, 1));
        assert_eq!(Samples::default().median(), (0.0, 0));
    }
}
