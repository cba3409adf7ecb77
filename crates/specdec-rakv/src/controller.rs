mod adaptive;
mod arms;
mod correction;
mod decision;
mod inner;
mod options;
mod report;
mod row;
mod state;

pub use adaptive::Adaptive;
pub use arms::Arm;
pub use correction::{Analytic, Correction, FEATURES, Features, Ridge};
pub use decision::{Decision, Reason};
pub use options::AdaptiveOptions;
pub use report::{Accuracy, ControlReport};
pub use state::ControllerState;
