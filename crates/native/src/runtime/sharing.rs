//! Maps that several workers use at once.
//!
//! Every operation of the runtime on a shared map holds its lock, which is a number that is odd meanwhile and grows with every holder.
//! Look-ups in code take no lock: they read the number, search, and read it again. If it was odd or is another one, the search may have
//! met a table that was being changed: what it found does not count, and the runtime is asked, under the lock (a sequence lock: Lameter,
//! 2005). What is found is an address, and remains of use until the worker's batch ends: slots that entries have left are used again when
//! all workers have begun another batch since ([`Epochs`]; quiescent states as in McKenney and Slingwine's read-copy update, 1998).
//!
//! What programs do with values themselves is as in the kernel: single accesses and atomic operations are whole, nothing else is.
//!
//! Invariant: nobody but [`Guarded::with`], and whoever has the one `&mut`, looks into a map.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread::yield_now;

use super::maps::Map;

/// Looks in vain for a lock, before others get the processor.
const SPINS: u32 = 100;

/// A map, and what says whether it is being changed. Code knows the number by its address, which is the map's.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Guarded {
    sequence: AtomicU64,
    /// Whether there is one worker only, and so nothing to wait for.
    alone: bool,
    ring: bool,
    map: UnsafeCell<Map>,
}

// SAFETY: by shared reference a map is reached under the lock only, or by one thread where it is alone.
unsafe impl Sync for Guarded {}

impl Guarded {
    pub(crate) fn new(map: Map, workers: u32) -> Guarded {
        let (alone, ring) = (workers <= 1, map.is_ring());
        Guarded { sequence: AtomicU64::new(0), alone, ring, map: UnsafeCell::new(map) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut Map {
        self.map.get_mut()
    }

    /// Whether the map is one that is read between batches.
    pub(crate) fn is_ring(&self) -> bool {
        self.ring
    }

    /// Does something with the map that no other worker sees half done.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Map) -> R) -> R {
        if self.alone {
            // SAFETY: one worker, which waits for its helper; see the invariants of `helpers`.
            return act(unsafe { &mut *self.map.get() });
        }
        let odd = self.lock();
        // SAFETY: whoever made the number odd is the only one here, until it is even again.
        let result = act(unsafe { &mut *self.map.get() });
        self.sequence.store(odd + 1, Ordering::Release);
        result
    }

    /// Makes the number odd, when nobody else has.
    fn lock(&self) -> u64 {
        let mut spins = 0;
        loop {
            let now = self.sequence.load(Ordering::Relaxed);
            let free = now & 1 == 0;
            let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
            if free && self.sequence.compare_exchange_weak(now, now + 1, order, failed).is_ok() {
                // No change of the table is seen before that of the number.
                fence(Ordering::Release);
                return now + 1;
            }
            spins += 1;
            if spins % SPINS == 0 { yield_now() } else { spin_loop() }
        }
    }
}

/// No batch at hand.
const IDLE: u64 = u64::MAX;

/// When each worker began the batch that it has at hand, in steps that entries make which leave a table.
#[derive(Debug)]
pub(crate) struct Epochs {
    now: AtomicU64,
    begun: Box<[AtomicU64]>,
}

impl Epochs {
    pub(crate) fn new(workers: u32) -> Epochs {
        Epochs { now: AtomicU64::new(0), begun: (0..workers.max(1)).map(|_| AtomicU64::new(IDLE)).collect() }
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> u32 {
        self.begun.len() as u32
    }

    /// A worker begins a batch: from now on it may find entries, but none that has left before.
    pub(crate) fn begin(&self, worker: u32) {
        let now = self.now.load(Ordering::SeqCst);
        self.begun[worker as usize].store(now, Ordering::Relaxed);
        // Between this and all look-ups of the batch, as in `oldest`: either whoever wants to use a slot again sees this batch, or this batch sees
        // the table without the entry.
        fence(Ordering::SeqCst);
    }

    /// The batch is done, and nothing of what was found in it is held.
    pub(crate) fn end(&self, worker: u32) {
        self.begun[worker as usize].store(IDLE, Ordering::Release);
    }

    /// When an entry leaves that has just been taken out of its table.
    pub(crate) fn leave(&self) -> u64 {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// The first moment at which a batch at hand began: what left before it is held by nobody.
    pub(crate) fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.begun.iter().map(|begun| begun.load(Ordering::Acquire)).min().unwrap_or(IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_left_is_held_until_all_have_begun_anew() {
        let epochs = Epochs::new(2);
        epochs.begin(0);
        let left = epochs.leave();
        assert!(left >= epochs.oldest(), "the first worker may hold it");
        epochs.begin(1);
        assert!(left >= epochs.oldest(), "it still may");
        epochs.end(0);
        assert!(left < epochs.oldest(), "the second one began without it");
        epochs.begin(0);
        assert!(left < epochs.oldest());
    }
}
