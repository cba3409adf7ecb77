#![doc = include_str!("../README.md")]

mod acceptance;
mod controller;
mod costs;
mod error;
mod joint;
#[cfg(test)]
mod simulation;
mod steering;
mod store;
mod switch;
mod taps;

pub use controller::{
    Accuracy, Adaptive, AdaptiveOptions, Analytic, Arm, ControlReport, ControllerState, Correction,
    Decision, FEATURES, Features, Reason, Ridge,
};
pub use costs::{
    Calibrated, CalibrationOptions, Conditions, CostTable, Line, MAX_MENU, MAX_SOURCES,
    Measurements, PrefillCosts, SourceCosts, Tier, break_even, calibrate, expected_tokens,
};
pub use error::{RakvError, Result};
pub use joint::{JointChoice, JointQuery, joint_menu};
pub use steering::Steering;
pub use store::{
    DiskOptions, Documents, Eviction, Identity, Lease, PrefixStore, Similarity, StoreOptions,
    StoreStats, Stored, StoredPrefixes, TokenOverlap, Write, preload,
};
pub use switch::SwitchDrafter;
