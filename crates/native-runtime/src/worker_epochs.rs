//! Batches of workers, and the entries that each may still hold.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// No current batch.
const IDLE: u64 = u64::MAX;

/// Time at which each worker began its current batch, in steps that are made by entries leaving a table.
#[derive(Debug)]
pub struct WorkerEpochs {
    now: AtomicU64,
    begun: Box<[AtomicU64]>,
    /// Writes of control programs to tables whose writes are counted.
    table_writes: AtomicU64,
}

impl WorkerEpochs {
    /// Epochs of this many workers, none of which has a batch.
    pub fn new(workers: u32) -> WorkerEpochs {
        WorkerEpochs {
            now: AtomicU64::new(0),
            begun: (0..workers.max(1)).map(|_| AtomicU64::new(IDLE)).collect(),
            table_writes: AtomicU64::new(0),
        }
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.begun.len() as u32
    }

    /// Number that changes before and behind each write to a table whose writes are counted.
    pub fn table_writes(&self) -> u64 {
        self.table_writes.load(Ordering::SeqCst)
    }

    /// Counts a write.
    pub(crate) fn count_table_write(&self) {
        self.table_writes.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins a batch of a worker: from now on it may find entries, but none that has left before.
    pub fn begin(&self, worker: u32) {
        let now = self.now.load(Ordering::SeqCst);
        self.begun[worker as usize].store(now, Ordering::Relaxed);
        // Between this and all look-ups of the batch, as in `oldest`: either whoever wants to reuse a slot
        // sees this batch, or this batch sees the table without the entry.
        fence(Ordering::SeqCst);
    }

    /// Ends the batch: no address that was found in it is held any more.
    pub fn end(&self, worker: u32) {
        self.begun[worker as usize].store(IDLE, Ordering::Release);
    }

    /// Time at which an entry leaves that has just been taken out of its table.
    pub(crate) fn leave(&self) -> u64 {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// Time at which the oldest current batch began: entries that left before are held by nobody.
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
        let epochs = WorkerEpochs::new(2);
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
