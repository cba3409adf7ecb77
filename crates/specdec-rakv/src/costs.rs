mod break_even;
mod calibrate;
mod calibration_options;
mod drafted;
mod file;
mod fit;
mod refresh;
mod samples;
mod table;

pub use break_even::{break_even, expected_tokens};
pub use calibrate::{Calibrated, calibrate};
pub use calibration_options::CalibrationOptions;
pub use file::Conditions;
pub use table::{
    CostTable, Line, MAX_MENU, MAX_SOURCES, Measurements, PrefillCosts, SourceCosts, Tier,
};

pub(crate) use refresh::{Factors, Refresh};
pub(crate) use table::StepCosts;
