use specdec_core::{BuildError, Score};

/// Which queries of a verify pass rank the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Collect {
    /// The first and the last one (Collect-2-Query): that of the anchor, and that of the last drafted
    /// token, accepted or not. A row of one token has one query.
    #[default]
    Ends,
    /// The last one only.
    Last,
    /// All of them.
    All,
}

/// Whether the key/value heads of a layer share a set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HeadSets {
    /// One set a layer, ranked by all query heads.
    #[default]
    Shared,
    /// A set for each key/value head, ranked by the query heads of its group (as PillarAttn has it,
    /// arXiv 2512.01278). Each has the whole budget, so as many entries are read; the sets differ.
    PerKvHead,
}

/// How much drafts attend to, not checked yet.
///
/// | option | default | [`paper`](Self::paper) | range |
/// |---|---|---|---|
/// | `ratio` | 0.1 | 0.07 | above 0, at most 1 |
/// | `min` | 64 | 256 | 1 or more |
/// | `max` | none | none | `min` or more |
/// | `sinks` | 4 | 0 | any |
/// | `recent` | 32 | 0 | any |
/// | `coverage` | none | none | above 0, at most 1 |
/// | `collect` | [`Collect::Ends`] | the same | |
/// | `score` | [`Score::Weights`] | the same | without `coverage` if logits |
/// | `heads` | [`HeadSets::Shared`] | the same | |
/// | `page` | 1 | 1 | 1 or more |
/// | `plain_refresh` | 8 | 1 | 1 or more |
#[derive(Debug, Clone, PartialEq)]
pub struct VegasConfig {
    /// Share of the keys a pass saw that is kept for the next draft, rounded up.
    pub ratio: f64,
    /// Fewest keys kept. With fewer candidates all are kept, and drafting is dense.
    pub min: usize,
    /// Most keys kept.
    pub max: Option<usize>,
    /// First positions that are kept whatever they weigh. They count as kept keys, and come before
    /// `recent` where there is no place for both.
    pub sinks: usize,
    /// Last candidates that are kept whatever they weigh; they count likewise. Positions that became
    /// part of the sequence after the ranking are attended to besides, and not counted.
    pub recent: usize,
    /// Keeps as few keys as reach this share of the collected weight, in place of `ratio`; at least
    /// `min`, at most `max`.
    pub coverage: Option<f64>,
    /// Whose attention ranks the entries.
    pub collect: Collect,
    /// What of it: softmax weights, as the authors' release has it, or the scores before softmax, as
    /// the paper's Eq. 2. A score has no regard to how much there is to look at: a head that looks at
    /// everything alike ranks as loudly as one that looks at one key.
    pub score: Score,
    /// Whether all heads of a layer share a set of keys.
    pub heads: HeadSets,
    /// Positions that are kept or left out together, see [`Ranked`](crate::Ranked::page). The CPU's
    /// attention reads keys sixteen at a time: pages of 16 are what it leaves out at no loss, single
    /// positions it reads with their neighbours.
    pub page: usize,
    /// Plain passes of a row (one token, nothing drafted) rank again only when this many positions
    /// have been added since the last ranking; 1 is every time. Meanwhile the added positions are
    /// attended to besides. Above 1, each ranking in a row that no draft asked for doubles the number, up to
    /// 64 times: a row that does not draft pays next to nothing for being able to.
    pub plain_refresh: usize,
}

impl Default for VegasConfig {
    fn default() -> Self {
        Self {
            ratio: 0.1,
            min: 64,
            max: None,
            sinks: 4,
            recent: 32,
            coverage: None,
            collect: Collect::Ends,
            score: Score::Weights,
            heads: HeadSets::Shared,
            page: 1,
            plain_refresh: 8,
        }
    }
}

impl VegasConfig {
    /// The rules of the authors' release with the ratio of their benchmarks: nothing is kept but
    /// what weighs most.
    pub fn paper() -> Self {
        Self {
            ratio: 0.07,
            min: 256,
            sinks: 0,
            recent: 0,
            plain_refresh: 1,
            ..Self::default()
        }
    }

    /// Checks every option.
    ///
    /// # Errors
    /// [`BuildError::Setting`], naming the first option that is out of its range.
    pub fn check(self) -> Result<CheckedConfig, BuildError> {
        let refuse = |setting, value: String, allowed| {
            Err(BuildError::Setting {
                setting,
                value,
                allowed,
            })
        };
        let share = |x: f64| x > 0.0 && x <= 1.0;
        if !share(self.ratio) {
            return refuse("ratio", self.ratio.to_string(), "above 0, at most 1");
        }
        if let Some(max) = self.max.filter(|&max| max < self.min) {
            return refuse("max", max.to_string(), "at least min");
        }
        if let Some(coverage) = self.coverage.filter(|&coverage| !share(coverage)) {
            return refuse("coverage", coverage.to_string(), "above 0, at most 1");
        }
        if let (Score::Logits, Some(coverage)) = (self.score, self.coverage) {
            let allowed = "none where logits rank, which are no shares";
            return refuse("coverage", coverage.to_string(), allowed);
        }
        let counts = [
            ("min", self.min),
            ("page", self.page),
            ("plain_refresh", self.plain_refresh),
        ];
        if let Some((setting, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return refuse(setting, "0".into(), "1 or more");
        }
        Ok(CheckedConfig {
            billionths: ((self.ratio * 1e9).round() as u64).max(1),
            config: self,
        })
    }
}

/// A [`VegasConfig`] whose options are in their ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedConfig {
    config: VegasConfig,
    /// The ratio, so that rounding up is that of integers.
    billionths: u64,
}

impl CheckedConfig {
    /// The options.
    pub fn options(&self) -> &VegasConfig {
        &self.config
    }

    /// Most keys kept of `candidates` after a pass that saw `keys`:
    /// `min(clamp(ceil(ratio * keys), min, max), candidates)`, or with coverage `min(max, candidates)`.
    pub fn budget(&self, keys: usize, candidates: usize) -> usize {
        let VegasConfig { min, max, .. } = self.config;
        let wanted = match self.config.coverage {
            Some(_) => usize::MAX,
            None => self.share(keys).max(min),
        };
        wanted.min(max.unwrap_or(usize::MAX)).min(candidates)
    }

    /// Fewest keys kept of `candidates`.
    pub fn least(&self, candidates: usize) -> usize {
        self.config.min.min(candidates)
    }

    /// Whether all candidates are kept, whatever they weigh.
    pub fn keeps_all(&self, keys: usize, candidates: usize) -> bool {
        let surely = match self.config.coverage {
            Some(_) => self.least(candidates),
            None => self.budget(keys, candidates),
        };
        surely == candidates
    }

    /// `ceil(ratio * keys)`.
    fn share(&self, keys: usize) -> usize {
        let share = (keys as u128 * u128::from(self.billionths)).div_ceil(1_000_000_000);
        usize::try_from(share).unwrap_or(usize::MAX)
    }
}
