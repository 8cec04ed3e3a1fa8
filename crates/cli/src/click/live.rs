//! Configurations on interfaces. Devices are interfaces. Packets that the configuration generates or reads
//! from files alternate with theirs, and files are written as packets come.

use std::fs::File;
use std::io::{self, BufWriter};
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_click::{Program, Target};
use millstream_lab::os;
use millstream_native::Engine;
use millstream_native::io::Crew;
use millstream_native::io::graph::{Ends, GraphRan};
use millstream_native::io::live::{Take, Wire, serve_graph};
use millstream_native::io::pcap::Writer;
use millstream_native::io::pipeline::serve_graph_pipelined;
use millstream_native::io::queues::{Metadata, Plan};
use millstream_native::io::timed::{Room, RoomSpec, serve_graph_timed};
use millstream_native::io::wires::serve_graph_by;
use millstream_ports::Lost;

use super::Running;
use super::gates::Gates;
use super::io::{Packets, beat, form, made, of_ports};
use super::made::Made;
use super::places::{Places, Said, device_of, devices, places};
use crate::native::LostBefore;
use crate::native::live::{Until, Way, Wired, lost, open_all};
use crate::native::taken::{Queues, Taken};

/// Source or output of a configuration.
enum End {
    Interface(Wired),
    /// Packets that are generated or read from a file.
    Made(Made),
    File(Writer<BufWriter<File>>, io::Result<()>),
}

impl Wire for End {
    fn index(&self) -> u32 {
        match self {
            End::Interface(wired) => wired.index(),
            End::Made(..) | End::File(..) => 0,
        }
    }

    fn receive(&mut self, most: usize, take: Take<'_>) -> io::Result<usize> {
        match self {
            End::Interface(wired) => wired.receive(most, take),
            End::Made(made) => made.receive(most, take),
            End::File(..) => Ok(0),
        }
    }

    fn send(&mut self, packet: &[u8]) -> bool {
        match self {
            End::Interface(wired) => wired.send(packet),
            End::Made(..) => false,
            End::File(writer, written) => {
                if written.is_ok() {
                    *written = writer.write(packet, os::now_ns(), 0);
                }
                true
            }
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        match self {
            End::Interface(wired) => wired.flush(),
            End::Made(..) => Ok(true),
            End::File(_, written) => std::mem::replace(written, Ok(())).map(|()| true),
        }
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        match self {
            End::Interface(wired) => wired.wait(at_most),
            End::Made(..) | End::File(..) => {
                std::thread::sleep(at_most);
                Ok(())
            }
        }
    }
}

/// Interfaces and files of a configuration.
pub(super) struct Ports {
    by: By,
    sources: Vec<usize>,
    outputs: Vec<usize>,
    /// Description of each source.
    described: Vec<String>,
    /// True if the configuration was compiled in stages.
    stages: bool,
}

/// Distribution of interfaces and files over workers.
enum By {
    /// Only interfaces, by AF_XDP: each worker has queues of its own.
    Queues(Queues),
    /// Only interfaces, by other means, with several workers, each of which has wires of its own.
    Wires(Vec<Vec<Wired>>),
    /// Any ends, interfaces first: one worker has all, or stages share them. With the number of packets, if
    /// none comes by an interface.
    Ends(Vec<End>, Option<u64>),
}

/// An interface to open.
type Wanted = (Way, String);

/// Parses `--io`, if it names interfaces.
fn said<'s>(specs: &'s [String], program: &Program) -> Result<Vec<Said<'s, Wanted>>> {
    let find = |text: &'s String| device_of(text, |word| Way::named(word).is_some());
    let found: Vec<_> = specs.iter().filter_map(find).collect();
    if !found.is_empty() && found.len() < specs.len() {
        return Err(miette!("--io: interfaces and others do not go together"));
    }
    let said = found.into_iter().filter_map(|(device, what)| {
        let (word, names) = what.split_once(':').unwrap_or((what, ""));
        let way = Way::named(word)?;
        let wanted = device.map_or_else(|| devices(program), |name| vec![name]);
        // Devices are named after their interfaces.
        let names = if names.is_empty() { wanted.clone() } else { names.split(',').collect() };
        let port = |(at, name): (usize, &str)| {
            let unframed = wanted.get(at).is_some_and(|device| program.unframed.iter().any(|d| d == device));
            (if way == Way::Tap && unframed { Way::Tun } else { way }, name.to_owned())
        };
        let ports: Vec<Wanted> = names.into_iter().enumerate().map(port).collect();
        Some(Said { device, ports })
    });
    Ok(said.collect())
}

/// Opens the interfaces that `--io` names, if any. Returns the exit code if that is not permitted.
pub(super) fn of_graph(
    args: &Running,
    program: &Program,
    engine: &Engine,
    gates: &Gates,
) -> Result<Result<Option<Ports>, ExitCode>> {
    let (specs, packets) = (&args.io, args.packets);
    let said = said(specs, program)?;
    if said.is_empty() {
        return Ok(Ok(None));
    }
    let Places { ports, sources, outputs } = places(said, program, "interfaces")?;
    let (timed, stages) = (!program.waits.servers.is_empty(), program.stages > 1);
    if let Some(ends) = only_queues(&ports, &sources, &outputs).filter(|_| !timed && !stages) {
        let names: Vec<&str> = ports.iter().map(|(_, name)| name.as_str()).collect();
        let queues = Queues::open(&names, engine.workers(), engine.batch(), &args.taking)?;
        return Ok(queues.map(|queues| Some(Ports::of_queues(queues, ends))));
    }
    args.taking.of_copies(
        "interfaces that are not all AF_XDP's, files and packets that are made up beside them, or stages",
    )?;
    if engine.workers() > 1 && !stages {
        let Some(ends) = only_wires(&ports, &sources, &outputs) else {
            return Err(miette!(
                "--io {}: files, packets that are made up, and interfaces by AF_XDP beside others are served \
                 by one worker: leave --workers out",
                specs[0]
            ));
        };
        return match open_all(ports.iter().map(|(way, name)| (*way, name.as_str())), engine.workers()) {
            Ok(wires) => Ok(Ok(Some(Ports::of_wires(wires, ends)))),
            Err(refused) => refused.exit().map(Err),
        };
    }
    let (mut ends, mut finite) = (Vec::new(), Some(0_u64));
    for (way, name) in ports {
        match way.open(&name) {
            Ok(wired) => ends.push(End::Interface(wired)),
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
                let made = made(source, packets.or(Some(u64::MAX)), gates.of(at))?;
                let made = made.sending(beat(program, at));
                if let Some(all) = finite {
                    finite = Some(made.total()?.saturating_add(all));
                }
                ends.push(End::Made(Made::new(made)));
                ends.len() - 1
            }
        };
        described.push(match &ends[place] {
            End::Interface(wired) => wired.description(),
            End::Made(Made { packets, .. }) => packets.description.clone(),
            End::File(..) => String::new(),
        });
        places.push(place);
    }
    let outputs = written(program, outputs, &mut ends)?;
    Ok(Ok(Some(Ports { by: By::Ends(ends, finite), sources: places, outputs, described, stages })))
}

/// Indices of sources and outputs, if all are AF_XDP interfaces, and no two sources share one.
fn only_queues(
    ports: &[Wanted],
    sources: &[Option<usize>],
    outputs: &[Option<usize>],
) -> Option<(Vec<usize>, Vec<usize>)> {
    let sources: Vec<usize> = sources.iter().copied().collect::<Option<_>>()?;
    let outputs = outputs.iter().copied().collect::<Option<_>>()?;
    let twice = sources.iter().enumerate().any(|(at, source)| sources[..at].contains(source));
    (!twice && ports.iter().all(|(way, _)| *way == Way::Xdp)).then_some((sources, outputs))
}

/// Indices of sources and outputs, if all are interfaces, and none uses AF_XDP.
fn only_wires(
    ports: &[Wanted],
    sources: &[Option<usize>],
    outputs: &[Option<usize>],
) -> Option<(Vec<usize>, Vec<usize>)> {
    let all = |places: &[Option<usize>]| places.iter().copied().collect::<Option<Vec<_>>>();
    let plain = ports.iter().all(|(way, _)| *way != Way::Xdp);
    all(sources).zip(all(outputs)).filter(|_| plain)
}

/// Index of each output; creates files for those that have none, each once.
fn written(program: &Program, outputs: Vec<Option<usize>>, ends: &mut Vec<End>) -> Result<Vec<usize>> {
    let mut files: Vec<(&str, usize)> = Vec::new();
    let mut all = Vec::new();
    for (target, place) in program.targets.iter().zip(outputs) {
        all.push(match (target, place) {
            (_, Some(place)) => place,
            (Target::File(path, recording), None) => match files.iter().find(|(known, _)| known == path) {
                Some((_, place)) => *place,
                None => {
                    let form = form(recording);
                    let file = File::create(path).and_then(|file| Writer::new(BufWriter::new(file), form));
                    let writer = file.into_diagnostic().wrap_err_with(|| path.clone())?;
                    ends.push(End::File(writer, Ok(())));
                    files.push((path, ends.len() - 1));
                    ends.len() - 1
                }
            },
            (Target::Device(name), None) => return Err(miette!("--io: nothing is said of device {name:?}")),
        });
    }
    Ok(all)
}

impl Ports {
    fn of_queues(queues: Queues, (sources, outputs): (Vec<usize>, Vec<usize>)) -> Ports {
        let taken = queues.taken();
        let described = sources.iter().map(|&at| taken.interfaces[at].text()).collect();
        Ports { by: By::Queues(queues), sources, outputs, described, stages: false }
    }

    fn of_wires(wires: Vec<Vec<Wired>>, (sources, outputs): (Vec<usize>, Vec<usize>)) -> Ports {
        let described = sources.iter().map(|&at| wires[0][at].description()).collect();
        Ports { by: By::Wires(wires), sources, outputs, described, stages: false }
    }

    /// Properties of the interfaces that were opened by AF_XDP.
    pub(super) fn taken(&self) -> Option<Taken> {
        let ends = match &self.by {
            By::Queues(queues) => return Some(queues.taken()),
            By::Wires(_) => return None,
            By::Ends(ends, _) => ends,
        };
        let of = |end: &End| if let End::Interface(wired) = end { wired.taken() } else { None };
        let interfaces: Vec<_> = ends.iter().filter_map(of).collect();
        (!interfaces.is_empty()).then_some(Taken { metadata: "copy", interfaces })
    }

    /// Placeholders for the packets of each source, which come later.
    pub(super) fn packets(&self) -> Vec<Packets> {
        of_ports(self.described.clone())
    }

    /// Runs the graph until the limit or Ctrl-C; `between` is called between batches. Returns the packets
    /// that were lost before they arrived here, too.
    pub(super) fn run(
        self,
        engine: &mut Engine,
        batch: u32,
        packets: Option<u64>,
        room: &mut Room,
        between: Option<impl FnMut(&mut Engine, &mut Room) -> bool>,
    ) -> Result<(GraphRan, LostBefore)> {
        let ends = Ends { sources: &self.sources, outputs: &self.outputs };
        let until = Until::begin(packets, None);
        let timed = !room.is_empty();
        let mut between = between;
        let mut none = Room::new(&RoomSpec::default());
        let untimed = between.as_mut().map(|between| |engine: &mut Engine| between(engine, &mut none));
        let (mut wires, finite) = match self.by {
            By::Queues(mut queues) => {
                let ran = queues.run_graph(engine, &ends, &until, untimed).into_diagnostic()?;
                return Ok((ran, queues.lost()));
            }
            By::Wires(mut wires) => {
                let run = |plan: &Plan<'_>, crew: &Crew<'_>| {
                    serve_graph_by(engine, &mut wires, &ends, (plan, crew), untimed)
                };
                let ran = until.during((batch as usize, Metadata::Copy), run).into_diagnostic()?;
                let Lost { no_room, unfit } = lost(wires.iter_mut().flatten()).into_diagnostic()?;
                return Ok((ran, LostBefore { no_room, unfit }));
            }
            By::Ends(mut wires, finite) if self.stages => {
                let run = |plan: &Plan<'_>, crew: &Crew<'_>| {
                    let plan = Plan { most: plan.most.min(finite.unwrap_or(u64::MAX)), ..*plan };
                    serve_graph_pipelined(engine, &mut wires, &ends, (&plan, crew), untimed)
                };
                let ran = until.during((batch as usize, Metadata::Copy), run).into_diagnostic()?;
                return Ok((ran, finished(wires)?));
            }
            By::Ends(wires, finite) => (wires, finite),
        };
        let mut goes_on = |ran: &GraphRan, engine: &mut Engine, room: &mut Room| {
            let received = ran.received.iter().sum();
            let more = until.goes_on(received) && finite.is_none_or(|all| received < all);
            if !more {
                // Waiting packets are still sent, unless the user interrupts.
                room.close();
            }
            (more || until.goes_on(0) && !room.is_idle())
                && between.as_mut().is_none_or(|between| between(engine, room))
        };
        let ran = match timed {
            true => serve_graph_timed(engine, &mut wires, &ends, room, batch as usize, &mut goes_on),
            false => {
                let goes_on = &mut |ran: &GraphRan, engine: &mut Engine| goes_on(ran, engine, room);
                serve_graph(engine, &mut wires, &ends, batch as usize, goes_on)
            }
        };
        Ok((ran.into_diagnostic()?, finished(wires)?))
    }
}

/// Closes files, and returns the packets that were lost before they arrived here.
fn finished(ends: Vec<End>) -> Result<LostBefore> {
    let mut lost = LostBefore { no_room: 0, unfit: 0 };
    for end in ends {
        match end {
            End::Interface(mut wired) => {
                let more = wired.lost().into_diagnostic()?;
                lost.no_room += more.no_room;
                lost.unfit += more.unfit;
            }
            End::File(writer, _) => writer.finish().into_diagnostic()?,
            End::Made(..) => {}
        }
    }
    Ok(lost)
}
