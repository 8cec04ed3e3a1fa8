//! Maps that several workers use at once.
//!
//! Every operation of the runtime on a shared map holds its lock, which is a number that is odd meanwhile and
//! grows with every holder. Look-ups in code take no lock: they read the number, search, and read it again.
//! If it was odd or has changed, the search may have seen a table during a change: its result does not count,
//! and the look-up calls the runtime, which takes the lock (a sequence lock: Lameter, 2005). The result is an
//! address, which stays usable until the worker's batch ends: slots that entries have left are reused when
//! all workers have begun another batch since (`WorkerEpochs`; quiescent states as in McKenney and
//! Slingwine's read-copy update, 1998).
//!
//! Accesses of programs to the values themselves are as in the kernel: only single accesses and atomic
//! operations are indivisible.
//!
//! Invariant: only [`SeqlockMap::with`], and the holder of the one `&mut`, access a map.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread::yield_now;

use super::maps::NativeMap;

/// Number of attempts to take a lock before the processor is yielded.
const SPINS: u32 = 100;

/// A map, and the number that says whether it is being changed. Code knows the number by its address, which
/// is the map's.
#[repr(C)]
#[derive(Debug)]
pub struct SeqlockMap {
    sequence: AtomicU64,
    /// True if there is only one worker, and so nothing to wait for.
    alone: bool,
    ring: bool,
    map: UnsafeCell<NativeMap>,
}

// SAFETY: by shared reference a map is reached under the lock only, or by one thread where it is alone.
unsafe impl Sync for SeqlockMap {}

impl SeqlockMap {
    /// A map that this many workers share.
    pub fn new(map: NativeMap, workers: u32) -> SeqlockMap {
        let (alone, ring) = (workers <= 1, map.is_ring());
        SeqlockMap { sequence: AtomicU64::new(0), alone, ring, map: UnsafeCell::new(map) }
    }

    /// The map, which nobody else has now.
    pub fn get_mut(&mut self) -> &mut NativeMap {
        self.map.get_mut()
    }

    /// Returns true if the map is one that is read between batches.
    pub fn is_ring(&self) -> bool {
        self.ring
    }

    /// Runs a closure with the map; no other worker sees it half done.
    pub fn with<R>(&self, act: impl FnOnce(&mut NativeMap) -> R) -> R {
        if self.alone {
            // SAFETY: one worker, which waits for its helper; see the invariants of `helpers`.
            return act(unsafe { &mut *self.map.get() });
        }
        let odd = self.lock();
        // SAFETY: whoever made the number odd has exclusive access until it is even again.
        let result = act(unsafe { &mut *self.map.get() });
        self.sequence.store(odd + 1, Ordering::Release);
        result
    }

    /// Makes the number odd, once nobody else holds the lock.
    fn lock(&self) -> u64 {
        let mut spins = 0;
        loop {
            let now = self.sequence.load(Ordering::Relaxed);
            let free = now & 1 == 0;
            let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
            if free && self.sequence.compare_exchange_weak(now, now + 1, order, failed).is_ok() {
                // No change of the table is visible before that of the number.
                fence(Ordering::Release);
                return now + 1;
            }
            spins += 1;
            if spins % SPINS == 0 { yield_now() } else { spin_loop() }
        }
    }
}
