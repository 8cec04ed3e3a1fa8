//! Configurations on interfaces. Devices are interfaces. Packets that the configuration generates or reads
//! from files alternate with theirs, and files are written as packets come.

use std::fs::File;
use std::io::{self, BufWriter};
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_click::{ClickProgram, GraphSink};
use millstream_lab::os;
use millstream_native::NativeEngine;
use millstream_native_io::WorkerHooks;
use millstream_native_io::graph::{GraphPortNumbers, GraphRunStats};
use millstream_native_io::live::{PacketCallback, PacketPort, serve_graph};
use millstream_native_io::packet_ports::serve_graph_by;
use millstream_native_io::pcap::PcapWriter;
use millstream_native_io::pipeline::serve_graph_pipelined;
use millstream_native_io::queues::{BufferMode, ServeConfig};
use millstream_native_io::timed::{TimedQueues, TimedQueuesConfig, serve_graph_timed};
use millstream_ports::PortDropCounts;

use super::ClickRunArgs;
use super::card_addresses::CardAddresses;
use super::device_ports::{DevicePortSpec, DevicePorts, assign_ports, device_of, devices};
use super::gates::SourceGates;
use super::io::{SourcePackets, form, of_ports, send_schedule, source_packets};
use super::synthetic_source::SyntheticSource;
use crate::native::LostBefore;
use crate::native::live::{InterfacePort, lost, open_all};
use crate::native::port_options::{OpenPorts, WorkerQueues};
use crate::native::stop_condition::StopCondition;
use crate::native::transport::PacketTransport;

/// Source or output of a configuration.
enum LiveEndpoint {
    Interface(InterfacePort),
    /// Packets that are generated or read from a file.
    Made(Box<SyntheticSource>),
    File(PcapWriter<BufWriter<File>>, io::Result<()>),
}

impl PacketPort for LiveEndpoint {
    fn index(&self) -> u32 {
        match self {
            LiveEndpoint::Interface(wired) => wired.index(),
            LiveEndpoint::Made(..) | LiveEndpoint::File(..) => 0,
        }
    }

    fn receive(&mut self, most: usize, take: PacketCallback<'_>) -> io::Result<usize> {
        match self {
            LiveEndpoint::Interface(wired) => wired.receive(most, take),
            LiveEndpoint::Made(made) => made.receive(most, take),
            LiveEndpoint::File(..) => Ok(0),
        }
    }

    fn send(&mut self, packet: &[u8]) -> bool {
        match self {
            LiveEndpoint::Interface(wired) => wired.send(packet),
            LiveEndpoint::Made(..) => false,
            LiveEndpoint::File(writer, written) => {
                if written.is_ok() {
                    *written = writer.write(packet, os::now_ns(), 0);
                }
                true
            }
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        match self {
            LiveEndpoint::Interface(wired) => wired.flush(),
            LiveEndpoint::Made(..) => Ok(true),
            LiveEndpoint::File(_, written) => std::mem::replace(written, Ok(())).map(|()| true),
        }
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        match self {
            LiveEndpoint::Interface(wired) => wired.wait(at_most),
            LiveEndpoint::Made(..) | LiveEndpoint::File(..) => {
                std::thread::sleep(at_most);
                Ok(())
            }
        }
    }
}

/// Interfaces and files of a configuration.
pub(super) struct GraphPorts {
    by: PortAssignment,
    sources: Vec<usize>,
    outputs: Vec<usize>,
    /// Description of each source.
    described: Vec<String>,
    /// True if the configuration was compiled in stages.
    stages: bool,
    /// Addresses that interfaces have for the run.
    addresses: CardAddresses,
}

/// Distribution of interfaces and files over workers.
enum PortAssignment {
    /// Only interfaces, by AF_XDP: each worker has queues of its own.
    Queues(WorkerQueues),
    /// Only interfaces, by other means, with several workers, each of which has wires of its own.
    Wires(Vec<Vec<InterfacePort>>),
    /// Any ends, interfaces first: one worker has all, or stages share them. With the number of packets, if
    /// none comes by an interface.
    Ends(Vec<LiveEndpoint>, Option<u64>),
}

/// An interface to open.
type InterfaceSpec = (PacketTransport, String);

/// Parses `--io`, if it names interfaces.
fn said<'s>(specs: &'s [String], program: &ClickProgram) -> Result<Vec<DevicePortSpec<'s, InterfaceSpec>>> {
    let find = |text: &'s String| device_of(text, |word| PacketTransport::named(word).is_some());
    let found: Vec<_> = specs.iter().filter_map(find).collect();
    if !found.is_empty() && found.len() < specs.len() {
        return Err(miette!("--io: interfaces and others do not go together"));
    }
    let said = found.into_iter().filter_map(|(device, what)| {
        let (word, names) = what.split_once(':').unwrap_or((what, ""));
        let way = PacketTransport::named(word)?;
        let wanted = device.map_or_else(|| devices(program), |name| vec![name]);
        // Devices are named after their interfaces.
        let names = if names.is_empty() { wanted.clone() } else { names.split(',').collect() };
        let port = |(at, name): (usize, &str)| {
            let unframed =
                wanted.get(at).is_some_and(|device| program.devices.unframed.iter().any(|d| d == device));
            (
                if way == PacketTransport::Tap && unframed { PacketTransport::Tun } else { way },
                name.to_owned(),
            )
        };
        let ports: Vec<InterfaceSpec> = names.into_iter().enumerate().map(port).collect();
        Some(DevicePortSpec { device, ports })
    });
    Ok(said.collect())
}

/// Opens the interfaces that `--io` names, if any. Returns the exit code if that is not permitted.
pub(super) fn of_graph(
    args: &ClickRunArgs,
    program: &ClickProgram,
    engine: &NativeEngine,
    gates: &SourceGates,
) -> Result<Result<Option<GraphPorts>, ExitCode>> {
    let specs = args.io(Some(program));
    let said = said(&specs, program)?;
    if said.is_empty() {
        return Ok(Ok(None));
    }
    let assigned = assign_ports(said, program, "interfaces")?;
    let interface = |source: usize| {
        let (way, name) = &assigned.ports[assigned.sources[source]?];
        // A TAP or TUN interface is the other end: the host's.
        matches!(way, PacketTransport::Raw | PacketTransport::Xdp).then_some(name.as_str())
    };
    let addresses = CardAddresses::set(program, interface)?;
    let opened = open_assigned(args, program, engine, gates, assigned)?;
    Ok(opened.map(|ports| Some(GraphPorts { addresses, ..ports })))
}

/// Opens the interfaces and files of a configuration.
fn open_assigned(
    args: &ClickRunArgs,
    program: &ClickProgram,
    engine: &NativeEngine,
    gates: &SourceGates,
    DevicePorts { ports, sources, outputs }: DevicePorts<InterfaceSpec>,
) -> Result<Result<GraphPorts, ExitCode>> {
    let packets = args.packets;
    let (timed, stages) = (!program.waits.servers.is_empty(), program.stages > 1);
    if let Some(ends) = only_queues(&ports, &sources, &outputs).filter(|_| !timed && !stages) {
        let names: Vec<&str> = ports.iter().map(|(_, name)| name.as_str()).collect();
        let queues = WorkerQueues::open(&names, engine.workers(), engine.batch(), &args.taking)?;
        return Ok(queues.map(|queues| GraphPorts::of_queues(queues, ends)));
    }
    args.taking
        .of_copies("files, generated packets and interfaces without AF_XDP beside others, or stages")?;
    if engine.workers() > 1 && !stages {
        let Some(ends) = only_wires(&ports, &sources, &outputs) else {
            return Err(miette!(
                "--io {}: files, generated packets, and interfaces by AF_XDP beside others are served \
                 by one worker: leave --workers out",
                args.io(Some(program))[0]
            ));
        };
        return match open_all(ports.iter().map(|(way, name)| (*way, name.as_str())), engine.workers()) {
            Ok(wires) => Ok(Ok(GraphPorts::of_wires(wires, ends))),
            Err(refused) => refused.exit().map(Err),
        };
    }
    let (mut ends, mut finite) = (Vec::new(), Some(0_u64));
    for (way, name) in ports {
        match way.open(&name) {
            Ok(wired) => ends.push(LiveEndpoint::Interface(wired)),
            Err(refused) => return refused.exit().map(Err),
        }
    }
    let mut described = Vec::new();
    let mut places = Vec::new();
    for (at, (source, place)) in program.sources.iter().zip(sources).enumerate() {
        let place = match place {
            Some(place) => {
                finite = None;
                place
            }
            None => {
                let made = source_packets(source, packets.or(Some(u64::MAX)), gates.of(at))?;
                let made = made.sending(send_schedule(program, at));
                if let Some(all) = finite {
                    finite = Some(made.total()?.saturating_add(all));
                }
                ends.push(LiveEndpoint::Made(Box::new(SyntheticSource::new(made))));
                ends.len() - 1
            }
        };
        described.push(match &ends[place] {
            LiveEndpoint::Interface(wired) => wired.description(),
            LiveEndpoint::Made(source) => source.packets.description.clone(),
            LiveEndpoint::File(..) => String::new(),
        });
        places.push(place);
    }
    let outputs = written(program, outputs, &mut ends)?;
    Ok(Ok(GraphPorts {
        by: PortAssignment::Ends(ends, finite),
        sources: places,
        outputs,
        described,
        stages,
        addresses: CardAddresses::default(),
    }))
}

/// Indices of sources and outputs, if all are AF_XDP interfaces, and no two sources share one.
fn only_queues(
    ports: &[InterfaceSpec],
    sources: &[Option<usize>],
    outputs: &[Option<usize>],
) -> Option<(Vec<usize>, Vec<usize>)> {
    let sources: Vec<usize> = sources.iter().copied().collect::<Option<_>>()?;
    let outputs = outputs.iter().copied().collect::<Option<_>>()?;
    let twice = sources.iter().enumerate().any(|(at, source)| sources[..at].contains(source));
    (!twice && ports.iter().all(|(way, _)| *way == PacketTransport::Xdp)).then_some((sources, outputs))
}

/// Indices of sources and outputs, if all are interfaces, and none uses AF_XDP.
fn only_wires(
    ports: &[InterfaceSpec],
    sources: &[Option<usize>],
    outputs: &[Option<usize>],
) -> Option<(Vec<usize>, Vec<usize>)> {
    let all = |places: &[Option<usize>]| places.iter().copied().collect::<Option<Vec<_>>>();
    let plain = ports.iter().all(|(way, _)| *way != PacketTransport::Xdp);
    all(sources).zip(all(outputs)).filter(|_| plain)
}

/// Index of each output; creates files for those that have none, each once.
fn written(
    program: &ClickProgram,
    outputs: Vec<Option<usize>>,
    ends: &mut Vec<LiveEndpoint>,
) -> Result<Vec<usize>> {
    let mut files: Vec<(&str, usize)> = Vec::new();
    let mut all = Vec::new();
    for (target, place) in program.targets.iter().zip(outputs) {
        all.push(match (target, place) {
            (_, Some(place)) => place,
            (GraphSink::File(path, recording), None) => match files.iter().find(|(known, _)| known == path) {
                Some((_, place)) => *place,
                None => {
                    let form = form(recording);
                    let file =
                        File::create(path).and_then(|file| PcapWriter::new(BufWriter::new(file), form));
                    let writer = file.into_diagnostic().wrap_err_with(|| path.clone())?;
                    ends.push(LiveEndpoint::File(writer, Ok(())));
                    files.push((path, ends.len() - 1));
                    ends.len() - 1
                }
            },
            (GraphSink::Device(name), None) => {
                return Err(miette!("--io: nothing is said of device {name:?}"));
            }
        });
    }
    Ok(all)
}

impl GraphPorts {
    fn of_queues(queues: WorkerQueues, (sources, outputs): (Vec<usize>, Vec<usize>)) -> GraphPorts {
        let taken = queues.open_ports();
        let described = sources.iter().map(|&at| taken.interfaces[at].text()).collect();
        let (by, addresses) = (PortAssignment::Queues(queues), CardAddresses::default());
        GraphPorts { by, sources, outputs, described, stages: false, addresses }
    }

    fn of_wires(wires: Vec<Vec<InterfacePort>>, (sources, outputs): (Vec<usize>, Vec<usize>)) -> GraphPorts {
        let described = sources.iter().map(|&at| wires[0][at].description()).collect();
        let (by, addresses) = (PortAssignment::Wires(wires), CardAddresses::default());
        GraphPorts { by, sources, outputs, described, stages: false, addresses }
    }

    /// Properties of the interfaces that were opened by AF_XDP.
    pub(super) fn open_ports(&self) -> Option<OpenPorts> {
        let ends = match &self.by {
            PortAssignment::Queues(queues) => return Some(queues.open_ports()),
            PortAssignment::Wires(_) => return None,
            PortAssignment::Ends(ends, _) => ends,
        };
        let of = |end: &LiveEndpoint| {
            if let LiveEndpoint::Interface(wired) = end { wired.port_info() } else { None }
        };
        let interfaces: Vec<_> = ends.iter().filter_map(of).collect();
        (!interfaces.is_empty()).then_some(OpenPorts { metadata: "copy", interfaces })
    }

    /// Placeholders for the packets of each source, which come later.
    pub(super) fn packets(&self) -> Vec<SourcePackets> {
        of_ports(self.described.clone())
    }

    /// Runs the graph until the limit or Ctrl-C; `between` is called between batches. Returns the packets
    /// that were lost before they arrived here, too.
    pub(super) fn run(
        self,
        engine: &mut NativeEngine,
        batch: u32,
        packets: Option<u64>,
        room: &mut TimedQueues,
        between: Option<impl FnMut(&mut NativeEngine, &mut TimedQueues) -> bool>,
    ) -> Result<(GraphRunStats, LostBefore)> {
        let ends = GraphPortNumbers { sources: &self.sources, outputs: &self.outputs };
        let until = StopCondition::begin(packets, None);
        let _restored_at_the_end = self.addresses;
        let timed = !room.is_empty();
        let mut between = between;
        let mut none = TimedQueues::new(&TimedQueuesConfig::default());
        let untimed = between.as_mut().map(|between| |engine: &mut NativeEngine| between(engine, &mut none));
        let (mut wires, finite) = match self.by {
            PortAssignment::Queues(mut queues) => {
                let ran = queues.run_graph(engine, &ends, &until, untimed).into_diagnostic()?;
                return Ok((ran, queues.lost()));
            }
            PortAssignment::Wires(mut wires) => {
                let run = |plan: &ServeConfig<'_>, crew: &WorkerHooks<'_>| {
                    serve_graph_by(engine, &mut wires, &ends, (plan, crew), untimed)
                };
                let ran = until.run_until((batch as usize, BufferMode::Copy), run).into_diagnostic()?;
                let PortDropCounts { no_room, unfit } = lost(wires.iter_mut().flatten()).into_diagnostic()?;
                return Ok((ran, LostBefore { no_room, unfit }));
            }
            PortAssignment::Ends(mut wires, finite) if self.stages => {
                let run = |plan: &ServeConfig<'_>, crew: &WorkerHooks<'_>| {
                    let plan = ServeConfig { most: plan.most.min(finite.unwrap_or(u64::MAX)), ..*plan };
                    serve_graph_pipelined(engine, &mut wires, &ends, (&plan, crew), untimed)
                };
                let ran = until.run_until((batch as usize, BufferMode::Copy), run).into_diagnostic()?;
                return Ok((ran, finished(wires)?));
            }
            PortAssignment::Ends(wires, finite) => (wires, finite),
        };
        let mut goes_on = |ran: &GraphRunStats, engine: &mut NativeEngine, room: &mut TimedQueues| {
            let received = ran.received.iter().sum();
            let more = until.should_continue(received) && finite.is_none_or(|all| received < all);
            if !more {
                // Waiting packets are still sent, unless the user interrupts.
                room.close();
            }
            (more || until.should_continue(0) && !room.is_idle())
                && between.as_mut().is_none_or(|between| between(engine, room))
        };
        let ran = match timed {
            true => serve_graph_timed(engine, &mut wires, &ends, room, batch as usize, &mut goes_on),
            false => {
                let goes_on =
                    &mut |ran: &GraphRunStats, engine: &mut NativeEngine| goes_on(ran, engine, room);
                serve_graph(engine, &mut wires, &ends, batch as usize, goes_on)
            }
        };
        Ok((ran.into_diagnostic()?, finished(wires)?))
    }
}

/// Closes files, and returns the packets that were lost before they arrived here.
fn finished(ends: Vec<LiveEndpoint>) -> Result<LostBefore> {
    let mut lost = LostBefore { no_room: 0, unfit: 0 };
    for end in ends {
        match end {
            LiveEndpoint::Interface(mut wired) => {
                let more = wired.lost().into_diagnostic()?;
                lost.no_room += more.no_room;
                lost.unfit += more.unfit;
            }
            LiveEndpoint::File(writer, _) => writer.finish().into_diagnostic()?,
            LiveEndpoint::Made(..) => {}
        }
    }
    Ok(lost)
}
