use crate::{Model, Result};
use specdec_core::{Controller, Drafter, FixedLength, KvCache};
use specdec_ragged::RowLengths;
use specdec_rakv::{Adaptive, AdaptiveOptions, CalibrationOptions, SwitchDrafter, calibrate};

/// How long drafts are.
pub enum DraftLength {
    /// Always this many tokens, where the drafter has as many.
    Fixed(usize),
    /// As costs measured here and now, and the acceptance seen so far, make it best; 0 where drafting
    /// does not pay. See [`Adaptive`].
    Adaptive(AdaptiveOptions),
    /// As a controller plans.
    Planned(Box<dyn Controller>),
}

impl DraftLength {
    /// As measured costs and acceptance make it best.
    pub fn adaptive() -> Self {
        Self::Adaptive(AdaptiveOptions::default())
    }

    /// For each row as its own drafts deserve, up to `max`, without a look at costs; see [`RowLengths`].
    pub fn per_row(max: usize) -> Self {
        Self::Planned(Box::new(RowLengths::up_to(max)))
    }

    /// The controller; an adaptive one measures its parts first, unless the model remembers their costs,
    /// and steers the drafter.
    pub(super) fn planned(self, model: &Model, parts: Parts) -> Result<Planned> {
        let plain = |controller, drafter| Planned {
            controller,
            drafter,
            adaptive: None,
        };
        let (options, mut drafter) = match (self, parts.drafter) {
            (Self::Fixed(k), drafter) => return Ok(plain(Box::new(FixedLength(k)), drafter)),
            (Self::Planned(controller), drafter) => return Ok(plain(controller, drafter)),
            (Self::Adaptive(_), None) => return Ok(plain(Box::new(FixedLength(0)), None)),
            (Self::Adaptive(options), Some(drafter)) => (options, drafter),
        };
        let target = &**model.target();
        let rows = parts.rows.min(MOST_ROWS);
        let key = parts.kind.map(|kind| format!("{kind}, {rows} rows"));
        let measured = model.costs_or_measure(key, || {
            // A cache of its own: the meters of the other one count what users ask for.
            let mut cache = (parts.cache)()?;
            let calibration = calibration(target.spec().context, rows, parts.from_cache);
            let drafters: &mut [&mut dyn Drafter] = &mut [&mut *drafter];
            let found = calibrate(target, &mut *cache, drafters, &calibration)?;
            // What was measured beside other work is not kept.
            Ok((found.table, !found.noisy))
        });
        let table = match measured {
            Ok(table) => table,
            // Too little context or memory to measure in is no reason not to decode.
            Err(_) if parts.fallback => {
                return Ok(plain(Box::new(FixedLength(UNMEASURED)), Some(drafter)));
            }
            Err(error) => return Err(error),
        };
        let adaptive = Adaptive::with_options(table, options)?;
        Ok(Planned {
            drafter: Some(Box::new(SwitchDrafter::new(
                [drafter],
                adaptive.steering(),
            )?)),
            controller: Box::new(adaptive.clone()),
            adaptive: Some(adaptive),
        })
    }
}

/// The draft length where costs cannot be measured.
const UNMEASURED: usize = 4;

/// What a draft length is planned for.
pub(super) struct Parts<'a> {
    /// Makes a cache of the generator's kind, without a limit of memory.
    pub(super) cache: &'a dyn Fn() -> Result<Box<dyn KvCache>>,
    pub(super) drafter: Option<Box<dyn Drafter>>,
    /// Most rows of a pass.
    pub(super) rows: usize,
    /// What cache and drafter are; `None` where that cannot be told, and nothing is remembered.
    pub(super) kind: Option<String>,
    /// Whether the drafter reads nothing but the target's cache.
    pub(super) from_cache: bool,
    /// Whether to decode with a fixed length where nothing can be measured.
    pub(super) fallback: bool,
}

/// Most rows that are measured; costs of more are read off from these.
const MOST_ROWS: usize = 4;

/// The longer context that is measured where a drafter's costs hang on it.
const LONG: usize = 2048;

/// What is measured: quickly, and within the model's context. A drafter that reads `from_cache` saves time where
/// the context is long and nowhere else, so that is what has to be measured for it.
fn calibration(context: usize, rows: usize, from_cache: bool) -> CalibrationOptions {
    let mut options = CalibrationOptions {
        warm_up: 2,
        rounds: 5,
        ..CalibrationOptions::default()
    };
    if from_cache {
        options.contexts = vec![options.chunk, LONG];
        options.computed = Some(options.chunk);
        options.rounds = 3;
    }
    let longest = options.lengths.last().copied().unwrap_or(0);
    let room = context.saturating_sub(longest + 1).max(1);
    for tokens in &mut options.contexts {
        *tokens = room.min(*tokens);
    }
    options.contexts.dedup();
    if rows > 1 {
        // Many rows take their time: a few tell how costs grow with them.
        options.rows.push(rows);
        options.rounds = 3;
        if !from_cache {
            options.contexts.truncate(1);
        }
    }
    options
}

impl std::fmt::Debug for DraftLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(k) => write!(f, "Fixed({k})"),
            Self::Adaptive(_) => f.write_str("Adaptive"),
            Self::Planned(_) => f.write_str("Planned"),
        }
    }
}

/// What a draft length comes to.
pub(super) struct Planned {
    pub(super) controller: Box<dyn Controller>,
    pub(super) drafter: Option<Box<dyn Drafter>>,
    /// A handle to the controller, where it is an adaptive one.
    pub(super) adaptive: Option<Adaptive>,
}
