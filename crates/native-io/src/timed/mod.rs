//! Graphs whose packets wait: in queues in front of elements that take them at a rate, and for delays.
//!
//! A packet that waits leaves the graph at an output behind the graph's own, one for each lane, with its
//! annotations, which the code has put into the buffer, as it does for the stage behind queues
//! ([`super::pipeline`]). The [`TimedQueues`] keeps it, knows when the next one is due, and hands it back; it
//! comes in by a source behind all others and goes on from there. Full lanes drop packets.
//!
//! There are two clocks. [`run_graph_timed`] replays: time is that of the packets, it leaps to the next
//! event, and the same packets give the same result; [`serve_graph_timed`] is for interfaces, and uses the
//! system's clock.
//!
//! Invariants: packets of a lane leave in order, none before it is due. received + copies = sent + dropped +
//! held, where the graph counts what it drops itself; packets that are sent round after round are held until
//! their first round, and copies from then on.

mod live;
mod pacing;
mod queued_packet;
mod replay;
mod scheduling;
mod send_schedule;
mod stored;

use std::collections::VecDeque;
use std::ops::Range;

pub use live::serve_graph_timed;
pub use pacing::{BucketSize, PacingPolicy};
pub use replay::{ArrivalTimes, run_graph_timed};
pub use scheduling::SchedulingPolicy;
pub use send_schedule::{SendSchedule, SendTimer};
pub use stored::{ReplayPolicy, ReplayProgress};

use millstream_native_runtime::packet::{PacketBatch, PacketExtent};
use pacing::PacingState;
use queued_packet::QueuedPacket;
use scheduling::QueueScheduler;
use stored::StoredPackets;

/// Packets in a lane without a capacity from which on sources wait.
const ENOUGH: usize = 1000;
/// Maximum number of buffers that are kept for reuse.
const SPARE: usize = 4096;

/// Queue of waiting packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketQueueConfig {
    /// Name by which another graph that replaces this one finds it.
    pub name: String,
    /// Maximum number of packets; without a limit sources wait while there are many.
    pub capacity: Option<u64>,
    /// True if a full lane drops its first packet, not the new one.
    pub front: bool,
    /// The lane whose first packets its packets become; a full one drops its last packet for them.
    pub front_of: Option<usize>,
    /// The graph's number for the place where its packets go on.
    pub number: u32,
    /// The bytes of that number in the kept data of a packet.
    pub numbered: Range<usize>,
    /// The annotations that are kept, by number, and their bytes.
    pub notes: Vec<(usize, Range<usize>)>,
}

/// Rule by which packets leave lanes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueServiceConfig {
    /// Name by which another graph finds it.
    pub name: String,
    /// Times at which packets leave.
    pub pace: PacingPolicy,
    /// Lanes that it takes packets from, and their order.
    pub turns: SchedulingPolicy,
    /// The lane that it feeds: it waits while that lane holds a packet.
    pub feeds: Option<usize>,
    /// Sources that it pulls from without a queue between.
    pub sources: Vec<usize>,
}

/// Lanes and servers of a graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TimedQueuesConfig {
    /// Lanes, in the order of the graph's outputs for them.
    pub lanes: Vec<PacketQueueConfig>,
    /// Servers, which take packets from the lanes.
    pub servers: Vec<QueueServiceConfig>,
    /// Sources that send nothing while all of these lanes are full.
    pub holds: Vec<(usize, Vec<usize>)>,
    /// Bytes that the code keeps in the buffer of a waiting packet.
    pub kept: usize,
}

/// Numbers of a lane since the last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    /// Packets in it.
    pub length: u64,
    /// Largest number of packets.
    pub highest: u64,
    /// Packets dropped because the lane was full.
    pub dropped: u64,
}

#[derive(Debug)]
struct PacketQueue {
    spec: PacketQueueConfig,
    waiting: VecDeque<QueuedPacket>,
    highest: u64,
    dropped: u64,
}

#[derive(Debug)]
struct QueueService {
    name: String,
    clocked: PacingState,
    scheduler: QueueScheduler,
    feeds: Option<usize>,
    /// True if one of its packets is on the way to the lane that it feeds.
    sent: bool,
    /// Packets on the link, with their arrival times.
    flying: VecDeque<(u64, QueuedPacket)>,
    /// Packets that are sent round after round.
    stored: Option<StoredPackets>,
    lanes: Vec<usize>,
    sources: Vec<usize>,
}

/// Waiting packets.
#[derive(Debug)]
pub struct TimedQueues {
    lanes: Vec<PacketQueue>,
    servers: Vec<QueueService>,
    holds: Vec<(usize, Vec<usize>)>,
    kept: usize,
    spare: Vec<Vec<u8>>,
    /// Beginning of time: ticks count from there.
    origin: u64,
    now: u64,
    changed: bool,
    closed: bool,
    /// Time at which somebody wants to be asked whether to go on, whatever packets do.
    alarm: Option<u64>,
    /// Sources that have no packet now.
    dry: Vec<usize>,
    /// Least time between two packets that nothing else paces.
    step: u64,
    /// Copies since the last report.
    copies: u64,
}

impl TimedQueues {
    /// An empty room.
    pub fn new(spec: &TimedQueuesConfig) -> TimedQueues {
        let mut room = TimedQueues {
            lanes: Vec::new(),
            servers: Vec::new(),
            holds: Vec::new(),
            kept: 0,
            spare: Vec::new(),
            origin: 0,
            now: 0,
            changed: true,
            closed: false,
            alarm: None,
            dry: Vec::new(),
            step: 0,
            copies: 0,
        };
        room.configure(spec);
        room
    }

    /// Returns true if there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    fn configure(&mut self, spec: &TimedQueuesConfig) {
        let lane = |spec: &PacketQueueConfig| PacketQueue {
            spec: spec.clone(),
            waiting: VecDeque::new(),
            highest: 0,
            dropped: 0,
        };
        let server = |spec: &QueueServiceConfig| QueueService {
            name: spec.name.clone(),
            clocked: PacingState::new(spec.pace, self.origin),
            scheduler: (&spec.turns).into(),
            feeds: spec.feeds,
            sent: false,
            flying: VecDeque::new(),
            stored: match spec.pace {
                PacingPolicy::Replay(policy) => Some(StoredPackets::new(policy)),
                _ => None,
            },
            lanes: spec.turns.lanes(),
            sources: spec.sources.clone(),
        };
        self.servers = spec.servers.iter().map(server).collect();
        self.lanes = spec.lanes.iter().map(lane).collect();
        self.holds.clone_from(&spec.holds);
        self.kept = spec.kept;
        self.changed = true;
    }

    /// Sets the beginning of time.
    pub(super) fn begin(&mut self, origin: u64) {
        (self.origin, self.now) = (origin, origin);
        for server in &mut self.servers {
            server.clocked = PacingState::new(server.clocked.pace(), origin);
        }
    }

    /// Sets the least time between two packets that nothing else paces.
    pub(super) fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Records whether a source has a packet now.
    pub(super) fn note_source(&mut self, source: usize, has_packets: bool) {
        match self.dry.iter().position(|dry| *dry == source) {
            Some(at) if has_packets => {
                self.dry.swap_remove(at);
            }
            None if !has_packets => self.dry.push(source),
            _ => {}
        }
    }

    /// Number of copies of packets that were sent before, since the last call.
    pub(super) fn take_copies(&mut self) -> u64 {
        std::mem::take(&mut self.copies)
    }

    /// Drops the packets that a server sends round after round: it takes others.
    pub fn reset_replay(&mut self, server: usize) {
        if let Some(stored) = self.servers.get_mut(server).and_then(|server| server.stored.as_mut()) {
            stored.reset().into_iter().for_each(|packet| reuse(&mut self.spare, packet.bytes));
        }
    }

    /// Progress of a server that sends packets round after round, if there is any since the last call.
    pub fn take_progress(&mut self, server: usize) -> Option<ReplayProgress> {
        self.servers.get_mut(server)?.stored.as_mut()?.take_progress()
    }

    /// Sets the pace of a server from now on.
    pub fn set_pace(&mut self, server: usize, pace: PacingPolicy) {
        let now = self.now;
        if let (Some(QueueService { stored: Some(stored), .. }), PacingPolicy::Replay(policy)) =
            (self.servers.get_mut(server), pace)
        {
            stored.set(policy, now);
        }
        if let Some(server) = self.servers.get_mut(server).filter(|server| server.clocked.pace() != pace) {
            server.clocked.set(pace, now);
        }
    }

    /// Sets the capacity of a lane from now on. The latest packets beyond it are dropped.
    pub fn set_capacity(&mut self, lane: usize, capacity: Option<u64>) {
        let Some(lane) = self.lanes.get_mut(lane).filter(|lane| lane.spec.capacity != capacity) else {
            return;
        };
        lane.spec.capacity = capacity;
        let most = capacity.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        while lane.waiting.len() > most {
            let Some(last) = lane.waiting.pop_back() else { break };
            reuse(&mut self.spare, last.bytes);
            lane.dropped += 1;
            self.changed = true;
        }
    }

    /// Returns true if a source sends nothing for now, since all queues that it looks at are full.
    pub(super) fn is_held(&self, source: usize) -> bool {
        let is_full = |lane: &usize| {
            self.lanes
                .get(*lane)
                .is_some_and(|lane| lane.spec.capacity.is_some_and(|most| lane.waiting.len() as u64 >= most))
                || self.is_shut(*lane)
        };
        self.holds.iter().any(|(of, lanes)| *of == source && lanes.iter().all(is_full))
    }

    /// Returns true if packets would come to a lane without a queue from which no more are taken for now.
    fn is_shut(&self, lane: usize) -> bool {
        let shuts = |server: &QueueService| {
            server.lanes.contains(&lane)
                && server.stored.as_ref().is_some_and(|stored| {
                    let waiting = server.lanes.iter().filter_map(|lane| self.lanes.get(*lane));
                    !stored.has_room(waiting.map(|lane| lane.waiting.len()).sum())
                })
        };
        self.lanes.get(lane).is_some_and(|lane| lane.spec.capacity.is_none())
            && self.servers.iter().any(shuts)
    }

    /// Number of waiting packets.
    pub fn held(&self) -> u64 {
        let waiting = self.lanes.iter().map(|lane| lane.waiting.len());
        let flying = self.servers.iter().map(|server| server.flying.len());
        let stored = self.servers.iter().filter_map(|server| server.stored.as_ref()).map(StoredPackets::held);
        waiting.chain(flying).sum::<usize>() as u64 + stored.sum::<u64>()
    }

    /// Numbers of each lane, in order, if anything has changed since the last call. Each dropped packet is
    /// reported once.
    pub fn take_stats(&mut self) -> Option<Vec<QueueStats>> {
        let told = |lane: &mut PacketQueue| QueueStats {
            length: lane.waiting.len() as u64,
            highest: std::mem::take(&mut lane.highest).max(lane.waiting.len() as u64),
            dropped: std::mem::take(&mut lane.dropped),
        };
        std::mem::take(&mut self.changed).then(|| self.lanes.iter_mut().map(told).collect())
    }

    /// Sets a time at which the run asks whether to go on, whatever packets do, or none.
    pub fn set_alarm(&mut self, at: Option<u64>) {
        self.alarm = at;
    }

    /// Closes the room: sources send no more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns true if no waiting packet will ever leave, as things are: there is none, or nothing takes it.
    pub fn is_idle(&self) -> bool {
        self.next().is_none()
    }

    /// Returns true if sources must wait.
    pub(super) fn is_full(&self) -> bool {
        let full = |lane: &PacketQueue| lane.spec.capacity.is_none() && lane.waiting.len() >= ENOUGH;
        self.closed || self.lanes.iter().any(full)
    }

    /// Takes a packet of a batch that the graph has sent to a lane.
    pub(super) fn enter(
        &mut self,
        lane: usize,
        batch: &PacketBatch,
        place: usize,
        (source, number): (usize, u64),
    ) {
        let (Some((bytes, carried)), Some(into)) = (batch.carried(place), self.lanes.get_mut(lane)) else {
            return;
        };
        self.changed = true;
        let (lane, is_first) = into.spec.front_of.map_or((lane, false), |of| (of, true));
        let Some(into) = self.lanes.get_mut(lane) else { return };
        let capacity = into.spec.capacity.unwrap_or(u64::MAX);
        if into.waiting.len() as u64 >= capacity {
            into.dropped += 1;
            let gone = match (is_first, into.spec.front) {
                (true, _) => into.waiting.pop_back(),
                (false, true) => into.waiting.pop_front(),
                (false, false) => None,
            };
            let Some(gone) = gone else { return };
            reuse(&mut self.spare, gone.bytes);
        }
        let mut own = self.spare.pop().unwrap_or_default();
        own.extend_from_slice(bytes);
        let packet = QueuedPacket { bytes: own, carried, source, number, came: self.now, lane };
        match is_first {
            true => into.waiting.push_front(packet),
            false => into.waiting.push_back(packet),
        }
        into.highest = into.highest.max(into.waiting.len() as u64);
    }

    /// Time at which a server takes the next packet, and its lane; `None` while the lane that it feeds holds
    /// one.
    fn pull(&self, server: &QueueService) -> Option<(u64, usize)> {
        let feeds = server.feeds.and_then(|lane| self.lanes.get(lane));
        if server.sent || feeds.is_some_and(|lane| !lane.waiting.is_empty()) {
            return None;
        }
        let has = |lane: usize| self.lanes.get(lane).is_some_and(|lane| !lane.waiting.is_empty());
        let lane = server.scheduler.next(&has)?;
        let first = self.lanes[lane].waiting.front()?;
        Some((server.clocked.departure_time(first.came, first.length())?, lane))
    }

    /// Time of the next event, if any.
    pub(super) fn next(&self) -> Option<u64> {
        let of = |server: &QueueService| {
            if let Some(stored) = &server.stored {
                return self.replay_time(server, stored);
            }
            let flying = server.flying.front().map(|(at, _)| *at);
            let pulled = self.pull(server).map(|(at, _)| at);
            flying.into_iter().chain(pulled).min()
        };
        self.servers.iter().filter_map(of).min()
    }

    /// Time of the next step of a server that sends packets round after round: it takes a packet, notices
    /// that there are no more, or sends a copy.
    fn replay_time(&self, server: &QueueService, stored: &StoredPackets) -> Option<u64> {
        if !stored.is_loading() {
            return stored.departure_time();
        }
        let dry = match server.sources.as_slice() {
            [] => stored.has_packets(),
            sources => self.closed || sources.iter().all(|source| self.dry.contains(source)),
        };
        (self.filled_lane(server).is_some() || dry).then_some(self.now)
    }

    /// The lane that a server pulls from next.
    fn filled_lane(&self, server: &QueueService) -> Option<usize> {
        let has = |lane: usize| self.lanes.get(lane).is_some_and(|lane| !lane.waiting.is_empty());
        server.scheduler.next(&has)
    }

    /// Carries out the next step of such a server, which may give a packet.
    fn replay(&mut self, at: usize) -> Option<QueuedPacket> {
        let lane = self.servers.get(at).and_then(|server| self.filled_lane(server));
        let (now, step) = (self.now, self.step);
        let server = self.servers.get_mut(at)?;
        let stored = server.stored.as_mut()?;
        if stored.is_loading() {
            match lane.and_then(|lane| Some((lane, self.lanes.get_mut(lane)?.waiting.pop_front()?))) {
                Some((lane, packet)) => {
                    stored.store(packet, now);
                    server.scheduler.charge(lane);
                }
                None => stored.finish_loading(now),
            }
            return None;
        }
        let (packet, again) = stored.advance(now, step)?;
        self.copies += u64::from(again);
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(&packet.bytes);
        Some(QueuedPacket { bytes, ..*packet })
    }

    /// Advances the time.
    pub(super) fn advance_to(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.servers.iter_mut().for_each(|server| server.sent = false);
    }

    /// A packet that is due by now; the earliest one first.
    fn take(&mut self) -> Option<QueuedPacket> {
        loop {
            let due = |(at, server): (usize, &QueueService)| {
                if let Some(stored) = &server.stored {
                    return self.replay_time(server, stored).map(|time| (time, at, None));
                }
                let flying = server.flying.front().map(|(time, _)| (*time, at, None));
                let pulled = self.pull(server).map(|(time, lane)| (time, at, Some(lane)));
                flying.into_iter().chain(pulled).min()
            };
            let due = self.servers.iter().enumerate().filter_map(due).min();
            let (time, at, lane) = due.filter(|(time, ..)| *time <= self.now)?;
            self.changed = true;
            if self.servers[at].stored.is_some() {
                match self.replay(at) {
                    Some(copy) => return Some(copy),
                    None => continue,
                }
            }
            let server = &mut self.servers[at];
            server.sent = server.feeds.is_some();
            let Some(lane) = lane else { return server.flying.pop_front().map(|(_, parcel)| parcel) };
            let parcel = self.lanes[lane].waiting.pop_front()?;
            server.scheduler.charge(lane);
            match server.clocked.record_departure(time, parcel.length()) {
                Some(arrives) => {
                    server.sent = false;
                    server.flying.push_back((arrives, parcel));
                }
                None => return Some(parcel),
            }
        }
    }

    /// Fills a batch with the due packets, which come in by source `ingress`, and records the origin of each.
    pub(super) fn fill(&mut self, batch: &mut PacketBatch, ingress: u32, origins: &mut Vec<(usize, u64)>) {
        while batch.len() < batch.capacity() {
            let Some(parcel) = self.take() else { break };
            // A batch has room for every packet of another one.
            if batch.push_carried(&parcel.bytes, parcel.carried, ingress) {
                origins.push((parcel.source, parcel.number));
            }
            reuse(&mut self.spare, parcel.bytes);
        }
    }

    /// Replaces the lanes and servers by those of another graph: packets go on waiting where it has a lane
    /// and a server of the same names, with their annotations in its form. Returns the names of lanes and
    /// servers whose packets have no place there, and the number of these packets.
    pub fn reconfigure(&mut self, spec: &TimedQueuesConfig) -> Vec<(String, u64)> {
        let (lanes, servers) = (std::mem::take(&mut self.lanes), std::mem::take(&mut self.servers));
        let kept = self.kept;
        self.configure(spec);
        let place = |old: &PacketQueue| self.lanes.iter().position(|lane| lane.spec.name == old.spec.name);
        let places: Vec<Option<usize>> = lanes.iter().map(place).collect();
        let of = |lanes: &[PacketQueue]| {
            lanes.iter().map(|lane| lane.spec.clone()).collect::<Vec<PacketQueueConfig>>()
        };
        let (before, now) = (of(&lanes), of(&self.lanes));
        let stays = |parcel: &mut QueuedPacket| {
            let Some(lane) = places.get(parcel.lane).copied().flatten() else { return false };
            let old = std::mem::replace(&mut parcel.lane, lane);
            parcel.rewrite((&before[old], kept), (&now[lane], spec.kept))
        };
        let mut gone = Vec::new();
        for (mut old, place) in lanes.into_iter().zip(&places) {
            let before = old.waiting.len();
            old.waiting.retain_mut(stays);
            gone.push((old.spec.name, (before - old.waiting.len()) as u64));
            if let Some(lane) = place.and_then(|place| self.lanes.get_mut(place)) {
                (lane.highest, lane.dropped, lane.waiting) = (old.highest, old.dropped, old.waiting);
            }
        }
        for mut old in servers {
            let known = self.servers.iter_mut().find(|server| server.name == old.name);
            let flying = old.flying.len() as u64;
            let stored = old.stored.as_ref().map_or(0, StoredPackets::held);
            match known {
                Some(server) => {
                    // A server that sends each packet once has no place for them.
                    let lost = match (server.stored.as_mut(), old.stored) {
                        (Some(new), Some(old)) => new.take_over(old, stays),
                        _ => stored,
                    };
                    old.flying.retain_mut(|(_, parcel)| stays(parcel));
                    gone.push((old.name, lost + flying - old.flying.len() as u64));
                    let pace = server.clocked.pace();
                    server.clocked = old.clocked;
                    server.clocked.set(pace, self.now);
                    server.flying = old.flying;
                }
                None => gone.push((old.name, stored + flying)),
            }
        }
        gone.retain(|(_, packets)| *packets > 0);
        gone
    }
}

impl QueuedPacket {
    /// Rewrites its annotations in the form in which another graph keeps them for packets of a lane, in this
    /// many bytes; missing ones are zero. `false` if there is no room in front of the packet.
    fn rewrite(
        &mut self,
        (old, old_bytes): (&PacketQueueConfig, usize),
        (new, new_bytes): (&PacketQueueConfig, usize),
    ) -> bool {
        let from = PacketExtent::kept(old_bytes);
        let before = self.bytes.get(from..from + old_bytes).unwrap_or_default().to_vec();
        let of = |note: usize| {
            let (_, place) = old.notes.iter().find(|(known, _)| *known == note)?;
            before.get(place.clone())
        };
        let to = PacketExtent::kept(new_bytes);
        if to + new_bytes > self.carried.front() {
            return false;
        }
        let Some(kept) = self.bytes.get_mut(to..to + new_bytes) else { return false };
        kept.fill(0);
        let number = new.number.to_le_bytes();
        kept[new.numbered.clone()].copy_from_slice(&number[..new.numbered.len()]);
        for (note, place) in &new.notes {
            if let Some(value) = of(*note) {
                kept[place.clone()].copy_from_slice(value);
            }
        }
        true
    }
}

fn reuse(spare: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>) {
    if spare.len() < SPARE {
        bytes.clear();
        spare.push(bytes);
    }
}
