#![doc = include_str!("../README.md")]

mod block;
mod cache;
mod cancel;
mod control;
mod decoder;
mod drafter;
mod error;
mod event;
mod prefix;
mod request;
mod schedule;
mod selective;
mod sequence;
mod stats;
mod target;

/// Acceptance: the one home of the rules that decide which tokens are emitted.
pub mod accept;
/// What happens to a target's logits before a token is chosen: rules, warping, noise.
pub mod sampling;

pub use accept::{Acceptance, Coupled, Greedy, Rejection};
pub use block::{Block, RowSpan};
pub use cache::{Attend, KvCache, KvSegment, Phase};
pub use cancel::CancelToken;
pub use control::{Controller, FixedLength, Outcome, Plan, RowOutcome};
pub use decoder::{Decoder, DecoderBuilder, Stream};
pub use drafter::{
    Draft, DraftContext, DraftRow, Drafter, Observation, ObservedRow, Proposal, RowDraft,
};
pub use error::{BoxError, BuildError, CacheError, Error, RequestError, Result};
pub use event::{Completion, Emitted, Event, FinishReason, Granularity, TokenLogprob};
pub use prefix::{PrefixCache, PrefixImport, PrefixQuery, Reuse};
pub use request::{Limits, Request, Speculation, StopRule};
pub use sampling::{History, LogitRule, SamplingParams};
pub use schedule::{FirstCome, Scheduler};
pub use selective::{
    HeadWeights, RowKeys, Score, Selection, SelectionError, SelectiveAttend, SelectiveCache,
    Weighed,
};
pub use sequence::{PoolView, SeqId, SeqView, Token};
pub use stats::{PositionCount, Stats};
pub use target::{Forward, ModelSpec, TargetModel};
