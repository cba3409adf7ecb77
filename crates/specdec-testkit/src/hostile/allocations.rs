use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The system's allocator, counting what each thread asks for. A thread that is
/// [`measured`] and asks for more than its limit is refused, which ends the process with the
/// size in the message: better than to fill the machine's memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// Runs `f` and tells how many more bytes than before this thread had allocated at the most. It gets
/// no more than `limit` of them.
pub fn measured<T>(limit: usize, f: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    LIMIT.set(before.saturating_add(limit));
    let result = f();
    LIMIT.set(usize::MAX);
    (result, PEAK.get().saturating_sub(before))
}

/// Bytes this thread has allocated and not freed. What other threads free of it, or it of theirs, is not told apart.
pub fn live_bytes() -> usize {
    LIVE.get()
}

/// Whether this thread may have so many bytes more; takes note of them.
fn admit(bytes: usize) -> bool {
    let now = LIVE.try_with(Cell::get).unwrap_or(0).saturating_add(bytes);
    // Threads on their way out are not counted.
    if LIMIT.try_with(Cell::get).is_ok_and(|limit| now > limit) {
        return false;
    }
    let _ = LIVE.try_with(|live| live.set(now));
    let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    true
}

/// Memory may come from another thread: less than nothing is nothing.
fn release(bytes: usize) {
    let _ = LIVE.try_with(|live| live.set(live.get().saturating_sub(bytes)));
}

// SAFETY: every call is passed on to the system's allocator as it came, or answered with null, which
// stands for failure; the counters neither allocate nor unwind.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !admit(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !admit(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        release(layout.size());
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !admit(size) {
            return std::ptr::null_mut();
        }
        release(layout.size());
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(memory, layout, size) }
    }
}
