//! Threads that stay awake between the products of a token.
//!
//! A token takes some two hundred pieces of parallel work, each some ten to a hundred microseconds long. Waking a
//! sleeping thread takes as long as such a piece, so the helpers here look out for the next one for a while before
//! they sleep, and the caller waits only for those that have come: one that wakes too late finds nothing left to do.
#![allow(unsafe_code)]

use core::{
    cell::UnsafeCell,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    time::Duration,
};
use std::{panic::catch_unwind, sync::RwLock, thread::Thread, time::Instant};

/// How long a helper looks out for work before it sleeps.
const LOOK_OUT: Duration = Duration::from_micros(60);

/// Most helpers there can be.
const MOST: usize = 255;

/// Helpers inside the current piece of work.
const INSIDE: u64 = 0xffff;
/// Set while helpers may enter.
const OPEN: u64 = 1 << 16;
/// Where the number of helpers wanted lies.
const WANTED: u32 = 17;
/// Where the number of the piece of work lies.
const NUMBER: u32 = 32;

type Work = *const (dyn Fn() + Sync);

/// The helpers of the process, and the piece of work they share.
struct Team {
    /// Held by the caller whose work it is.
    taken: AtomicBool,
    /// Number of the piece of work, helpers wanted, [`OPEN`], helpers [`INSIDE`].
    word: AtomicU64,
    work: UnsafeCell<Option<Work>>,
    /// Set when the work panicked in a helper.
    failed: AtomicBool,
    helpers: RwLock<Vec<Helper>>,
}

struct Helper {
    thread: Thread,
    asleep: &'static AtomicBool,
}

// SAFETY: `work` is written only by the caller that holds `taken`, while no helper is inside and none can enter, and read
// only by helpers that are inside. What it points to is `Sync`.
unsafe impl Sync for Team {}
// SAFETY: the pointer is used as said above, on whatever thread.
unsafe impl Send for Team {}

static TEAM: Team = Team {
    taken: AtomicBool::new(false),
    word: AtomicU64::new(0),
    work: UnsafeCell::new(None),
    failed: AtomicBool::new(false),
    helpers: RwLock::new(Vec::new()),
};

/// Runs `work` here and on up to `helpers` other threads, at the same time; returns when all that began have ended. Which
/// of them begin is left to chance, so `work` must come to its end by itself on any number of threads. `false`, and
/// nothing is run, when another thread's work has the helpers or none can be had.
///
/// # Panics
///
/// When `work` does, on whichever thread.
pub(crate) fn together(helpers: usize, work: &(dyn Fn() + Sync)) -> bool {
    let helpers = helpers.min(MOST);
    if helpers == 0 || TEAM.taken.swap(true, Ordering::Acquire) {
        return false;
    }
    let shift = Shift;
    if !TEAM.enlist(helpers) {
        return false;
    }
    // SAFETY: only the lifetime changes. Helpers use the pointer while they are inside, and `shift` does not end before
    // all have left and none can enter, even when `work` panics here.
    let erased = unsafe {
        core::mem::transmute::<*const (dyn Fn() + Sync + '_), Work>(core::ptr::from_ref(work))
    };
    // SAFETY: we hold `taken`, the word is not open and nobody is inside.
    unsafe { *TEAM.work.get() = Some(erased) };
    TEAM.failed.store(false, Ordering::Relaxed);
    TEAM.open(helpers);
    work();
    shift.end();
    let failed = TEAM.failed.load(Ordering::Relaxed);
    drop(shift);
    if failed {
        panic!("a kernel panicked on a helper thread");
    }
    true
}

/// From when the team is taken until it is free again.
struct Shift;

impl Shift {
    /// Shuts the helpers out and waits for those inside.
    fn end(&self) {
        let mut word = TEAM.word.fetch_and(!OPEN, Ordering::Acquire) & INSIDE;
        let mut looks = 0u32;
        while word != 0 {
            // A helper that lost its processor may be long: then give it ours.
            looks += 1;
            match looks % 1024 {
                0 => std::thread::yield_now(),
                _ => core::hint::spin_loop(),
            }
            word = TEAM.word.load(Ordering::Acquire) & INSIDE;
        }
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        self.end();
        TEAM.taken.store(false, Ordering::Release);
    }
}

impl Team {
    /// Sees to it that there are this many helpers.
    fn enlist(&'static self, helpers: usize) -> bool {
        let have = self.helpers.read().map_or(0, |all| all.len());
        if have >= helpers {
            return true;
        }
        let Ok(mut all) = self.helpers.write() else {
            return false;
        };
        for index in all.len()..helpers {
            // Lives as long as the process, as its thread does.
            let asleep: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
            let thread = std::thread::Builder::new().name(format!("specdec-kernels-{index}"));
            let Ok(handle) = thread.spawn(move || self.help(index as u64, asleep)) else {
                return false;
            };
            all.push(Helper {
                thread: handle.thread().clone(),
                asleep,
            });
        }
        true
    }

    /// Lets helpers in, and wakes those that sleep.
    fn open(&self, helpers: usize) {
        let number = (self.word.load(Ordering::Relaxed) >> NUMBER).wrapping_add(1) << NUMBER;
        let word = number | (helpers as u64) << WANTED | OPEN;
        self.word.store(word, Ordering::Release);
        // Either a helper about to sleep sees the word, or we see that it sleeps.
        fence(Ordering::SeqCst);
        let Ok(all) = self.helpers.read() else { return };
        for helper in all.iter().take(helpers) {
            if helper.asleep.load(Ordering::Relaxed) && helper.asleep.swap(false, Ordering::Relaxed)
            {
                helper.thread.unpark();
            }
        }
    }

    /// The life of a helper.
    fn help(&self, index: u64, asleep: &AtomicBool) {
        let mut done = 0;
        let mut since = Instant::now();
        let mut looks = 0u32;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let wanted = (word >> WANTED) & (MOST as u64);
            if word & OPEN != 0 && word >> NUMBER != done && index < wanted {
                let entered = self.word.compare_exchange_weak(
                    word,
                    word + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                );
                if entered.is_err() {
                    continue;
                }
                done = word >> NUMBER;
                // SAFETY: we are inside.
                if let Some(work) = unsafe { *self.work.get() } {
                    // SAFETY: the caller of `together` borrows the work until we have left.
                    let work = AssertUnwindSafe(|| unsafe { (*work)() });
                    if catch_unwind(work).is_err() {
                        self.failed.store(true, Ordering::Relaxed);
                    }
                }
                self.word.fetch_sub(1, Ordering::Release);
                since = Instant::now();
                continue;
            }
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(64) || since.elapsed() < LOOK_OUT {
                core::hint::spin_loop();
                continue;
            }
            asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.word.load(Ordering::Relaxed) == word {
                while asleep.load(Ordering::Relaxed) {
                    std::thread::park();
                }
            }
            asleep.store(false, Ordering::Relaxed);
            since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::together;
    use crate::threads::for_each;

    #[test]
    fn every_item_is_done_once_from_many_threads_at_a_time() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for items in 0..600 {
                        let done: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                        for_each(items, |item| {
                            done[item].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
    }

    #[test]
    fn work_within_work_is_left_to_the_caller() {
        let inner = AtomicUsize::new(0);
        for_each(8, |_| {
            for_each(8, |_| {
                inner.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(inner.into_inner(), 64);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        for _ in 0..20 {
            let caught = std::panic::catch_unwind(|| {
                for_each(64, |item| assert_ne!(item, 63, "meant to happen"));
            });
            assert!(caught.is_err());
        }
        let done = AtomicUsize::new(0);
        for_each(64, |_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 64);
        assert!(!together(0, &|| {}));
    }
}
