//! Packets that arrive at a rate, and their latencies.
//!
//! Arrivals are a Poisson process: even a worker that is fast enough finds several packets now and then. They
//! go into a ring like a NIC's, which drops packets when it is full, and a worker polls it. A packet's
//! latency is from its arrival until its batch is sent.
//!
//! The clock stops while the worker does not have its processor, which other processes may take for
//! milliseconds: a step of its loop that takes much longer than any batch can is left out of the time, and
//! counted.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use millstream_native_io::live::{PacketCallback, PacketPort};
use millstream_rng::Rng;

use super::traffic::TrafficPattern;

/// Capacity of the ring, in packets.
const RING: usize = 1024;
/// Random gaps between arrivals; they are repeated.
const GAPS: usize = 1 << 16;
/// Share of the time that passes before latencies are recorded.
const WARM: f64 = 0.1;

/// Arrival rate and duration of packets.
#[derive(Clone, Copy)]
pub(crate) struct OfferedLoad {
    /// Packets per second, or `None` for no limit.
    pub(crate) rate: Option<f64>,
    pub(crate) length: Duration,
    /// Longest step of the worker's loop that is counted as its own.
    pub(crate) longest_step: Duration,
}

/// Time for which a worker had its processor.
pub(super) struct WorkerClock {
    begun: Instant,
    longest_step: f64,
    /// The last reading, and the time left out until then.
    looked: Cell<f64>,
    left_out: Cell<f64>,
}

impl WorkerClock {
    pub(super) fn new(longest_step: Duration) -> WorkerClock {
        let longest_step = longest_step.as_nanos() as f64;
        WorkerClock { begun: Instant::now(), longest_step, looked: Cell::new(0.0), left_out: Cell::new(0.0) }
    }

    /// Time since the start, in nanoseconds, without that left out.
    pub(super) fn now(&self) -> f64 {
        let elapsed = self.begun.elapsed().as_nanos() as f64;
        let step = elapsed - self.looked.replace(elapsed);
        if step > self.longest_step {
            self.left_out.set(self.left_out.get() + step);
        }
        elapsed - self.left_out.get()
    }

    /// Time left out, in nanoseconds.
    pub(super) fn left_out(&self) -> f64 {
        self.left_out.get()
    }
}

/// Source or sink of packets.
pub(super) enum PacedEndpoint<'t> {
    Source(Box<PacedSource<'t>>),
    Sink,
}

/// Packets that arrive at a rate.
pub(super) struct PacedSource<'t> {
    traffic: &'t TrafficPattern,
    /// Mean time between two arrivals, in nanoseconds; `None` if there is always another packet.
    gap: Option<f64>,
    gaps: Vec<f64>,
    clock: &'t WorkerClock,
    warm: f64,
    next_at: f64,
    arrived: u64,
    taken: u64,
    /// Arrival times of waiting packets, in nanoseconds, and of those in the current batch.
    ring: VecDeque<f64>,
    under_way: Vec<f64>,
    pub(super) lost: u64,
    pub(super) latencies: LatencyHistogram,
}

impl<'t> PacedSource<'t> {
    /// Source of packets at a pace.
    pub(super) fn new(
        traffic: &'t TrafficPattern,
        clock: &'t WorkerClock,
        pace: &OfferedLoad,
        seed: u64,
    ) -> PacedSource<'t> {
        let mut rng = Rng::new(seed);
        let mut gaps: Vec<f64> = (0..GAPS).map(|_| -rng.unit().ln()).collect();
        let mean = gaps.iter().sum::<f64>() / GAPS as f64;
        gaps.iter_mut().for_each(|gap| *gap /= mean);
        PacedSource {
            traffic,
            gap: pace.rate.map(|rate| 1e9 / rate),
            gaps,
            clock,
            warm: pace.length.as_nanos() as f64 * WARM,
            next_at: 0.0,
            arrived: 0,
            taken: 0,
            ring: VecDeque::with_capacity(RING),
            under_way: Vec::new(),
            lost: 0,
            latencies: LatencyHistogram::default(),
        }
    }

    /// Adds the packets that arrived until now.
    fn arrive(&mut self, now: f64) {
        let Some(gap) = self.gap else {
            self.ring.resize(RING, now);
            return;
        };
        while self.next_at <= now {
            match self.ring.len() < RING {
                true => self.ring.push_back(self.next_at),
                false => self.lost += 1,
            }
            self.next_at += gap * self.gaps[self.arrived as usize % GAPS];
            self.arrived += 1;
        }
    }

    fn receive(&mut self, most: usize, take: PacketCallback<'_>) -> usize {
        let now = self.clock.now();
        self.arrive(now);
        let count = most.min(self.ring.len());
        for at in self.ring.drain(..count) {
            let TrafficPattern { frames, order, .. } = self.traffic;
            let frame =
                order.get(self.taken as usize % order.len().max(1)).and_then(|&at| frames.get(at as usize));
            self.under_way.push(at);
            self.taken += 1;
            take(frame.map_or(&[], Vec::as_slice));
        }
        count
    }

    /// Records the latencies of the batch that was sent.
    fn sent(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let now = self.clock.now();
        for at in self.under_way.drain(..).filter(|at| *at >= self.warm) {
            self.latencies.note((now - at) as u64);
        }
    }
}

impl PacketPort for PacedEndpoint<'_> {
    fn index(&self) -> u32 {
        match self {
            PacedEndpoint::Source(_) => 1,
            PacedEndpoint::Sink => 2,
        }
    }

    fn receive(&mut self, most: usize, take: PacketCallback<'_>) -> io::Result<usize> {
        match self {
            PacedEndpoint::Source(source) => Ok(source.receive(most, take)),
            PacedEndpoint::Sink => Ok(0),
        }
    }

    fn send(&mut self, _: &[u8]) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<bool> {
        if let PacedEndpoint::Source(source) = self {
            source.sent();
        }
        Ok(true)
    }

    /// The worker polls and never sleeps.
    fn wait(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// Histogram steps from a number to its double.
const STEPS: u32 = 32;

/// Histogram of latencies, each exact to a thirty-second.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyHistogram {
    counts: Vec<u64>,
    all: u64,
}

impl LatencyHistogram {
    fn note(&mut self, ns: u64) {
        let at = place(ns);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.all += 1;
    }

    /// Adds the counts of another source.
    pub(super) fn and(&mut self, other: &LatencyHistogram) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.all += other.all;
    }

    /// Latency, in nanoseconds, that this share of all packets does not exceed; `None` if there are no
    /// packets.
    pub(crate) fn percentile(&self, share: f64) -> Option<u64> {
        let wanted = ((self.all as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let at = self.counts.iter().position(|count| {
            below += count;
            below >= wanted
        });
        at.map(longest)
    }
}

/// Index of a number's bucket: the number itself below twice [`STEPS`], else by its highest bits.
fn place(ns: u64) -> usize {
    let linear = u64::from(2 * STEPS);
    if ns < linear {
        return ns as usize;
    }
    let doublings = ns.ilog2() - linear.ilog2() + 1;
    (doublings * STEPS) as usize + (ns >> doublings) as usize
}

/// Largest number in a bucket.
fn longest(place: usize) -> u64 {
    let steps = STEPS as usize;
    if place < 2 * steps {
        return place as u64;
    }
    let doublings = place / steps - 1;
    (((place - doublings * steps) as u64 + 1) << doublings) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_to_within_a_thirty_second() {
        for ns in (0..200).chain([1_000, 65_535, 65_536, 1_234_567, u64::from(u32::MAX)]) {
            let found = longest(place(ns));
            assert!(found >= ns && found - ns <= ns / u64::from(STEPS), "{ns} {found}");
            assert_eq!(place(found), place(ns));
        }
        let mut all = LatencyHistogram::default();
        (1..=100).for_each(|ns| all.note(ns));
        assert_eq!((all.percentile(0.5), all.percentile(0.01)), (Some(50), Some(1)));
        assert!(all.percentile(1.0).is_some_and(|most| (100..104).contains(&most)));
        assert_eq!(LatencyHistogram::default().percentile(0.5), None);
    }

    fn traffic() -> TrafficPattern {
        TrafficPattern {
            frames: vec![vec![1; 60], vec![2; 60]],
            order: vec![0, 1],
            description: String::new(),
        }
    }

    fn pace(rate: Option<f64>) -> OfferedLoad {
        OfferedLoad { rate, length: Duration::ZERO, longest_step: Duration::from_secs(1) }
    }

    #[test]
    fn what_finds_the_ring_full_is_lost_and_nothing_else() {
        let (traffic, clock) = (traffic(), WorkerClock::new(Duration::from_secs(1)));
        let mut source = PacedSource::new(&traffic, &clock, &pace(Some(1e6)), 1);
        // 3,000 µs: about as many packets, of which the ring keeps the first ones.
        source.arrive(3e6);
        assert_eq!((source.ring.len() as u64 + source.lost, source.ring.len()), (source.arrived, RING));
        assert!((2_700..3_300).contains(&source.arrived), "{}", source.arrived);
        assert!(source.ring.iter().zip(source.ring.iter().skip(1)).all(|(a, b)| a <= b));
    }

    #[test]
    fn packets_come_in_their_order_and_each_has_a_latency() {
        let (traffic, clock) = (traffic(), WorkerClock::new(Duration::from_secs(1)));
        let mut source = PacedSource::new(&traffic, &clock, &pace(None), 1);
        let mut seen = Vec::new();
        assert_eq!(source.receive(5, &mut |bytes| seen.push(bytes[0])), 5);
        assert_eq!(seen, [1, 2, 1, 2, 1]);
        source.sent();
        source.sent();
        assert_eq!(source.latencies.all, 5);
    }

    #[test]
    fn the_clock_stands_still_in_long_steps() {
        let clock = WorkerClock::new(Duration::from_millis(2));
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now() - before < 2e6);
        assert!(clock.left_out() >= 5e6);
    }
}
