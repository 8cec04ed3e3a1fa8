//! Packets received at the interface, and how many of them were not for a variant.

use std::time::Instant;

/// The device's count of packets received, since the program was attached.
#[derive(Debug)]
pub(super) struct Received {
    name: Option<String>,
    first: u64,
    /// When the rate was last asked for, and the count then.
    asked: (Instant, u64),
    /// Whether a variant is on the hook, and the count when that began or ended.
    variant: bool,
    turned: u64,
    elsewhere: u64,
}

impl Default for Received {
    fn default() -> Self {
        Received { name: None, first: 0, asked: (Instant::now(), 0), variant: false, turned: 0, elsewhere: 0 }
    }
}

impl Received {
    pub(super) fn at(ifindex: u32) -> Self {
        let name = millstream_kernel::interface(ifindex).ok().map(|i| i.name);
        let mut new = Received { name, ..Received::default() };
        new.first = new.count();
        new.asked.1 = new.first;
        new.turned = new.first;
        new
    }

    /// Whether the device counts at all.
    pub(super) fn known(&self) -> bool {
        self.name.is_some()
    }

    /// Packets received by the device.
    pub(super) fn count(&self) -> u64 {
        let Some(name) = &self.name else { return 0 };
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(name.as_str())?.strip_prefix(':'));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    }

    /// Packets received since the program was attached.
    pub(super) fn since_start(&self) -> u64 {
        self.count().saturating_sub(self.first)
    }

    /// Packets a second since the last call.
    pub(super) fn rate(&mut self) -> f64 {
        let (count, now) = (self.count(), Instant::now());
        let (at, before) = std::mem::replace(&mut self.asked, (now, count));
        count.saturating_sub(before) as f64 / now.duration_since(at).as_secs_f64().max(1e-9)
    }

    /// From now on a variant is on the hook, or something else.
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
