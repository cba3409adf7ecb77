//! Cancelling from elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that ends a request from any thread. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    own: Arc<AtomicBool>,
    parent: Option<Arc<Self>>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that is cancelled with this one, and by itself without it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            own: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Asks for the end; takes effect before the next step.
    pub fn cancel(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// Whether the end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.own.load(Ordering::Acquire)
            || self
                .parent
                .as_ref()
                .is_some_and(|parent| parent.is_cancelled())
    }
}
