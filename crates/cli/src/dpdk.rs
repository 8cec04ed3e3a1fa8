//! `--io dpdk:DEVICE`: packets of DPDK's ports.

use std::io;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use millstream_click::Program;
use millstream_native::Engine;
use millstream_native::io::dpdk::{self, Error};
use millstream_native::io::floor::Floor;
use millstream_native::io::graph::{Ends, GraphRan};
use millstream_native::io::queues::{Metadata, Plan};
use millstream_native::io::{Crew, Ran};

use crate::click::places::{Places, Said, device_of, places};
use crate::exit::Exit;
use crate::native::LostBefore;
use crate::native::control::Control;
use crate::native::live::Until;
use crate::native::taken::Kept;

/// Batch size, and the buffers that packets are in.
pub(crate) type Taking = (u32, Kept);

fn taking((batch, kept): Taking) -> (usize, Metadata) {
    let metadata = match kept {
        Kept::Copy => Metadata::Copy,
        Kept::Overlay | Kept::Exchange => Metadata::InPlace,
    };
    (batch as usize, metadata)
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
    fn open(&self, devices: &[String], workers: u32, first: u32) -> Result<Result<dpdk::Ports, ExitCode>> {
        let eal: Vec<String> = self.eal.split_whitespace().map(str::to_owned).collect();
        match dpdk::Ports::open(&eal, devices, workers as u16, first) {
            Ok(ports) => Ok(Ok(ports)),
            Err(e) if e.is_input() => Err(miette!(help = help(&e), "--io dpdk:...: {e}")),
            Err(e) => {
                errln!("--io dpdk:...: {e}\n  {}", help(&e));
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

/// Opens ports for these devices; to XDP programs they are interfaces from `first` on.
pub(crate) fn of_program(
    flags: &Flags,
    devices: &str,
    workers: u32,
    first: u32,
) -> Result<Result<Ports, ExitCode>> {
    let opened = flags.open(&list(devices)?, workers, first)?;
    Ok(opened.map(|ports| Ports { ports, sources: Vec::new(), outputs: Vec::new() }))
}

/// Splits devices at `;`: they contain commas.
fn list(devices: &str) -> Result<Vec<String>> {
    let list: Vec<String> = devices.split(';').map(|device| device.trim().to_owned()).collect();
    match list.iter().any(String::is_empty) {
        true => Err(miette!("--io \"dpdk:{devices}\" names no device: dpdk:DEVICE[;DEVICE...]")),
        false => Ok(list),
    }
}

/// Ports, and the port of each source and output of a configuration.
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
    if program.stages > 1 {
        // The buffers and queues of devices are one worker's.
        errln!("--pipeline has no packets of DPDK: use --io raw, tap or xdp, or leave it out");
        return Ok(Err(Exit::NotPermitted.into()));
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
    let opened = flags.open(&devices, workers, 0)?;
    Ok(opened.map(|ports| Some(Ports { ports, sources, outputs })))
}

impl Ports {
    /// Description of all ports.
    pub(crate) fn description(&self) -> String {
        self.ports.names().join(", ")
    }

    /// Description of each source's port.
    pub(crate) fn descriptions(&self) -> Vec<String> {
        self.sources.iter().map(|&port| self.ports.names()[port].clone()).collect()
    }

    /// Packets lost before they arrived here.
    pub(crate) fn lost(&self) -> LostBefore {
        let dpdk::Lost { no_room, unfit } = self.ports.lost();
        LostBefore { no_room, unfit }
    }

    /// Runs an XDP program on incoming packets, until the limit.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        taken: Taking,
        until: &Until,
        control: Option<&Control>,
    ) -> Result<Ran> {
        let mut attend = |floor: &Floor<'_>| control.iter().for_each(|control| control.attend(floor));
        let run = |plan: &Plan<'_>, crew: &Crew<'_>| self.ports.run(engine, plan, crew, Some(&mut attend));
        until.during(taking(taken), run).into_diagnostic()
    }

    /// Runs a graph on incoming packets. `between` is called between batches; with several workers now and
    /// then, when all of them are between two.
    pub(crate) fn run_graph(
        &mut self,
        engine: &mut Engine,
        taken: Taking,
        until: &Until,
        between: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        let Ports { ports, sources, outputs } = self;
        let ends = Ends { sources, outputs };
        until.during(taking(taken), |plan, crew| ports.run_graph(engine, &ends, plan, crew, between))
    }
}
