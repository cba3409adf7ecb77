//! How many threads the CPU kernels use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// 0: as many as rayon's global pool has.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of threads the CPU kernels use from now on, for the whole process; 0 means as many as rayon's
/// global pool has, which is the default.
///
/// Results do not depend on it: work is cut by what is computed, never by who computes it.
pub fn set_threads(threads: usize) {
    THREADS.store(threads, Ordering::Relaxed);
}

/// The number of threads the CPU kernels use.
pub fn threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => rayon::current_num_threads(),
        threads => threads,
    }
}

/// Calls `work` once for each of `0..items`, on up to [`threads`] threads. Which thread takes which item is left to
/// chance, so items must not share what they write.
#[cfg(feature = "flex")]
pub(crate) fn for_each(items: usize, work: impl Fn(usize) + Sync) {
    let helpers = threads().min(items).saturating_sub(1);
    if helpers == 0 {
        (0..items).for_each(work);
        return;
    }
    let next = AtomicUsize::new(0);
    let take = || {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= items {
                break;
            }
            work(item);
        }
    };
    if crate::vector::together(helpers, &take) {
        return;
    }
    // Another thread's work has the helpers.
    rayon::in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| take());
        }
        take();
    });
}
