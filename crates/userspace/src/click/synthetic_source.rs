//! Packets that a configuration generates, or reads from files, while it serves interfaces.

use std::io;
use std::time::Instant;

use millstream_native_io::timed::{SendSchedule, SendTimer};

use super::io::SourcePackets;

/// Packets of a source, and the number of the next one.
pub(super) struct SyntheticSource {
    pub(super) packets: SourcePackets,
    next: u64,
    /// Times at which it sends, if it has its own, and their start: the first request.
    times: Option<(SendSchedule, SendTimer, Option<Instant>)>,
}

impl SyntheticSource {
    pub(super) fn new(packets: SourcePackets) -> SyntheticSource {
        let times = packets.beat.map(|beat| (beat, SendTimer::new(beat, 0), None));
        SyntheticSource { packets, next: 0, times }
    }

    /// Hands over at most so many packets that are due by now, and returns their number.
    pub(super) fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let mut until = self.packets.until();
        if let Some((beat, sender, start)) = &mut self.times {
            let start = start.get_or_insert_with(Instant::now);
            let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let beat = self.packets.rate().map_or(*beat, SendSchedule::Rate);
            sender.renew(beat, self.next < until, (self.next, now));
            until = until.min(sender.until(now));
        }
        self.packets.hand_over(&mut self.next, until, most, take)
    }
}
