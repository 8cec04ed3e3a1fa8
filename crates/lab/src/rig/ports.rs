//! The two ends of the pair: counters of the devices, and the program at the generator's end that counts
//! returning frames.

use std::fs;
use std::sync::atomic::Ordering;

use millstream_kernel::{ArrayMapping, KernelMap, KernelProgram};

use crate::code::{shared, value, xdp};
use crate::error::{Error, Result};

/// Interface at which packets enter the pair and frames transmitted by the program under test come back.
pub const GENERATOR_PORT: &str = "mslab-a";
/// The interface of the program under test.
pub const TEST_PORT: &str = "mslab-b";
/// Another interface, for programs that send out of a second port. Frames sent there are counted as returned.
pub const SECOND_PORT: &str = "mslab-c";
/// Interface at which those frames arrive.
pub(crate) const SECOND_PEER: &str = "mslab-d";

/// Counts and drops the frames that come back. All of them arrive on one CPU, hence one writer: plain
/// additions are exact.
#[derive(Debug)]
pub(crate) struct FrameSink {
    pub(crate) program: KernelProgram,
    map: KernelMap,
    counts: ArrayMapping,
}

impl FrameSink {
    pub(crate) fn new() -> Result<Self> {
        let (map, counts) = shared("ms_sink", 16)?;
        let program = xdp("ms_sink", &format!("{}r0 = 1\nexit", counting(&map, "r1")))?;
        Ok(FrameSink { program, map, counts })
    }

    /// Text that counts the frame of the context in this register as the sink does. Uses r2 to r5.
    pub(crate) fn counting(&self, context: &str) -> String {
        counting(&self.map, context)
    }

    /// Packets and bytes so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let at = |offset| self.counts.atomic_u64(offset).load(Ordering::Relaxed);
        (at(0), at(8))
    }
}

fn counting(map: &KernelMap, context: &str) -> String {
    format!(
        "r2 = {}
        r3 = *(u64 *)(r2 +0)
        r3 += 1
        *(u64 *)(r2 +0) = r3
        r4 = *(u32 *)({context} +4)
        r5 = *(u32 *)({context} +0)
        r4 -= r5
        r3 = *(u64 *)(r2 +8)
        r3 += r4
        *(u64 *)(r2 +8) = r3\n",
        value(map, 0)
    )
}

/// Counters of a device since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DeviceCounts {
    pub(crate) rx_packets: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
}

/// The counters of a device in the calling thread's namespace.
pub(crate) fn device_counts(device: &str) -> Result<DeviceCounts> {
    const PATH: &str = "/proc/thread-self/net/dev";
    let text = fs::read_to_string(PATH).map_err(|e| Error::io(format!("reading {PATH}"), e))?;
    parse(&text, device).ok_or_else(|| Error::Unusable(format!("{PATH} says nothing of {device}")))
}

fn parse(text: &str, device: &str) -> Option<DeviceCounts> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let n: Vec<u64> = line.split_whitespace().map_while(|w| w.parse().ok()).collect();
    Some(DeviceCounts { rx_packets: *n.get(1)?, rx_dropped: *n.get(3)?, tx_dropped: *n.get(11)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
            lo2:10 20 30 40 50 60 70 80 90 100 110 120 130 140 150 160\n";
        let want = DeviceCounts { rx_packets: 20, rx_dropped: 40, tx_dropped: 120 };
        assert_eq!(parse(text, "lo2"), Some(want));
        assert_eq!(parse(text, "lo").unwrap().rx_packets, 2);
        assert_eq!(parse(text, "l"), None);
    }
}
