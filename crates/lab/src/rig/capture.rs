//! The frames that come back, one by one, or their latencies. Each is a program that takes the sink's place
//! for a while and counts as the sink does.

use std::sync::atomic::Ordering;

use millstream_kernel::{ArrayMapping, KernelProgram};
use serde::Serialize;

use super::ports::FrameSink;
use crate::code::{copy_frame, shared, value, xdp};
use crate::error::Result;

/// Nanoseconds of a bucket, as a shift: 16 ns.
const BUCKET_SHIFT: u32 = 4;
/// Buckets; the last holds all that took longer, a millisecond and more.
const BUCKETS: usize = 1 << 16;

/// Keeps the first frames that come back.
#[derive(Debug)]
pub(crate) struct FrameCapture {
    pub(crate) program: KernelProgram,
    state: ArrayMapping,
    memory: ArrayMapping,
    frames: usize,
    stride: usize,
}

impl FrameCapture {
    /// Room for this many frames of up to this many bytes; longer ones are cut to that length.
    pub(crate) fn new(sink: &FrameSink, frames: usize, longest: usize) -> Result<Self> {
        let longest = longest.next_multiple_of(8);
        let stride = longest + 8;
        let (state_map, state) = shared("ms_capture", 8)?;
        let (memory_map, memory) = shared("ms_captured", stride * frames)?;
        let text = format!(
            "r6 = r1
            {}
            r7 = {}
            r8 = *(u64 *)(r7 +0)
            if r8 >= {frames} goto out
            r1 = r8
            r1 += 1
            *(u64 *)(r7 +0) = r1
            r8 *= {stride}
            r1 = {}
            r8 += r1
            r2 = *(u32 *)(r6 +0)
            r3 = *(u32 *)(r6 +4)
            r4 = r3
            r4 -= r2
            *(u64 *)(r8 +0) = r4
            r8 += 8
            {}
            out:
            r0 = 1
            exit",
            sink.counting("r6"),
            value(&state_map, 0),
            value(&memory_map, 0),
            copy_frame("r8", "r2", longest)
        );
        Ok(FrameCapture { program: xdp("ms_capture", &text)?, state, memory, frames, stride })
    }

    /// The frames that were kept.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let kept = self.state.atomic_u64(0).load(Ordering::Relaxed) as usize;
        (0..kept.min(self.frames))
            .map(|i| {
                let at = i * self.stride;
                let len = self.memory.atomic_u64(at).load(Ordering::Relaxed) as usize;
                let mut frame = vec![0; len.min(self.stride - 8)];
                self.memory.read(at + 8, &mut frame);
                frame
            })
            .collect()
    }
}

/// Puts the age of each frame that comes back into a histogram.
#[derive(Debug)]
pub(crate) struct LatencyProbe {
    pub(crate) program: KernelProgram,
    buckets: ArrayMapping,
}

impl LatencyProbe {
    pub(crate) fn new(sink: &FrameSink) -> Result<Self> {
        let (map, buckets) = shared("ms_latency", 8 * BUCKETS)?;
        let text = format!(
            "r6 = r1
            {}
            r2 = *(u32 *)(r6 +8)
            r3 = *(u32 *)(r6 +0)
            r4 = r2
            r4 += 8
            if r4 > r3 goto out
            r7 = *(u64 *)(r2 +0)
            call ktime_get_ns
            r0 -= r7
            r0 >>= {BUCKET_SHIFT}
            if r0 < {last} goto inside
            r0 = {last}
            inside:
            r0 <<= 3
            r1 = {}
            r1 += r0
            r2 = *(u64 *)(r1 +0)
            r2 += 1
            *(u64 *)(r1 +0) = r2
            out:
            r0 = 1
            exit",
            sink.counting("r6"),
            value(&map, 0),
            last = BUCKETS - 1,
        );
        Ok(LatencyProbe { program: xdp("ms_latency", &text)?, buckets })
    }

    pub(crate) fn latencies(&self) -> FrameLatencies {
        let count = |i: usize| self.buckets.atomic_u64(8 * i).load(Ordering::Relaxed);
        FrameLatencies::of(&(0..BUCKETS).map(count).collect::<Vec<_>>())
    }
}

/// Percentiles of the time from generator to the frame's return, in nanoseconds, to 16 ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FrameLatencies {
    /// Frames that came back with a stamp.
    pub frames: u64,
    /// Half of the frames take no longer.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// 99.99 %: on a virtual machine, the host's doing.
    pub p9999: u64,
}

impl FrameLatencies {
    /// Value of a percentile that lies beyond the histogram, in nanoseconds.
    pub const LONGEST: u64 = (BUCKETS as u64) << BUCKET_SHIFT;

    fn of(buckets: &[u64]) -> Self {
        let frames = buckets.iter().sum();
        let at = |share: f64| {
            let wanted = (frames as f64 * share).ceil() as u64;
            let mut sum = 0;
            let found = buckets.iter().position(|n| {
                sum += n;
                sum >= wanted
            });
            // The upper edge of the bucket: no frame is said to be faster than it was.
            found.map_or(0, |b| (b as u64 + 1) << BUCKET_SHIFT)
        };
        match frames {
            0 => FrameLatencies::default(),
            _ => FrameLatencies {
                frames,
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                p9999: at(0.9999),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FrameLatencies;

    #[test]
    fn percentiles_of_a_histogram() {
        let mut buckets = vec![0; 100];
        (buckets[0], buckets[1], buckets[99]) = (50, 49, 1);
        let l = FrameLatencies::of(&buckets);
        assert_eq!((l.frames, l.p50, l.p90, l.p99, l.p999), (100, 16, 32, 32, 1600));
        assert_eq!(FrameLatencies::of(&[0, 0]), FrameLatencies::default());
    }
}
