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

/// Nanoseconds per packet, by the shortest of several runs.
pub(crate) fn time(runner: &mut BenchmarkRunner, traffic: &TrafficPattern, batch: u32) -> Result<f64> {
    let mut least = [f64::INFINITY; 2];
    for _ in 0..RUNS {
        for (least, count) in least.iter_mut().zip([SHORT, LONG]) {
            let wall = runner.run(traffic, count, batch as usize)?.wall.as_nanos() as f64;
            *least = least.min(wall);
        }
    }
    Ok(((least[1] - least[0]) / (LONG - SHORT) as f64).max(0.01))
}

/// Nanoseconds of one packet that comes again and again, so that all its lines are in the innermost cache; and
/// the mean bytes of the traffic's packets.
pub(crate) fn hot(runner: &mut BenchmarkRunner, traffic: &TrafficPattern) -> Result<(f64, u32)> {
    let first = traffic.order.first().and_then(|at| traffic.frames.get(*at as usize));
    let frames: Vec<Vec<u8>> = first.cloned().into_iter().collect();
    let one = TrafficPattern { frames, order: vec![0], description: String::new() };
    let batch = runner.batch();
    Ok((time(runner, &one, batch)?, traffic.mean_length() as u32))
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
    (hot_ns, packet_bytes): (f64, u32),
    tables: Vec<TableFacts>,
) -> ProgramDemand {
    let compute_ns = (hot_ns - curves.io_ns(IoKind::Memory, packet_bytes, BATCH)).max(curves.cycle_ns);
    let lookup = |TableFacts { table, bytes, lines }| LookupDemand { table, bytes, lines };
    let lookups = tables.into_iter().map(lookup).collect();
    ProgramDemand { compute_ns, ahead_ns: None, lookups, packet_bytes, io: IoKind::Memory }
}
