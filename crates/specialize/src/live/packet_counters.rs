//! Packets received at the interface, and those among them that no variant handled.

use std::collections::BTreeMap;
use std::time::Instant;

/// The devices' counts of packets received, or sent for an egress program, since it was attached.
#[derive(Debug)]
pub(super) struct PacketCounters {
    names: Vec<String>,
    egress: bool,
    first: u64,
    /// Time at which the rate was last read, and the count then.
    asked: (Instant, u64),
    /// True if a variant is on the hook. `turned` is the count when that last changed.
    variant: bool,
    turned: u64,
    elsewhere: u64,
    /// Base of each device that was ever one of these, by its name.
    each: BTreeMap<String, CounterBase>,
}

/// Packets counted for a device up to the moment at which it joined, and its own count at that moment.
#[derive(Clone, Copy, Debug)]
struct CounterBase {
    so_far: u64,
    count: u64,
}

impl Default for PacketCounters {
    fn default() -> Self {
        PacketCounters {
            names: Vec::new(),
            egress: false,
            first: 0,
            asked: (Instant::now(), 0),
            variant: false,
            turned: 0,
            elsewhere: 0,
            each: BTreeMap::new(),
        }
    }
}

impl PacketCounters {
    pub(super) fn at(names: Vec<String>, egress: bool) -> Self {
        let mut new = PacketCounters { names, egress, ..PacketCounters::default() };
        new.first = new.count();
        new.asked.1 = new.first;
        new.turned = new.first;
        new.each =
            new.counts().into_iter().map(|(name, count)| (name, CounterBase { so_far: 0, count })).collect();
        new
    }

    /// Counts these devices from now on; earlier counts stay counted.
    pub(super) fn follow(&mut self, names: Vec<String>) {
        let (so_far, elsewhere, each) = (self.since_start(), self.elsewhere(), self.each_since_start());
        *self = PacketCounters { variant: self.variant, elsewhere, ..PacketCounters::at(names, self.egress) };
        self.first = self.first.wrapping_sub(so_far);
        for (name, so_far) in each {
            // A device that has gone keeps its count.
            self.each.entry(name).or_insert(CounterBase { so_far: 0, count: 0 }).so_far = so_far;
        }
    }

    /// Returns true if the device counts at all.
    pub(super) fn known(&self) -> bool {
        !self.names.is_empty()
    }

    /// Packets received by the devices, or sent.
    pub(super) fn count(&self) -> u64 {
        self.counts().iter().map(|(_, count)| count).sum()
    }

    /// As [`PacketCounters::count`], for each device that exists.
    fn counts(&self) -> Vec<(String, u64)> {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let count = |line: &str| {
            let (name, counts) = line.split_once(':')?;
            let name = self.names.iter().find(|n| *n == name.trim_start())?;
            // Bytes and packets received, six more, bytes and packets sent.
            let column = if self.egress { 9 } else { 1 };
            Some((name.clone(), counts.split_whitespace().nth(column)?.parse::<u64>().ok()?))
        };
        text.lines().filter_map(count).collect()
    }

    /// Packets of each device since the program was attached.
    pub(super) fn each_since_start(&self) -> Vec<(String, u64)> {
        let now: BTreeMap<String, u64> = self.counts().into_iter().collect();
        let since = |(name, base): (&String, &CounterBase)| {
            let more = now.get(name).map_or(0, |count| count.saturating_sub(base.count));
            (name.clone(), base.so_far + more)
        };
        self.each.iter().map(since).collect()
    }

    /// Packets received since the program was attached.
    pub(super) fn since_start(&self) -> u64 {
        // The count of a device that no longer exists is missing, so that the beginning may be before zero.
        (self.count().wrapping_sub(self.first) as i64).max(0) as u64
    }

    /// Packets a second since the last call.
    pub(super) fn rate(&mut self) -> f64 {
        let (count, now) = (self.count(), Instant::now());
        let (at, before) = std::mem::replace(&mut self.asked, (now, count));
        count.saturating_sub(before) as f64 / now.duration_since(at).as_secs_f64().max(1e-9)
    }

    /// Notes that from now on a variant is on the hook, or another program.
    pub(super) fn turn(&mut self, variant: bool) {
        self.elsewhere = self.elsewhere();
        self.turned = self.count();
        self.variant = variant;
    }

    /// Packets that came while no variant was on the hook.
    pub(super) fn elsewhere(&self) -> u64 {
        let now = if self.variant { 0 } else { self.count().saturating_sub(self.turned) };
        self.elsewhere + now
    }
}
