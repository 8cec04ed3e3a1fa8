//! `--io dpdk:DEVICE`: packets from and to DPDK's ports.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_click::Program;
use millstream_lab::os;
use millstream_native::Engine;
use millstream_native::io::dpdk::{self, Error, Metadata, Plan};
use millstream_native::io::graph::{Ends, GraphRan};
use millstream_native::io::{Crew, Ran};

use crate::click::places::{Places, Said, device_of, places};
use crate::exit::Exit;
use crate::native::taken::Kept;
use crate::native::{LostBefore, bind};
use crate::progress::Progress;

/// How ports are served.
pub(crate) struct Serving {
    batch: u32,
    packets: Option<u64>,
    seconds: Option<f64>,
    kept: Kept,
}

impl Serving {
    /// So many packets at once, of so many, for so long, no end without; and whose buffers they are in.
    pub(crate) fn new(batch: u32, packets: Option<u64>, seconds: Option<f64>, kept: Kept) -> Serving {
        Serving { batch, packets, seconds, kept }
    }
}

/// Flags of builds with DPDK.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// Arguments of DPDK's environment (EAL), with --io dpdk:...
    #[arg(
        long,
        value_name = "ARGUMENTS",
        allow_hyphen_values = true,
        default_value = "--no-huge -m 512 --no-shconf --no-telemetry --iova-mode=va --log-level=warning"
    )]
    eal: String,
}

impl Flags {
    fn open(&self, devices: &[String], workers: u32) -> Result<Result<dpdk::Ports, ExitCode>> {
        let eal: Vec<String> = self.eal.split_whitespace().map(str::to_owned).collect();
        match dpdk::Ports::open(&eal, devices, workers as u16) {
            Ok(ports) => Ok(Ok(ports)),
            Err(e) if e.is_input() => Err(miette!(help = help(&e), "--io dpdk:...: {e}")),
            Err(e) => {
                eprintln!("--io dpdk:...: {e}\n  {}", help(&e));
                Ok(Err(Exit::NotPermitted.into()))
            }
        }
    }
}

fn help(error: &Error) -> &'static str {
    match error {
        Error::NoPort(_) | Error::Eal { errno: libc::ENODEV, .. } => {
            "devices are virtual ones (net_pcap0,rx_pcap=FILE; net_null0; net_tap0) or PCI addresses, bound to a \
             driver that DPDK can use"
        }
        Error::Eal { .. } => "what DPDK says of it is above; `--eal ARGUMENTS` has other arguments",
        _ => "what DPDK says of it may be above",
    }
}

/// `DPDK 22.11.11`.
pub(crate) fn version() -> Option<String> {
    Some(dpdk::version())
}

/// Serves ports of these devices, which are interfaces from `first` on: what they are, what was found, and lost before it came here.
pub(crate) fn serve(
    flags: &Flags,
    devices: &str,
    first: u32,
    engine: &Engine,
    serving: &Serving,
) -> Result<Result<(String, Ran, LostBefore), ExitCode>> {
    let mut ports = match flags.open(&list(devices)?, engine.workers())? {
        Ok(ports) => ports,
        Err(code) => return Ok(Err(code)),
    };
    let ran = during(serving, |plan, crew| ports.run(engine, first, plan, crew));
    let dpdk::Lost { no_room, unfit } = ports.lost();
    Ok(Ok((ports.names().join(", "), ran.into_diagnostic()?, LostBefore { no_room, unfit })))
}

/// Devices with `;` between: they have commas of their own.
fn list(devices: &str) -> Result<Vec<String>> {
    let list: Vec<String> = devices.split(';').map(|device| device.trim().to_owned()).collect();
    match list.iter().any(String::is_empty) {
        true => Err(miette!("--io \"dpdk:{devices}\" names no device: dpdk:DEVICE[;DEVICE...]")),
        false => Ok(list),
    }
}

/// Does something with packets until it is enough, or Ctrl-C.
fn during<R>(serving: &Serving, run: impl FnOnce(&Plan<'_>, &Crew<'_>) -> io::Result<R>) -> io::Result<R> {
    os::catch_interrupts();
    let _bar = match serving.seconds {
        Some(s) => Progress::timed("serving", Duration::from_secs_f64(s)),
        None => Progress::open("serving, until Ctrl-C"),
    };
    let end = serving.seconds.map(|s| Instant::now() + Duration::from_secs_f64(s));
    let goes_on = || !os::interrupted() && end.is_none_or(|end| Instant::now() < end);
    let metadata = match serving.kept {
        Kept::Copy => Metadata::Copy,
        _ => Metadata::Overlay,
    };
    let (batch, most) = (serving.batch as usize, serving.packets.unwrap_or(u64::MAX));
    run(&Plan { batch, metadata, most, goes_on: &goes_on }, &Crew { enter: &bind })
}

/// Ports of the devices of a configuration.
pub(crate) struct Ports {
    ports: dpdk::Ports,
    sources: Vec<usize>,
    outputs: Vec<usize>,
}

/// Ports for the devices of a configuration, if they are DPDK's.
pub(crate) fn of_graph(
    flags: &Flags,
    specs: &[String],
    program: &Program,
    workers: u32,
) -> Result<Result<Option<Ports>, ExitCode>> {
    let found: Vec<_> = specs.iter().filter_map(|text| device_of(text, |word| word == "dpdk")).collect();
    if found.is_empty() {
        return Ok(Ok(None));
    }
    if found.len() < specs.len() {
        return Err(miette!("--io: devices of DPDK and others do not go together"));
    }
    let said = |(device, what): (_, &str)| {
        let devices = what.split_once(':').map_or("", |(_, devices)| devices);
        Ok(Said { device, ports: list(devices)? })
    };
    let said = found.into_iter().map(said).collect::<Result<_>>()?;
    let Places { ports: devices, sources, outputs } = places(said, program, "devices of DPDK")?;
    let sources = sources.into_iter().collect::<Option<_>>().ok_or_else(|| {
        miette!("--io dpdk:...: the configuration has sources of packets that are no devices")
    })?;
    let outputs = outputs.into_iter().collect::<Option<_>>();
    let outputs = outputs.ok_or_else(|| miette!("--io dpdk:...: the configuration writes files"))?;
    let opened = flags.open(&devices, workers)?;
    Ok(opened.map(|ports| Some(Ports { ports, sources, outputs })))
}

impl Ports {
    /// Each source's, in words.
    pub(crate) fn descriptions(&self) -> Vec<String> {
        self.sources.iter().map(|&port| self.ports.names()[port].clone()).collect()
    }

    /// Runs a graph on what comes; `between` is asked between batches, and so one worker has it.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        serving: &Serving,
        between: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        let Ports { ports, sources, outputs } = self;
        let ends = Ends { sources, outputs };
        during(serving, |plan, crew| match (engine.workers(), between) {
            (1, Some(between)) => ports.run_graph(engine, &ends, plan, crew, between),
            (1, None) => ports.run_graph(engine, &ends, plan, crew, |_| true),
            (_, None) => ports.run_graph_by(engine, &ends, plan, crew),
            (_, Some(_)) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "scripts and --control with --io dpdk:... need one worker: leave --workers out",
            )),
        })
    }
}
