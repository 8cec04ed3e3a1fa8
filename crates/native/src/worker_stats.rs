//! Numbers that workers publish while they run.
//!
//! Each worker writes its own numbers, after each batch, and nobody else does: so they are stored, not added.
//! A reader sees each number at one moment; two numbers may be of neighbouring batches. After the last batch
//! they are exact.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::run_stats::{DropReason, PacketAccounting};

/// One batch in this many has its latency sampled.
const SAMPLED: u32 = 64;

/// The numbers of all workers.
#[derive(Debug)]
pub struct WorkerStats(Box<[WorkerCounters]>);

/// Numbers of one worker, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct WorkerCounters {
    received: AtomicU64,
    transmitted: AtomicU64,
    redirected: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    /// Nanoseconds in the program.
    busy: AtomicU64,
    latencies: LatencyCounters,
}

fn set(number: &AtomicU64, value: u64) {
    number.store(value, Ordering::Relaxed);
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

impl WorkerStats {
    pub(crate) fn new(workers: u32) -> WorkerStats {
        WorkerStats((0..workers.max(1)).map(|_| WorkerCounters::default()).collect())
    }

    /// Publishes a worker's numbers.
    pub(crate) fn publish(&self, worker: u32, account: &PacketAccounting, busy: Duration) {
        let Some(numbers) = self.0.get(worker as usize) else { return };
        set(&numbers.received, account.received);
        set(&numbers.transmitted, account.transmitted);
        set(&numbers.redirected, account.redirected);
        numbers.dropped.iter().zip(account.dropped).for_each(|(number, packets)| set(number, packets));
        set(&numbers.busy, busy.as_nanos() as u64);
    }

    /// Records that this many packets of a worker took this long from being taken to being done.
    pub(crate) fn record_latency(&self, worker: u32, packets: u64, time: Duration) {
        if let Some(numbers) = self.0.get(worker as usize).filter(|_| packets > 0) {
            numbers.latencies.add(time.as_nanos() as u64, packets);
        }
    }

    /// Account of each worker, and its time in the program.
    pub fn workers(&self) -> Vec<(PacketAccounting, Duration)> {
        let of = |numbers: &WorkerCounters| {
            let mut account = PacketAccounting {
                received: get(&numbers.received),
                transmitted: get(&numbers.transmitted),
                redirected: get(&numbers.redirected),
                ..PacketAccounting::default()
            };
            account.dropped.iter_mut().zip(&numbers.dropped).for_each(|(to, number)| *to = get(number));
            (account, Duration::from_nanos(get(&numbers.busy)))
        };
        self.0.iter().map(of).collect()
    }

    /// Latencies of the packets that were sampled, of all workers.
    pub fn latency(&self) -> WorkerLatencyHistogram {
        let mut counts = vec![0; BUCKETS];
        for numbers in &self.0 {
            counts.iter_mut().zip(&numbers.latencies.0).for_each(|(to, number)| *to += get(number));
        }
        WorkerLatencyHistogram(counts)
    }
}

/// Selects the batches whose latency is sampled: the first one and, from there on, one in [`SAMPLED`].
#[derive(Debug, Default)]
pub(crate) struct LatencySampler(u32);

impl LatencySampler {
    pub(crate) fn next(&mut self) -> bool {
        let is_one = self.0 == 0;
        self.0 = (self.0 + 1) % SAMPLED;
        is_one
    }
}

/// Parts of a power of two, and buckets in all: for times of up to 2^40 ns, in steps of a sixteenth.
const PARTS: usize = 16;
const BUCKETS: usize = 37 * PARTS;

/// Counts by time.
#[derive(Debug)]
struct LatencyCounters(Box<[AtomicU64]>);

impl Default for LatencyCounters {
    fn default() -> LatencyCounters {
        LatencyCounters((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl LatencyCounters {
    fn add(&self, time: u64, packets: u64) {
        let number = &self.0[bucket(time)];
        // Only one thread writes it.
        set(number, get(number) + packets);
    }
}

/// The bucket of a number of nanoseconds: the number itself below [`PARTS`], else given by the four bits
/// behind its most significant one.
fn bucket(time: u64) -> usize {
    let magnitude = u64::BITS as usize - 1 - (time | 1).leading_zeros() as usize;
    let at = match magnitude.checked_sub(4) {
        None => time as usize,
        Some(shift) => (shift + 1) * PARTS + (time >> shift) as usize % PARTS,
    };
    at.min(BUCKETS - 1)
}

/// The largest number of nanoseconds in a bucket.
fn largest(bucket: usize) -> u64 {
    match (bucket / PARTS).checked_sub(1) {
        None => bucket as u64,
        Some(shift) => (((PARTS + bucket % PARTS) as u64 + 1) << shift) - 1,
    }
}

/// Distribution of packets' latencies.
#[derive(Clone, Debug)]
pub struct WorkerLatencyHistogram(Vec<u64>);

impl WorkerLatencyHistogram {
    /// Packets that were sampled.
    pub fn packets(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Packets by powers of two of their latency: the upper bound in nanoseconds, the number of packets, and
    /// the sum of their nanoseconds, rounded up by at most a sixteenth.
    pub fn magnitudes(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.0.chunks(PARTS).enumerate().map(|(magnitude, counts)| {
            let first = magnitude * PARTS;
            let times = counts.iter().zip(first..).map(|(count, bucket)| count * largest(bucket));
            (largest(first + counts.len() - 1), counts.iter().sum(), times.sum())
        })
    }

    /// Latency in nanoseconds that this share of the packets did not exceed, rounded up by at most a
    /// sixteenth.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let wanted = ((self.packets() as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let at = self.0.iter().position(|count| {
            below += count;
            below >= wanted
        });
        at.map(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_a_bucket_that_is_no_more_than_a_sixteenth_wide() {
        let times =
            (0..4096).chain((0..40).flat_map(|shift| [(1 << shift) - 1, 1 << shift, (1 << shift) + 1]));
        for time in times {
            let largest = largest(bucket(time));
            assert!(largest >= time && largest - time <= time / 16, "{time}: {largest}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let ends: Vec<u64> = (0..BUCKETS).map(largest).collect();
        assert!(ends.is_sorted() && ends.windows(2).all(|two| bucket(two[0] + 1) == bucket(two[1])));
    }

    #[test]
    fn shares_are_of_packets_and_of_all_workers() {
        let board = WorkerStats::new(2);
        assert_eq!(board.latency().percentile(0.5), None);
        board.record_latency(0, 90, Duration::from_nanos(10));
        board.record_latency(1, 9, Duration::from_micros(1));
        board.record_latency(1, 1, Duration::from_millis(1));
        let latency = board.latency();
        assert_eq!(
            (latency.packets(), latency.percentile(0.5), latency.percentile(0.9)),
            (100, Some(10), Some(10))
        );
        let within = |share: f64, ns: u64| {
            let found = latency.percentile(share).unwrap();
            assert!((ns..=ns + ns / 16).contains(&found), "{share}: {found}");
        };
        within(0.99, 1_000);
        within(1.0, 1_000_000);
        let magnitudes: Vec<_> = latency.magnitudes().filter(|(_, packets, _)| *packets > 0).collect();
        assert_eq!(magnitudes[0], (15, 90, 900));
        assert_eq!((magnitudes[1].0, magnitudes[1].1, magnitudes.len()), (1023, 9, 3));
        assert!((9_000..=9_600).contains(&magnitudes[1].2), "{magnitudes:?}");
        let account = PacketAccounting { received: 7, transmitted: 7, ..PacketAccounting::default() };
        board.publish(1, &account, Duration::from_nanos(70));
        assert_eq!(board.workers()[1], (account, Duration::from_nanos(70)));
        assert_eq!(board.workers()[0], (PacketAccounting::default(), Duration::ZERO));
    }
}
