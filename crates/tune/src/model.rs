//! The performance model of APSys'17 (section 3.5): a program is bound by the processor, by the way to memory
//! or by I/O, and its throughput is at most min(c, f_io(d, B), f_mem(m, b)).
//!
//! The bound is that of the paper, whose three servers work at once. In this engine one core does all of it: it
//! copies packets itself, and asks for lines itself. So the predicted time of a packet is the sum of I/O, processing
//! and memory.
//!
//! Lines that are fetched ahead have the time of a sub-batch to arrive: while one sub-batch runs, each stage works on
//! the sub-batch behind it. So they take what the way to memory takes for as many lines as it has room for, and the
//! core waits only for the part of a line's latency that the work of b packets does not cover.

use serde::Serialize;

use crate::curves::{IoKind, MachineCurves};

/// Look-ups in a table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LookupDemand {
    /// The table.
    pub table: String,
    /// Bytes of it that the traffic touches.
    pub bytes: u64,
    /// Cache lines per packet.
    pub lines: f64,
}

/// Demand of a program's packet.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ProgramDemand {
    /// Nanoseconds of processing, with all lines in the innermost cache.
    pub compute_ns: f64,
    /// Nanoseconds of processing that fetching ahead adds, if measured; otherwise it is a share of processing.
    pub ahead_ns: Option<f64>,
    /// Look-ups.
    pub lookups: Vec<LookupDemand>,
    /// Bytes of a packet.
    pub packet_bytes: u32,
    /// Kind of I/O.
    pub io: IoKind,
}

/// Shares of processing, memory and I/O in a packet's time without any overlap; their sum is 1.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct BoundShares {
    /// Processing.
    pub compute: f64,
    /// Memory.
    pub memory: f64,
    /// I/O.
    pub io: f64,
}

/// Prediction for a batch B and a sub-batch b; b = 1 is without prefetching.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ModelPoint {
    /// B.
    pub batch: u32,
    /// b.
    pub sub_batch: u32,
    /// Nanoseconds per packet of the processor.
    pub compute_ns: f64,
    /// Nanoseconds per packet of memory.
    pub memory_ns: f64,
    /// Nanoseconds per packet of I/O.
    pub io_ns: f64,
    /// min(c, f_io, f_mem), in millions of packets per second.
    pub bound_mpps: f64,
    /// Predicted nanoseconds per packet.
    pub ns: f64,
    /// Predicted millions of packets per second.
    pub mpps: f64,
    /// Predicted nanoseconds from the arrival of a batch to its end (section 3.8: B times that of a packet).
    pub latency_ns: f64,
}

/// Batches that are predicted for.
pub const BATCHES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Share of the processing that is done a second time to find a packet's lines ahead, unless it is measured.
const SLICE_SHARE: f64 = 0.25;
/// Throughputs within this factor count as equal; the smaller batch is better then.
const EQUAL: f64 = 1.01;

impl ProgramDemand {
    /// Prediction for a batch and a sub-batch.
    pub fn predict(&self, curves: &MachineCurves, batch: u32, sub_batch: u32) -> ModelPoint {
        let sub_batch = sub_batch.min(batch);
        let io_ns = curves.io_ns(self.io, self.packet_bytes, batch);
        let is_ahead = sub_batch > 1 && !self.lookups.is_empty();
        let added = self.ahead_ns.unwrap_or(self.compute_ns * SLICE_SHARE);
        let compute_ns = self.compute_ns + if is_ahead { added } else { 0.0 };
        let memory_ns = match is_ahead {
            true => self.ahead_memory_ns(curves, sub_batch, io_ns + compute_ns),
            false => self.lines_ns(curves, 1),
        };
        let ns = io_ns + compute_ns + memory_ns;
        let slowest = compute_ns.max(memory_ns).max(io_ns).max(1e-3);
        ModelPoint {
            batch,
            sub_batch,
            compute_ns,
            memory_ns,
            io_ns,
            bound_mpps: 1e3 / slowest,
            ns,
            mpps: 1e3 / ns.max(1e-3),
            latency_ns: f64::from(batch) * ns,
        }
    }

    /// Nanoseconds of a packet's lines, with so many in flight. What the innermost cache takes is part of the
    /// processing.
    fn lines_ns(&self, curves: &MachineCurves, in_flight: u32) -> f64 {
        self.lookups.iter().map(|lookup| lookup.lines * curves.far_ns(lookup.bytes, in_flight)).sum()
    }

    /// Nanoseconds of memory for lines that are fetched a sub-batch ahead, whose packets take `own_ns` each without
    /// them.
    fn ahead_memory_ns(&self, curves: &MachineCurves, sub_batch: u32, own_ns: f64) -> f64 {
        let latency = self.lookups.iter().map(|lookup| curves.far_ns(lookup.bytes, 1)).fold(0.0, f64::max);
        let waited = (latency / f64::from(sub_batch) - own_ns).max(0.0);
        self.lines_ns(curves, u32::MAX) + waited
    }

    /// Predictions for all batches, and sub-batches up to these.
    pub fn grid(&self, curves: &MachineCurves) -> Vec<ModelPoint> {
        let of = |batch: u32| BATCHES.into_iter().filter(move |b| *b <= batch).map(move |b| (batch, b));
        BATCHES.into_iter().flat_map(of).map(|(batch, b)| self.predict(curves, batch, b)).collect()
    }

    /// The point of the highest predicted throughput, of about equal ones that of the smallest batch and
    /// sub-batch.
    pub fn best(&self, curves: &MachineCurves) -> ModelPoint {
        let grid = self.grid(curves);
        let most = grid.iter().map(|point| point.mpps).fold(0.0, f64::max);
        let first = grid.into_iter().find(|point| point.mpps * EQUAL >= most);
        first.unwrap_or_else(|| self.predict(curves, 64, 1))
    }

    /// Degrees to which the program is bound by processor, memory and I/O, with one packet at a time.
    pub fn shares(&self, curves: &MachineCurves) -> BoundShares {
        let point = self.predict(curves, 64, 1);
        let all = (point.compute_ns + point.memory_ns + point.io_ns).max(1e-9);
        BoundShares { compute: point.compute_ns / all, memory: point.memory_ns / all, io: point.io_ns / all }
    }
}

impl ModelPoint {
    /// The schedule that it stands for, as values of a schedule's keys.
    pub fn schedule(&self) -> Vec<(&'static str, String)> {
        let mut values = vec![("batch", self.batch.to_string())];
        match self.sub_batch {
            1 => values.extend([("pattern", "packets".to_owned()), ("fetch", "nothing".to_owned())]),
            b => {
                let grouped = [("pattern", "pipelined-groups".to_owned()), ("sub-batch", b.to_string())];
                values.extend(grouped);
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curves::tests::sample;

    fn demand(compute_ns: f64, table: u64) -> ProgramDemand {
        let lookups = vec![LookupDemand { table: "t".to_owned(), bytes: table, lines: 2.0 }];
        ProgramDemand { compute_ns, ahead_ns: None, lookups, packet_bytes: 64, io: IoKind::Memory }
    }

    #[test]
    fn large_tables_are_fetched_for_in_sub_batches_and_small_ones_are_not() {
        let (small, large) = (demand(20.0, 1 << 14), demand(20.0, 1 << 28));
        assert_eq!(small.best(&sample()).sub_batch, 1);
        let best = large.best(&sample());
        assert!(best.sub_batch >= 4 && best.batch >= 8, "{best:?}");
        assert!(best.mpps > 1.5 * large.predict(&sample(), 64, 1).mpps);
    }

    /// While one sub-batch runs, the lines of the next one arrive: more of them than that need not be in flight.
    #[test]
    fn a_sub_batch_is_as_large_as_the_latency_of_a_line_wants_and_no_larger() {
        let curves = sample();
        let best = |compute_ns| demand(compute_ns, 1 << 28).best(&curves).sub_batch;
        assert_eq!((best(60.0), best(12.0)), (2, 4));
        let times: Vec<f64> = [2, 4, 8, 64].map(|b| demand(20.0, 1 << 28).predict(&curves, 64, b).ns).into();
        assert!(times[0] > times[1] && times[1] == times[2] && times[2] == times[3], "{times:?}");
    }

    #[test]
    fn the_bound_is_that_of_the_slowest_server_and_no_prediction_exceeds_it() {
        for point in demand(20.0, 1 << 24).grid(&sample()) {
            let slowest = point.compute_ns.max(point.memory_ns).max(point.io_ns);
            assert!((point.bound_mpps - 1e3 / slowest).abs() < 1e-9);
            assert!(point.mpps <= point.bound_mpps && point.sub_batch <= point.batch, "{point:?}");
        }
    }

    #[test]
    fn shares_tell_what_binds_a_program() {
        let curves = sample();
        let of = |demand: ProgramDemand| {
            let shares = demand.shares(&curves);
            assert!((shares.compute + shares.memory + shares.io - 1.0).abs() < 1e-9);
            shares
        };
        assert!(of(demand(500.0, 1 << 14)).compute > 0.9);
        assert!(of(demand(5.0, 1 << 28)).memory > 0.8);
        assert!(of(demand(1.0, 1 << 14)).io > 0.8);
    }
}
