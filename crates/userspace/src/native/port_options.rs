//! Interfaces by AF_XDP, and their options: owner of the buffers that programs work in, zero copy, polling.

use std::io;
use std::process::ExitCode;

use clap::ValueEnum;
use miette::{IntoDiagnostic, Result, miette};
use millstream_kernel::XdpMode;
use millstream_native::NativeEngine;
use millstream_native_io::graph::{GraphPortNumbers, GraphRunStats};
use millstream_native_io::queues::{BufferMode, ServeConfig};
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::xdp::XdpPorts;
use millstream_native_io::{RunStats, WorkerHooks};
use millstream_ports::{BusyPoll, PortDropCounts, ScatterMode, XdpInterface, XskOptions, ZeroCopy};
use serde::Serialize;

use super::control::MapControlSocket;
use super::lost_packets::LostBefore;
use super::stop_condition::StopCondition;
use super::transport::{PacketTransport, PortOpenError};

/// Options for AF_XDP and DPDK.
#[derive(Debug, clap::Args)]
pub(crate) struct PortOptions {
    /// Buffers that programs work in. With --io xdp:... `exchange` (the default) or `copy`, with dpdk:...
    /// `overlay` (the default) or `copy`; packets from memory, files, raw sockets and TAP interfaces are
    /// always copied
    #[arg(long, value_enum)]
    metadata: Option<MetadataMode>,
    /// With --io xdp:..., zero copy by drivers or copying by the kernel; by default zero copy if all
    /// interfaces support it
    #[arg(long, value_enum, default_value_t = ZeroCopyMode::Auto)]
    zero_copy: ZeroCopyMode,
    /// With --io xdp:..., poll drivers instead of waiting for interrupts: duration of a poll, in
    /// microseconds; workers do not sleep
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    busy_poll: Option<u32>,
    /// With --busy-poll: maximum number of packets per poll
    #[arg(
        long,
        value_name = "PACKETS",
        default_value_t = 64,
        requires = "busy_poll",
        value_parser = clap::value_parser!(u32).range(1..=65_535)
    )]
    busy_poll_budget: u32,
}

/// Buffers that programs work in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum MetadataMode {
    /// The program's: packets are copied in and out
    Copy,
    /// The driver's, with descriptors over them
    Overlay,
    /// Buffers shared with the kernel: a received packet is sent from its place
    Exchange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ZeroCopyMode {
    Auto,
    Always,
    Never,
}

impl PortOptions {
    /// Choice of `--metadata`, for a transport that supports the kinds in `may`; the first one is the
    /// default.
    fn kept(&self, way: &str, may: &[MetadataMode]) -> Result<MetadataMode> {
        let word =
            |kept: &MetadataMode| kept.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
        match self.metadata {
            Some(said) if !may.contains(&said) => Err(miette!(
                help = "docs/native.md has what each of them means",
                "--metadata {} is not there with --io {way}: {} is",
                word(&said),
                may.iter().map(word).collect::<Vec<_>>().join(", or ")
            )),
            said => Ok(said.unwrap_or(may[0])),
        }
    }

    /// Checks that no flag is given that does not apply to this transport, which copies packets.
    pub(crate) fn of_copies(&self, way: &str) -> Result<()> {
        self.kept(way, &[MetadataMode::Copy])?;
        self.of_others(way)
    }

    /// The same for driver flags, which only AF_XDP supports.
    fn of_others(&self, way: &str) -> Result<()> {
        let flag = match (self.busy_poll, self.zero_copy) {
            (Some(_), _) => "--busy-poll",
            (_, ZeroCopyMode::Always | ZeroCopyMode::Never) => "--zero-copy",
            _ => return Ok(()),
        };
        Err(miette!("{flag} is for --io xdp:..., not for {way}"))
    }

    /// Choice of `--metadata` for DPDK, whose ports support no other of these flags.
    pub(crate) fn of_dpdk(&self) -> Result<MetadataMode> {
        self.of_others("dpdk:...")?;
        self.kept("dpdk:...", &[MetadataMode::Overlay, MetadataMode::Copy])
    }

    pub(crate) fn options(&self) -> XskOptions {
        let zero_copy = match self.zero_copy {
            ZeroCopyMode::Auto => ZeroCopy::Auto,
            ZeroCopyMode::Always => ZeroCopy::Always,
            ZeroCopyMode::Never => ZeroCopy::Never,
        };
        let busy_poll =
            self.busy_poll.map(|microseconds| BusyPoll { microseconds, budget: self.busy_poll_budget });
        XskOptions { zero_copy, busy_poll }
    }
}

/// An open interface.
#[derive(Clone, Serialize)]
pub(crate) struct PortInfo {
    name: String,
    queues: u32,
    /// `driver`, `generic` or `hardware`: place in the receive path.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    zero_copy: bool,
    /// True if packets longer than a frame are received and sent.
    several_buffers: bool,
    /// Reason why they are not, although the MTU permits them.
    #[serde(skip_serializing_if = "Option::is_none")]
    several_buffers_refused: Option<&'static str>,
}

impl PortInfo {
    pub(crate) fn of(interface: &XdpInterface) -> PortInfo {
        let mode = interface.mode().and_then(|mode| match mode {
            XdpMode::Native => Some("driver"),
            XdpMode::Generic => Some("generic"),
            XdpMode::Hardware => Some("hardware"),
            XdpMode::Any => None,
        });
        let (name, queues) = (interface.name().to_owned(), interface.queues());
        let scatter = interface.scatter();
        PortInfo {
            name,
            queues,
            mode,
            zero_copy: interface.is_zero_copy(),
            several_buffers: scatter == ScatterMode::On,
            several_buffers_refused: scatter.refusal(),
        }
    }

    /// Description of the interface.
    pub(crate) fn text(&self) -> String {
        let PortInfo { name, queues, mode, zero_copy, several_buffers, several_buffers_refused } = self;
        let queues = if *queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") };
        let mode = mode.map_or(String::new(), |mode| format!(", {mode} mode"));
        let copies = if *zero_copy { "zero copy" } else { "the kernel copies" };
        let long = match (several_buffers, several_buffers_refused) {
            (true, _) => ", packets in several buffers".to_owned(),
            (false, Some(why)) => format!(", packets longer than a frame are dropped: {why}"),
            (false, None) => String::new(),
        };
        format!("{name} ({queues}{mode}, {copies}{long})")
    }
}

/// Properties of the interfaces that were opened.
#[derive(Clone, Serialize)]
pub(crate) struct OpenPorts {
    pub(crate) metadata: &'static str,
    pub(crate) interfaces: Vec<PortInfo>,
}

/// Interfaces whose queues belong to workers.
pub(crate) struct WorkerQueues {
    ports: XdpPorts,
    metadata: BufferMode,
    batch: usize,
}

impl WorkerQueues {
    /// Opens interfaces.
    pub(crate) fn open(
        names: &[&str],
        workers: u32,
        batch: u32,
        flags: &PortOptions,
    ) -> Result<Result<WorkerQueues, ExitCode>> {
        let metadata = match flags.kept("xdp:...", &[MetadataMode::Exchange, MetadataMode::Copy])? {
            MetadataMode::Copy => BufferMode::Copy,
            MetadataMode::Overlay | MetadataMode::Exchange => BufferMode::InPlace,
        };
        match XdpPorts::open(names, workers, batch as usize, &flags.options()) {
            Ok(ports) => Ok(Ok(WorkerQueues { ports, metadata, batch: batch as usize })),
            Err(error) => PortOpenError::new(PacketTransport::Xdp, error).exit().map(Err),
        }
    }

    /// Properties of the open interfaces.
    pub(crate) fn open_ports(&self) -> OpenPorts {
        let metadata = match self.metadata {
            BufferMode::InPlace => "exchange",
            BufferMode::Copy => "copy",
        };
        OpenPorts { metadata, interfaces: self.ports.interfaces().iter().map(PortInfo::of).collect() }
    }

    pub(crate) fn lost(&self) -> LostBefore {
        let PortDropCounts { no_room, unfit } = self.ports.lost();
        LostBefore { no_room, unfit }
    }

    /// Runs an XDP program on incoming packets, until the limit.
    pub(super) fn run(
        &mut self,
        engine: &mut NativeEngine,
        until: &StopCondition,
        control: Option<&MapControlSocket>,
    ) -> Result<RunStats> {
        let mut attend =
            |floor: &Safepoint<'_>| control.iter().for_each(|control| control.serve_until_done(floor));
        let WorkerQueues { ports, metadata, batch } = self;
        let run =
            |plan: &ServeConfig<'_>, crew: &WorkerHooks<'_>| ports.run(engine, plan, crew, Some(&mut attend));
        until.run_until((*batch, *metadata), run).into_diagnostic()
    }

    /// Runs a graph on incoming packets. `between` is called between batches; with several workers now and
    /// then, when all of them are between two.
    pub(crate) fn run_graph(
        &mut self,
        engine: &mut NativeEngine,
        ends: &GraphPortNumbers<'_>,
        until: &StopCondition,
        between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        let WorkerQueues { ports, metadata, batch } = self;
        until.run_until((*batch, *metadata), |plan, crew| ports.run_graph(engine, ends, plan, crew, between))
    }
}
