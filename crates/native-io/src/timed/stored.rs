//! Packets that an element keeps and sends round after round.
//!
//! First the element takes packets, until a limit or until nothing more comes. Then it sends a copy of each,
//! in order, in every round. Time between the packets is that of their arrival, by a factor, or none.
//!
//! Invariant: a packet counts as held until its first copy was sent, and every later copy as a copy.

use super::queued_packet::QueuedPacket;

/// Rules for packets that are sent round after round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayPolicy {
    /// Rounds that are left; `None` for any number.
    pub rounds: Option<u64>,
    /// False if neither packets are taken nor copies sent.
    pub active: bool,
    /// Maximum number of packets to take.
    pub limit: u64,
    /// Speed in percent of the packets' own; 0 is as fast as possible.
    pub percent: u64,
    /// Nanoseconds after which no round begins, and none goes on that waits for the time of a packet.
    pub most_time: Option<u64>,
}

/// Progress of an element that sends packets round after round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayProgress {
    /// Rounds that are left; `None` for any number.
    pub rounds: Option<u64>,
    /// False if the element is not active, or has ended.
    pub active: bool,
    /// True once all packets are taken.
    pub loaded: bool,
    /// Number of ends of the last round since the last report.
    pub ended: u64,
    /// Packets dropped before any copy was sent, since the last report.
    pub dropped: u64,
}

/// Packets, and the position in them.
#[derive(Debug)]
pub(super) struct StoredPackets {
    policy: ReplayPolicy,
    packets: Vec<QueuedPacket>,
    loaded: bool,
    /// The packet that is sent next.
    next: usize,
    /// Packets of which a copy was sent.
    sent: usize,
    /// Time of the beginning of the first round; none before it.
    started: Option<u64>,
    /// Time of the beginning of the round, and earliest time of the next copy.
    began: u64,
    free: u64,
    ended: u64,
    dropped: u64,
    changed: bool,
}

impl StoredPackets {
    pub(super) fn new(policy: ReplayPolicy) -> StoredPackets {
        StoredPackets {
            policy,
            packets: Vec::new(),
            loaded: false,
            next: 0,
            sent: 0,
            started: None,
            began: 0,
            free: 0,
            ended: 0,
            dropped: 0,
            changed: true,
        }
    }

    /// Sets the rules from now on.
    pub(super) fn set(&mut self, policy: ReplayPolicy, now: u64) {
        if policy.active && !self.policy.active {
            // Times of the round count from its continuation.
            self.began = now.saturating_sub(self.offset(self.next));
            self.started = self.started.or(self.loaded.then_some(now));
        }
        self.changed |= policy != self.policy;
        self.policy = policy;
    }

    /// Drops all packets: others will be taken.
    pub(super) fn reset(&mut self) -> Vec<QueuedPacket> {
        self.dropped += self.held();
        (self.loaded, self.next, self.sent, self.changed) = (false, 0, 0, true);
        std::mem::take(&mut self.packets)
    }

    /// Packets of which no copy was sent.
    pub(super) fn held(&self) -> u64 {
        (self.packets.len() - self.sent) as u64
    }

    /// Returns true if it takes packets now.
    pub(super) fn is_loading(&self) -> bool {
        self.policy.active && !self.loaded
    }

    /// Returns true if it will take more packets than those that wait for it.
    pub(super) fn has_room(&self, waiting: usize) -> bool {
        self.is_loading() && ((self.packets.len() + waiting) as u64) < self.policy.limit
    }

    /// Returns true if it has taken any packet.
    pub(super) fn has_packets(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Takes a packet.
    pub(super) fn store(&mut self, packet: QueuedPacket, now: u64) {
        self.packets.push(packet);
        if self.packets.len() as u64 >= self.policy.limit {
            self.finish_loading(now);
        }
    }

    /// Ends the taking of packets.
    pub(super) fn finish_loading(&mut self, now: u64) {
        (self.loaded, self.began, self.free, self.changed) = (true, now, now, true);
        self.started = self.started.or(Some(now));
    }

    /// Nanoseconds from the beginning of a round to a packet's copy.
    fn offset(&self, at: usize) -> u64 {
        match (self.policy.percent, self.packets.first(), self.packets.get(at)) {
            (0, ..) | (_, None, _) | (.., None) => 0,
            (percent, Some(first), Some(packet)) => {
                let own = u128::from(packet.came.saturating_sub(first.came)) * 100;
                u64::try_from(own / u128::from(percent)).unwrap_or(u64::MAX)
            }
        }
    }

    /// Time of its next copy, or end, if there is one.
    pub(super) fn departure_time(&self) -> Option<u64> {
        let endless = self.packets.is_empty() && self.policy.rounds.is_none();
        if !self.policy.active || !self.loaded || endless {
            return None;
        }
        let due = self.began.saturating_add(self.offset(self.next));
        let due = self.last_time().filter(|_| self.policy.percent > 0).map_or(due, |last| due.min(last));
        Some(due.max(self.free))
    }

    /// Time from which on no round begins, if there is one.
    fn last_time(&self) -> Option<u64> {
        Some(self.started?.saturating_add(self.policy.most_time?))
    }

    /// The next packet to be copied, and true if it was sent before. `None` if a round or the last one has
    /// ended. Time to the next copy is at least `step`.
    pub(super) fn advance(&mut self, now: u64, step: u64) -> Option<(&QueuedPacket, bool)> {
        let is_late = self.last_time().is_some_and(|last| now >= last);
        let over = self.policy.rounds == Some(0) || self.policy.percent > 0 && is_late;
        if over || self.next >= self.packets.len() {
            self.changed = true;
            (self.next, self.began) = (0, now);
            // Rounds without packets take no time: all of them are over.
            let passed = if self.packets.is_empty() { u64::MAX } else { 1 };
            let left = self.policy.rounds.map(|rounds| rounds.saturating_sub(passed));
            let left = if is_late { Some(0) } else { left };
            self.policy.rounds = left;
            if left == Some(0) {
                self.policy.active = false;
                self.started = None;
                self.ended += 1;
            }
            return None;
        }
        let again = self.next < self.sent;
        self.next += 1;
        self.sent = self.sent.max(self.next);
        self.free = now.saturating_add(step);
        self.packets.get(self.next - 1).map(|packet| (packet, again))
    }

    /// Progress since the last report, if there is any.
    pub(super) fn take_progress(&mut self) -> Option<ReplayProgress> {
        let ReplayPolicy { rounds, active, .. } = self.policy;
        std::mem::take(&mut self.changed).then(|| ReplayProgress {
            rounds,
            active,
            loaded: self.loaded,
            ended: std::mem::take(&mut self.ended),
            dropped: std::mem::take(&mut self.dropped),
        })
    }

    /// Takes over what another one holds: those packets that `stays` accepts. Returns the number
    /// of held packets that it does not.
    pub(super) fn take_over(
        &mut self,
        old: StoredPackets,
        mut stays: impl FnMut(&mut QueuedPacket) -> bool,
    ) -> u64 {
        let held = old.held();
        let (next, sent) = (old.next, old.sent);
        for (at, mut packet) in old.packets.into_iter().enumerate() {
            if stays(&mut packet) {
                self.next += usize::from(at < next);
                self.sent += usize::from(at < sent);
                self.packets.push(packet);
            }
        }
        (self.loaded, self.started, self.began, self.free) = (old.loaded, old.started, old.began, old.free);
        (self.ended, self.dropped, self.changed) = (old.ended, old.dropped, true);
        held - self.held()
    }
}

#[cfg(test)]
mod tests {
    use millstream_native_runtime::packet::PacketExtent;

    use super::{ReplayPolicy, StoredPackets};
    use crate::timed::queued_packet::QueuedPacket;

    /// Times of copies of three packets, each 400 behind the last one.
    fn copies(most_time: u64) -> Vec<u64> {
        let policy =
            ReplayPolicy { rounds: None, active: true, limit: 3, percent: 0, most_time: Some(most_time) };
        let mut stored = StoredPackets::new(policy);
        for number in 0..3 {
            let carried = PacketExtent::default();
            stored.store(QueuedPacket { bytes: Vec::new(), carried, source: 0, number, came: 0, lane: 0 }, 0);
        }
        let mut times = Vec::new();
        while let Some(now) = stored.departure_time() {
            times.extend(stored.advance(now, 400).map(|_| now));
        }
        let progress = stored.take_progress().expect("progress");
        assert_eq!((progress.rounds, progress.active, progress.ended), (Some(0), false, 1));
        times
    }

    #[test]
    fn a_round_that_has_begun_in_time_is_sent_to_its_end() {
        assert_eq!(copies(1), [0, 400, 800]);
        assert_eq!(copies(1200), [0, 400, 800]);
        assert_eq!(copies(1201), [0, 400, 800, 1200, 1600, 2000]);
    }
}
