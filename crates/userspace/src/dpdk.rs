//! `--io dpdk:DEVICE`: packets of DPDK's ports.

use std::io;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use millstream_click::{ClickProgram, GraphSource};
use millstream_native::NativeEngine;
use millstream_native_io::dpdk::{self, DpdkError};
use millstream_native_io::graph::{GraphPortNumbers, GraphRunStats};
use millstream_native_io::queues::{BufferMode, ServeConfig};
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::{RunStats, WorkerHooks};

use crate::click::device_ports::{DevicePortSpec, DevicePorts, assign_ports, device_of};
use crate::exit::Exit;
use crate::native::LostBefore;
use crate::native::control::MapControlSocket;
use crate::native::port_options::MetadataMode;
use crate::native::stop_condition::StopCondition;

/// Batch size, and the buffers that packets are in.
pub(crate) type DpdkPortOptions = (u32, MetadataMode);

fn taking((batch, kept): DpdkPortOptions) -> (usize, BufferMode) {
    let metadata = match kept {
        MetadataMode::Copy => BufferMode::Copy,
        MetadataMode::Overlay | MetadataMode::Exchange => BufferMode::InPlace,
    };
    (batch as usize, metadata)
}

/// Flags of builds with DPDK.
#[derive(Debug, clap::Args)]
pub(crate) struct DpdkArgs {
    /// Arguments of DPDK's environment (EAL), with --io dpdk:...
    #[arg(
        long,
        value_name = "ARGUMENTS",
        allow_hyphen_values = true,
        default_value = "--no-huge -m 512 --no-shconf --no-telemetry --iova-mode=va --log-level=warning"
    )]
    eal: String,
    /// With --io dpdk:..., MTU of NICs. Beyond about 3,600 bytes, packets come in several buffers
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(68..=9702))]
    mtu: u16,
}

impl DpdkArgs {
    fn open(
        &self,
        devices: &[String],
        workers: u32,
        first: u32,
    ) -> Result<Result<dpdk::DpdkPortSet, ExitCode>> {
        let eal: Vec<String> = self.eal.split_whitespace().map(str::to_owned).collect();
        match dpdk::DpdkPortSet::open(&eal, devices, workers as u16, first, self.mtu) {
            Ok(ports) => Ok(Ok(ports)),
            Err(e) if e.is_input() => Err(miette!(help = help(&e), "--io dpdk:...: {e}")),
            Err(e) => {
                errln!("--io dpdk:...: {e}\n  {}", help(&e));
                Ok(Err(Exit::NotPermitted.into()))
            }
        }
    }
}

fn help(error: &DpdkError) -> &'static str {
    match error {
        DpdkError::NoPort(_) | DpdkError::Eal { errno: libc::ENODEV, .. } => {
            "devices are virtual ones (net_pcap0,rx_pcap=FILE; net_null0; net_tap0) or PCI addresses, bound to a \
             driver that DPDK can use"
        }
        DpdkError::Eal { .. } => "what DPDK says of it is above; `--eal ARGUMENTS` has other arguments",
        _ => "what DPDK says of it may be above",
    }
}

/// `DPDK 22.11.11`.
pub fn version() -> Option<String> {
    Some(dpdk::version())
}

/// Opens ports for these devices; to XDP programs they are interfaces from `first` on.
pub(crate) fn of_program(
    flags: &DpdkArgs,
    devices: &str,
    workers: u32,
    first: u32,
) -> Result<Result<DpdkDevicePorts, ExitCode>> {
    let opened = flags.open(&list(devices)?, workers, first)?;
    Ok(opened.map(|ports| DpdkDevicePorts { ports, sources: Vec::new(), outputs: Vec::new() }))
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
pub(crate) struct DpdkDevicePorts {
    ports: dpdk::DpdkPortSet,
    sources: Vec<usize>,
    outputs: Vec<usize>,
}

/// Ports for the devices of a configuration, if they are DPDK's.
pub(crate) fn of_graph(
    flags: &DpdkArgs,
    specs: &[String],
    program: &ClickProgram,
    workers: u32,
) -> Result<Result<Option<DpdkDevicePorts>, ExitCode>> {
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
        Ok(DevicePortSpec { device, ports: list(devices)? })
    };
    let said = found.into_iter().map(said).collect::<Result<_>>()?;
    let DevicePorts { ports: devices, sources, outputs } = assign_ports(said, program, "devices of DPDK")?;
    let sources = sources.into_iter().collect::<Option<_>>().ok_or_else(|| {
        miette!("--io dpdk:...: the configuration has sources of packets that are no devices")
    })?;
    let outputs = outputs.into_iter().collect::<Option<_>>();
    let outputs = outputs.ok_or_else(|| miette!("--io dpdk:...: the configuration writes files"))?;
    let sources: Vec<usize> = sources;
    let mut ports = match flags.open(&devices, workers, 0)? {
        Ok(ports) => ports,
        Err(refused) => return Ok(Err(refused)),
    };
    for (source, port) in program.sources.iter().zip(&sources) {
        let GraphSource::Device(device) = source else { continue };
        if let Some((_, address)) = program.devices.addresses.iter().find(|(name, _)| name == device) {
            ports.set_address(*port, *address).map_err(|error| {
                miette!(help = "leave out MAC of this device", "device {device:?}: {error}")
            })?;
        }
    }
    Ok(Ok(Some(DpdkDevicePorts { ports, sources, outputs })))
}

impl DpdkDevicePorts {
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
        let dpdk::DpdkDropCounts { no_room, unfit } = self.ports.lost();
        LostBefore { no_room, unfit }
    }

    /// Runs an XDP program on incoming packets, until the limit.
    pub(crate) fn run(
        &mut self,
        engine: &mut NativeEngine,
        taken: DpdkPortOptions,
        until: &StopCondition,
        control: Option<&MapControlSocket>,
    ) -> Result<RunStats> {
        let mut attend =
            |floor: &Safepoint<'_>| control.iter().for_each(|control| control.serve_until_done(floor));
        let run = |plan: &ServeConfig<'_>, crew: &WorkerHooks<'_>| {
            self.ports.run(engine, plan, crew, Some(&mut attend))
        };
        until.run_until(taking(taken), run).into_diagnostic()
    }

    /// Runs a graph on incoming packets. `between` is called between batches; with several workers now and
    /// then, when all of them are between two.
    pub(crate) fn run_graph(
        &mut self,
        engine: &mut NativeEngine,
        taken: DpdkPortOptions,
        until: &StopCondition,
        between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        let DpdkDevicePorts { ports, sources, outputs } = self;
        let ends = GraphPortNumbers { sources, outputs };
        until.run_until(taking(taken), |plan, crew| ports.run_graph(engine, &ends, plan, crew, between))
    }
}
