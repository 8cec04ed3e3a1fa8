//! Sources without packets, as a run reports them between batches, and the reply: whether somebody may still
//! release some.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// No worker has looked for packets of a source.
const UNSEEN: u8 = 3;
/// A source has packets, as far as a worker has seen.
const FLOWS: u8 = 0;
/// It has none for now: it is stopped.
const STOPPED: u8 = 1;
/// It has sent all its packets.
const ENDED: u8 = 2;

/// Sources that have no packets, and whether somebody waits for that.
#[derive(Debug)]
pub struct IdleSources {
    /// By source, then by worker.
    sources: Vec<Box<[AtomicU8]>>,
    /// True if packets wait for a time that the run knows.
    pending: AtomicBool,
    /// True if the run goes on though there are no packets.
    held: AtomicBool,
}

impl IdleSources {
    /// State for this many sources and workers; if `held`, the run goes on without packets.
    pub fn new(sources: usize, workers: u32, held: bool) -> IdleSources {
        let all = |_| (0..workers.max(1)).map(|_| AtomicU8::new(UNSEEN)).collect();
        IdleSources {
            sources: (0..sources).map(all).collect(),
            pending: AtomicBool::new(false),
            held: AtomicBool::new(held),
        }
    }

    /// Returns true if a source has sent all its packets, as far as is known now.
    pub fn has_ended(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|all| all.iter().all(|one| one.load(Ordering::Relaxed) == ENDED))
    }

    /// Returns true if packets of a source have been seen since the last [`IdleSources::reset`].
    pub fn flows(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|all| all.iter().any(|one| one.load(Ordering::Relaxed) == FLOWS))
    }

    /// Returns true if no packet will come by itself.
    pub fn is_idle(&self) -> bool {
        let is_dry = |one: &AtomicU8| [STOPPED, ENDED].contains(&one.load(Ordering::Relaxed));
        let dry = |all: &[AtomicU8]| all.iter().all(is_dry);
        !self.pending.load(Ordering::Relaxed) && self.sources.iter().all(|all| dry(all))
    }

    /// Returns true if packets come, or will by themselves.
    pub fn is_busy(&self) -> bool {
        self.pending.load(Ordering::Relaxed) || (0..self.sources.len()).any(|source| self.flows(source))
    }

    /// Discards what was seen, since somebody may have released packets.
    pub fn reset(&self) {
        self.sources.iter().flat_map(|all| all.iter()).for_each(|one| one.store(UNSEEN, Ordering::Relaxed));
    }

    /// Sets whether the run goes on though there are no packets.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    pub(super) fn holds(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Records that a worker has looked at a source: whether there was a packet and, if not, whether the
    /// source is stopped.
    pub(super) fn record_poll(&self, source: usize, worker: u32, any: bool, stopped: bool) {
        let seen = match (any, stopped) {
            (true, _) => FLOWS,
            (false, true) => STOPPED,
            (false, false) => ENDED,
        };
        if let Some(one) = self.sources.get(source).and_then(|all| all.get(worker as usize)) {
            one.store(seen, Ordering::Relaxed);
        }
    }

    /// Records that no source can send, since there is no room.
    pub(super) fn mark_blocked(&self) {
        for one in self.sources.iter().flat_map(|all| all.iter()) {
            let _ = one.compare_exchange(FLOWS, STOPPED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Sets whether packets wait for their time.
    pub(super) fn waits(&self, pending: bool) {
        self.pending.store(pending, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::IdleSources;

    #[test]
    fn a_source_has_ended_when_all_workers_have_seen_its_end() {
        let attention = IdleSources::new(2, 2, true);
        assert!(!attention.is_idle() && !attention.has_ended(0) && attention.holds());
        for worker in 0..2 {
            assert!(!attention.has_ended(0));
            attention.record_poll(0, worker, false, false);
            attention.record_poll(1, worker, false, true);
        }
        assert!(attention.has_ended(0) && !attention.has_ended(1) && attention.is_idle());
        attention.waits(true);
        assert!(!attention.is_idle());
        attention.waits(false);
        attention.record_poll(1, 1, true, false);
        assert!(!attention.is_idle());
        attention.reset();
        assert!(!attention.has_ended(0));
    }
}
