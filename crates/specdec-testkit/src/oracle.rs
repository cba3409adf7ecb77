mod continuations;
mod counted;
mod frequencies;
mod trace;

pub use continuations::Continuations;
pub use counted::{Calls, Counted};
pub use frequencies::unlikely;
pub use trace::{Round, Trace, Traced, plan};

use specdec_core::{Completion, Decoder, KvCache, Request, Result, TargetModel};
use std::sync::Arc;

/// Decodes the requests without a drafter: what every speculative run is compared with. Results
/// are in order of the requests.
///
/// # Errors
/// As [`Decoder::submit`] and [`Decoder::run`].
pub fn plain_run(
    target: &Arc<dyn TargetModel>,
    cache: impl KvCache + 'static,
    requests: impl IntoIterator<Item = Request>,
) -> Result<Vec<Completion>> {
    let mut decoder = Decoder::builder(Arc::clone(target)).cache(cache).build()?;
    for request in requests {
        decoder.submit(request)?;
    }
    decoder.run()
}

/// How two results differ, in words; `None` when they have the same tokens and finish reason.
pub fn difference(want: &Completion, got: &Completion) -> Option<String> {
    if want.tokens != got.tokens {
        let at = want
            .tokens
            .iter()
            .zip(&got.tokens)
            .take_while(|(a, b)| a == b)
            .count();
        return Some(format!(
            "tokens differ from output index {at} on: want {:?}, got {:?}",
            want.tokens, got.tokens
        ));
    }
    (want.finish != got.finish).then(|| {
        format!(
            "finish reasons differ: want {:?}, got {:?}",
            want.finish, got.finish
        )
    })
}
