//! Packets of a run: which runner of the native engine takes them, and who is served between batches.

use miette::{IntoDiagnostic, Result};
use millstream_native::NativeEngine;
use millstream_native_io::WorkerHooks;
use millstream_native_io::graph::{GraphRunStats, GraphSources, SentPacket, run_graph_by, run_graph_while};
use millstream_native_io::pipeline::run_graph_pipelined;
use millstream_native_io::timed::{TimedQueues, TimedQueuesConfig, run_graph_timed};

use super::{ClickRunArgs, io, live};
use crate::dpdk;
use crate::native::LostBefore;
use crate::native::bind;
use crate::native::port_options::{MetadataMode, OpenPorts};
use crate::native::stop_condition::StopCondition;

/// Clock of a run.
pub(super) struct RunPace {
    /// True if packets are replayed by their times.
    pub(super) replayed: bool,
    /// True if the time between replayed packets passes.
    pub(super) real: bool,
    /// True if the time of scripts jumps when nothing else goes on.
    pub(super) leaps: bool,
}

/// Result of a run: counts, packets lost before it, and ports that were opened.
pub(super) struct RunResult {
    pub(super) ran: GraphRunStats,
    pub(super) lost: Option<LostBefore>,
    pub(super) taken: Option<OpenPorts>,
}

/// Sources and sinks of a run.
pub(super) struct RunGraph<'r> {
    pub(super) args: &'r ClickRunArgs,
    pub(super) sources: GraphSources<'r>,
    pub(super) sinks: &'r io::CaptureSinks,
    pub(super) packets: &'r [io::SourcePackets],
    pub(super) outputs: usize,
    pub(super) stages: bool,
    pub(super) kept: MetadataMode,
    /// True if somebody is to be served between batches.
    pub(super) is_asked: bool,
    /// True if packets call handlers, which may change what the next packet does: waiting packets leave one
    /// by one.
    pub(super) is_calling: bool,
}

impl RunGraph<'_> {
    /// Runs all packets: of DPDK ports, of interfaces, or of memory and files. `serve` is called between
    /// batches; it returns false to end the run.
    pub(super) fn run(
        self,
        engine: &mut NativeEngine,
        (ports, interfaces, queues): (
            Option<&mut dpdk::DpdkDevicePorts>,
            Option<live::GraphPorts>,
            &mut TimedQueues,
        ),
        pace: &RunPace,
        mut serve: impl FnMut(&mut NativeEngine, &mut TimedQueues) -> bool,
    ) -> Result<RunResult> {
        // Scripts begin before any packet comes: by the clock of replays, where these have one.
        if !pace.replayed && !serve(engine, queues) {
            let ran = GraphRunStats::none(self.sources.feeds.len(), self.outputs);
            return Ok(RunResult { ran, lost: None, taken: None });
        }
        match (ports, interfaces) {
            (Some(ports), _) => {
                let mut none = TimedQueues::new(&TimedQueuesConfig::default());
                let untimed = |engine: &mut NativeEngine| serve(engine, &mut none);
                let until = StopCondition::begin(self.args.packets, None);
                let batch = (engine.batch(), self.kept);
                let ran = ports.run_graph(engine, batch, &until, self.is_asked.then_some(untimed));
                let ran = ran.into_diagnostic()?;
                Ok(RunResult { ran, lost: Some(ports.lost()), taken: None })
            }
            (None, Some(interfaces)) => {
                let (taken, asked) = (interfaces.open_ports(), self.is_asked.then_some(serve));
                let batch = engine.batch();
                let (ran, lost) = interfaces.run(engine, batch, self.args.packets, queues, asked)?;
                Ok(RunResult { ran, lost: Some(lost), taken })
            }
            (None, None) => {
                let ran = self.run_packets(engine, queues, pace, serve).into_diagnostic()?;
                Ok(RunResult { ran, lost: None, taken: None })
            }
        }
    }

    /// Runs packets of memory and files.
    fn run_packets(
        self,
        engine: &mut NativeEngine,
        queues: &mut TimedQueues,
        pace: &RunPace,
        mut serve: impl FnMut(&mut NativeEngine, &mut TimedQueues) -> bool,
    ) -> std::io::Result<GraphRunStats> {
        let RunGraph { sources, sinks, outputs, is_asked, is_calling, .. } = self;
        let (size, hooks) = (engine.batch() as usize, WorkerHooks { enter: &bind });
        let take = |p: SentPacket<'_>| sinks.take(&p);
        if !self.stages && pace.replayed {
            let tables = io::timetables(self.packets);
            let take = |p: SentPacket<'_>, time: u64| sinks.take_at(&p, time);
            let serve =
                |engine: &mut NativeEngine, queues: &mut TimedQueues| !is_asked || serve(engine, queues);
            let run = (outputs, if is_calling { 1 } else { size });
            return run_graph_timed(engine, (sources, &tables), queues, run, pace.real, take, serve);
        }
        let mut none = TimedQueues::new(&TimedQueuesConfig::default());
        let untimed = |engine: &mut NativeEngine| serve(engine, &mut none);
        match engine.workers() {
            _ if self.stages => {
                let asked = is_asked.then_some(untimed);
                run_graph_pipelined(engine, sources, outputs, size, &hooks, &take, asked)
            }
            1 => run_graph_while(engine, sources, outputs, size, take, untimed),
            _ => run_graph_by(engine, sources, outputs, size, &hooks, &take, is_asked.then_some(untimed)),
        }
    }
}
