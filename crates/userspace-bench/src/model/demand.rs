//! Demand of a program's packet: processing, look-ups, bytes; as the performance model needs it.

use miette::Result;
use millstream_tune::{IoKind, LookupDemand, MachineCurves, ProgramDemand};
use serde::{Deserialize, Serialize};

use crate::bench_user::subject::{BenchmarkRunner, LINE, LookupTable};
use crate::bench_user::traffic::TrafficPattern;

/// Look-ups in a table, before the machine's curves are known.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TableFacts {
    /// The table.
    pub(crate) table: String,
    /// Bytes that the traffic touches.
    pub(crate) bytes: u64,
    /// Lines per packet.
    pub(crate) lines: f64,
}

/// Packets of a short and a long run: their difference is free of what a run begins with.
const SHORT: u64 = 2048;
const LONG: u64 = 1 << 15;
/// Pairs of runs; the shortest count.
const RUNS: u32 = 7;
/// Batch for which f_io is deducted: that of the default schedule.
const BATCH: u32 = 64;

/// Packets of the traffic that come again and again while processing is measured: too many for branches to be
/// remembered, few enough to stay in the caches.
const SAMPLE: u64 = 1024;
/// Bytes of packets beyond which they come from memory and not from a cache.
const TRACE_BYTES: u64 = 4 << 20;

/// Time of a packet whose lines are in the caches.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct HotPacket {
    /// Nanoseconds, with I/O.
    pub(crate) ns: f64,
    /// Mean bytes of the traffic's packets.
    pub(crate) packet_bytes: u32,
    /// True if there are more packets than caches hold.
    pub(crate) is_trace: bool,
}

/// Nanoseconds per packet, by the shortest of several runs, of which the long ones have so many packets.
pub(crate) fn time_of(
    runner: &mut BenchmarkRunner,
    traffic: &TrafficPattern,
    (batch, long): (u32, u64),
) -> Result<f64> {
    let mut least = [f64::INFINITY; 2];
    for _ in 0..RUNS {
        for (least, count) in least.iter_mut().zip([SHORT, long]) {
            let wall = runner.run(traffic, count, batch as usize)?.wall.as_nanos() as f64;
            *least = least.min(wall);
        }
    }
    Ok(((least[1] - least[0]) / (long - SHORT) as f64).max(0.01))
}

/// Nanoseconds per packet of all of the traffic, by the shortest of several runs.
pub(crate) fn time(runner: &mut BenchmarkRunner, traffic: &TrafficPattern, batch: u32) -> Result<f64> {
    time_of(runner, traffic, (batch, LONG.max(traffic.order.len() as u64)))
}

/// Time of packets of the traffic that come again and again.
pub(crate) fn hot(runner: &mut BenchmarkRunner, traffic: &TrafficPattern) -> Result<HotPacket> {
    let sampled = traffic.order.iter().take(SAMPLE as usize);
    let frames: Vec<Vec<u8>> = sampled.filter_map(|at| traffic.frames.get(*at as usize)).cloned().collect();
    let order = (0..frames.len() as u32).collect();
    let sample = TrafficPattern { frames, order, description: String::new() };
    let batch = runner.batch();
    let packet_bytes = traffic.mean_length();
    let is_trace = packet_bytes * traffic.frames.len() as f64 > TRACE_BYTES as f64;
    let ns = time_of(runner, &sample, (batch, LONG))?;
    Ok(HotPacket { ns, packet_bytes: packet_bytes as u32, is_trace })
}

/// Tables that a packet looks up in, and the bytes of them that the traffic touches: the lines of a look-up for each
/// of its flows, or of the entries if there are fewer.
pub(crate) fn tables(runner: &mut BenchmarkRunner, traffic: &TrafficPattern) -> Vec<TableFacts> {
    let flows = traffic.frames.len() as u64;
    let facts = |LookupTable { name: table, bytes, lines, entries }: LookupTable| {
        let keys = flows.min(entries.unwrap_or(flows)).max(1);
        let touched = keys.saturating_mul(u64::from(lines) * LINE);
        TableFacts { table, bytes: bytes.min(touched), lines: f64::from(lines) }
    };
    runner.lookup_tables().into_iter().map(facts).collect()
}

/// The demand, with a machine's curves.
pub(crate) fn of(
    curves: &MachineCurves,
    HotPacket { ns, packet_bytes, is_trace }: HotPacket,
    tables: Vec<TableFacts>,
) -> ProgramDemand {
    let of_sample = |TableFacts { bytes, lines, .. }: &TableFacts| {
        lines * curves.far_ns((*bytes).min((SAMPLE as f64 * lines) as u64 * LINE), 1)
    };
    let memory_ns: f64 = tables.iter().map(of_sample).sum();
    let io_ns = curves.io_ns(IoKind::Memory, packet_bytes, BATCH);
    let lookup = |TableFacts { table, bytes, lines }| LookupDemand { table, bytes, lines };
    ProgramDemand {
        compute_ns: (ns - io_ns - memory_ns).max(curves.cycle_ns),
        ahead_ns: None,
        lookups: tables.into_iter().map(lookup).collect(),
        packet_bytes,
        io: if is_trace { IoKind::Trace } else { IoKind::Memory },
    }
}
