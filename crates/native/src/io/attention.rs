//! What a run says of sources that have no packets, to whoever is asked between batches, and what it is told: whether somebody may still let some come.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Nobody has looked for packets of a source.
const UNSEEN: u8 = 3;
/// A source has packets, as far as a worker has seen.
const FLOWS: u8 = 0;
/// It has none for now: somebody has stopped it.
const STOPPED: u8 = 1;
/// It has sent all that it has.
const ENDED: u8 = 2;

/// Sources that have no packets, and whether somebody waits for that.
#[derive(Debug)]
pub struct Attention {
    /// By source, then by worker.
    sources: Vec<Box<[AtomicU8]>>,
    /// Packets wait for their time, which the run knows.
    pending: AtomicBool,
    /// The run goes on though there are no packets.
    held: AtomicBool,
}

impl Attention {
    /// Of so many sources and workers; the run goes on where there are no packets if it is `held`.
    pub fn new(sources: usize, workers: u32, held: bool) -> Attention {
        let all = |_| (0..workers.max(1)).map(|_| AtomicU8::new(UNSEEN)).collect();
        Attention {
            sources: (0..sources).map(all).collect(),
            pending: AtomicBool::new(false),
            held: AtomicBool::new(held),
        }
    }

    /// Whether a source has sent all that it has, as things are.
    pub fn has_ended(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|all| all.iter().all(|one| one.load(Ordering::Relaxed) == ENDED))
    }

    /// Whether packets of a source have been seen since it was last looked at anew.
    pub fn flows(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|all| all.iter().any(|one| one.load(Ordering::Relaxed) == FLOWS))
    }

    /// Whether no packet will come by itself.
    pub fn is_idle(&self) -> bool {
        let is_dry = |one: &AtomicU8| [STOPPED, ENDED].contains(&one.load(Ordering::Relaxed));
        let dry = |all: &[AtomicU8]| all.iter().all(is_dry);
        !self.pending.load(Ordering::Relaxed) && self.sources.iter().all(|all| dry(all))
    }

    /// Whether packets come, or will by themselves.
    pub fn is_busy(&self) -> bool {
        self.pending.load(Ordering::Relaxed) || (0..self.sources.len()).any(|source| self.flows(source))
    }

    /// Somebody may have let packets come: it is looked again.
    pub fn look_again(&self) {
        self.sources.iter().flat_map(|all| all.iter()).for_each(|one| one.store(UNSEEN, Ordering::Relaxed));
    }

    /// Whether the run goes on though there are no packets.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    pub(super) fn holds(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// A worker has looked at a source: whether there was a packet and, if not, whether somebody has stopped it.
    pub(super) fn looked(&self, source: usize, worker: u32, any: bool, stopped: bool) {
        let seen = match (any, stopped) {
            (true, _) => FLOWS,
            (false, true) => STOPPED,
            (false, false) => ENDED,
        };
        if let Some(one) = self.sources.get(source).and_then(|all| all.get(worker as usize)) {
            one.store(seen, Ordering::Relaxed);
        }
    }

    /// Nothing goes on, whatever sources have: there is no room for it.
    pub(super) fn blocked(&self) {
        for one in self.sources.iter().flat_map(|all| all.iter()) {
            let _ = one.compare_exchange(FLOWS, STOPPED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether packets wait for their time.
    pub(super) fn waits(&self, pending: bool) {
        self.pending.store(pending, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Attention;

    #[test]
    fn a_source_has_ended_when_all_workers_have_seen_its_end() {
        let attention = Attention::new(2, 2, true);
        assert!(!attention.is_idle() && !attention.has_ended(0) && attention.holds());
        for worker in 0..2 {
            assert!(!attention.has_ended(0));
            attention.looked(0, worker, false, false);
            attention.looked(1, worker, false, true);
        }
        assert!(attention.has_ended(0) && !attention.has_ended(1) && attention.is_idle());
        attention.waits(true);
        assert!(!attention.is_idle());
        attention.waits(false);
        attention.looked(1, 1, true, false);
        assert!(!attention.is_idle());
        attention.look_again();
        assert!(!attention.has_ended(0));
    }
}
