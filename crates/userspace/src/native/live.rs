//! `--io xdp:INTERFACE`, `raw:` and `tap:`: packets of interfaces, through AF_XDP, raw sockets or as TAP
//! interfaces, until told to stop.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_kernel::interface_index;
use millstream_lab::os;
use millstream_native::NativeEngine;
use millstream_native::io::live::{PacketCallback, PacketPort, serve};
use millstream_native::io::packet_ports::serve_by;
use millstream_native::io::queues::{BufferMode, ServeConfig};
use millstream_native::io::safepoint::Safepoint;
use millstream_native::io::{PacketAccounting, RunStats, WorkerHooks};
use millstream_ports::{PortDropCounts, PortError, SyscallPort, XdpPort, XskOptions};

use super::control::MapControlSocket;
use super::port_options;
use super::worker_cpus::bind;
use crate::exit::Exit;
use crate::progress::Progress;

/// A port, as the loop uses it.
pub(crate) enum InterfacePort {
    Xdp(XdpPort),
    Plain(SyscallPort),
}

impl PacketPort for InterfacePort {
    fn index(&self) -> u32 {
        match self {
            InterfacePort::Xdp(port) => port.interface().index(),
            InterfacePort::Plain(plain) => plain.index(),
        }
    }

    fn receive(&mut self, most: usize, take: PacketCallback<'_>) -> io::Result<usize> {
        match self {
            InterfacePort::Xdp(port) => port.receive(most, take),
            InterfacePort::Plain(plain) => plain.receive(most, take),
        }
        .map_err(io::Error::other)
    }

    fn send(&mut self, packet: &[u8]) -> bool {
        match self {
            InterfacePort::Xdp(port) => port.send(packet),
            InterfacePort::Plain(plain) => plain.send(packet),
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        let InterfacePort::Xdp(port) = self else { return Ok(true) };
        port.flush().map_err(io::Error::other)?;
        Ok(port.unsent() == 0)
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        match self {
            InterfacePort::Xdp(port) => port.wait(at_most),
            InterfacePort::Plain(plain) => plain.wait(at_most),
        }
        .map_err(io::Error::other)
    }
}

impl InterfacePort {
    pub(crate) fn description(&self) -> String {
        match self {
            InterfacePort::Xdp(port) => port_options::PortInfo::of(port.interface()).text(),
            InterfacePort::Plain(plain) => plain.name().to_owned(),
        }
    }

    /// Its properties, if it was opened by AF_XDP.
    pub(crate) fn port_info(&self) -> Option<port_options::PortInfo> {
        match self {
            InterfacePort::Xdp(port) => Some(port_options::PortInfo::of(port.interface())),
            InterfacePort::Plain(_) => None,
        }
    }

    pub(crate) fn lost(&mut self) -> Result<PortDropCounts, PortError> {
        match self {
            InterfacePort::Xdp(port) => Ok(port.lost()),
            InterfacePort::Plain(plain) => plain.lost(),
        }
    }
}

/// Transport of packets to and from interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketTransport {
    /// AF_XDP: all packets, which nobody else gets.
    Xdp,
    /// Raw sockets: copies of all packets.
    Raw,
    /// TAP interfaces, created for the run.
    Tap,
    /// The same with IP packets, for devices of a configuration without frames.
    Tun,
}

impl PacketTransport {
    /// The transport of this name.
    pub(crate) fn named(word: &str) -> Option<PacketTransport> {
        match word {
            "xdp" => Some(PacketTransport::Xdp),
            "raw" => Some(PacketTransport::Raw),
            "tap" => Some(PacketTransport::Tap),
            _ => None,
        }
    }

    /// Its name.
    pub(crate) fn word(self) -> &'static str {
        match self {
            PacketTransport::Xdp => "xdp:...",
            PacketTransport::Raw => "raw:...",
            PacketTransport::Tap | PacketTransport::Tun => "tap:...",
        }
    }

    /// Parses `--io`: the transport, and the interfaces; `None` if it is something else.
    pub(super) fn of(io: &str) -> Option<(PacketTransport, &str)> {
        let (word, names) = io.split_once(':')?;
        Some((PacketTransport::named(word)?, names))
    }

    /// Opens an interface.
    pub(crate) fn open(self, name: &str) -> Result<InterfacePort, PortOpenError> {
        let wired = match self {
            PacketTransport::Xdp => XdpPort::open(name, &XskOptions::default()).map(InterfacePort::Xdp),
            PacketTransport::Raw => SyscallPort::raw(name).map(InterfacePort::Plain),
            PacketTransport::Tap => SyscallPort::tap(name).map(InterfacePort::Plain),
            PacketTransport::Tun => SyscallPort::tun(name).map(InterfacePort::Plain),
        };
        wired.map_err(|error| PortOpenError { way: self, error })
    }

    /// Opens an interface for so many workers, each of which gets the packets of its flows. Returns no wires
    /// for AF_XDP, whose queues are distributed otherwise.
    pub(crate) fn open_by(self, name: &str, workers: u32) -> Result<Vec<InterfacePort>, PortOpenError> {
        let plain = match self {
            PacketTransport::Xdp => Ok(Vec::new()),
            PacketTransport::Raw => SyscallPort::raw_by(name, workers),
            PacketTransport::Tap => SyscallPort::tap_by(name, workers),
            PacketTransport::Tun => SyscallPort::tun_by(name, workers),
        };
        let plain = plain.map_err(|error| PortOpenError { way: self, error })?;
        Ok(plain.into_iter().map(InterfacePort::Plain).collect())
    }

    /// Privileges that it needs, as a message.
    fn rights(self) -> &'static str {
        match self {
            PacketTransport::Xdp => "--io xdp:... needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
            PacketTransport::Raw => "--io raw:... needs root, or CAP_NET_RAW",
            PacketTransport::Tap | PacketTransport::Tun => "--io tap:... needs root, or CAP_NET_ADMIN",
        }
    }
}

/// Open interfaces, by worker.
pub(super) struct WorkerPorts(Vec<Vec<InterfacePort>>);

/// Opens interfaces for so many workers; returns the wires of each.
pub(crate) fn open_all<'n>(
    interfaces: impl IntoIterator<Item = (PacketTransport, &'n str)>,
    workers: u32,
) -> Result<Vec<Vec<InterfacePort>>, PortOpenError> {
    let mut all: Vec<Vec<InterfacePort>> = (0..workers).map(|_| Vec::new()).collect();
    for (way, name) in interfaces {
        match workers {
            1 => all[0].push(way.open(name)?),
            _ => way.open_by(name, workers)?.into_iter().zip(&mut all).for_each(|(wire, of)| of.push(wire)),
        }
    }
    Ok(all)
}

/// Packets lost before they arrived at these wires.
pub(crate) fn lost<'w>(
    wires: impl IntoIterator<Item = &'w mut InterfacePort>,
) -> Result<PortDropCounts, PortError> {
    wires.into_iter().map(InterfacePort::lost).sum()
}

/// Limits of a run: a number of packets, a time, and Ctrl-C.
pub(crate) struct StopCondition {
    packets: Option<u64>,
    end: Option<Instant>,
    _bar: Progress,
}

impl StopCondition {
    /// Starts the time, and catches Ctrl-C from now on.
    pub(crate) fn begin(packets: Option<u64>, seconds: Option<f64>) -> StopCondition {
        os::catch_interrupts();
        let time = seconds.map(Duration::from_secs_f64);
        let bar = match time {
            Some(time) => Progress::timed("serving", time),
            None => Progress::open("serving, until Ctrl-C"),
        };
        StopCondition { packets, end: time.map(|time| Instant::now() + time), _bar: bar }
    }

    /// Returns true if the run goes on after so many received packets.
    pub(crate) fn should_continue(&self, received: u64) -> bool {
        !os::interrupted()
            && self.packets.is_none_or(|n| received < n)
            && self.end.is_none_or(|end| Instant::now() < end)
    }

    /// Serves queues, by workers with processors of their own and batches of this size, until the limit.
    pub(crate) fn run_until<R>(
        &self,
        (batch, metadata): (usize, BufferMode),
        run: impl FnOnce(&ServeConfig<'_>, &WorkerHooks<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let goes_on = || self.should_continue(0);
        let most = self.packets.unwrap_or(u64::MAX);
        run(&ServeConfig { batch, metadata, most, goes_on: &goes_on }, &WorkerHooks { enter: &bind })
    }
}

impl WorkerPorts {
    /// Opens interfaces, separated by commas, for so many workers.
    pub(super) fn open(
        way: PacketTransport,
        names: &str,
        workers: u32,
    ) -> Result<WorkerPorts, PortOpenError> {
        open_all(names.split(',').map(|name| (way, name)), workers).map(WorkerPorts)
    }

    /// Indices by which tables refer to the first two of these interfaces, which must exist; a single one
    /// counts twice.
    pub(super) fn pair(names: &str) -> Result<[u32; 2]> {
        let mut indices = names.split(',').map(interface_index);
        let first = indices.next().ok_or_else(|| miette!("no interface is named"))?.into_diagnostic()?;
        Ok([first, indices.next().unwrap_or(Ok(first)).into_diagnostic()?])
    }

    /// Description of the interfaces.
    pub(super) fn description(&self) -> String {
        self.0.iter().take(1).flatten().map(InterfacePort::description).collect::<Vec<_>>().join(", ")
    }

    /// Runs packets until the limit, or Ctrl-C.
    pub(super) fn serve(
        &mut self,
        engine: &mut NativeEngine,
        batch: usize,
        until: &StopCondition,
        control: Option<&MapControlSocket>,
    ) -> Result<(RunStats, PortDropCounts)> {
        let mut goes_on = |account: &PacketAccounting, engine: &mut NativeEngine| {
            control.iter().for_each(|control| control.serve(engine));
            until.should_continue(account.received)
        };
        let ran = match &mut self.0[..] {
            [only] => serve(engine, only, batch, &mut goes_on, &mut |_| {}),
            several => until.run_until((batch, BufferMode::Copy), |plan, crew| {
                let mut attend = |floor: &Safepoint<'_>| {
                    control.iter().for_each(|control| control.serve_until_done(floor))
                };
                serve_by(engine, several, plan, crew, Some(&mut attend))
            }),
        };
        let ran = ran.into_diagnostic()?;
        Ok((ran, lost(self.0.iter_mut().flatten()).into_diagnostic()?))
    }
}

/// Interfaces that cannot be opened.
pub(crate) struct PortOpenError {
    way: PacketTransport,
    error: PortError,
}

impl PortOpenError {
    pub(super) fn new(way: PacketTransport, error: PortError) -> PortOpenError {
        PortOpenError { way, error }
    }

    /// Reports the error, and returns the exit code: unsupported here, lacking rights, or a mistake.
    pub(crate) fn exit(self) -> Result<ExitCode> {
        let PortOpenError { way, error: e } = self;
        match &e {
            _ if e.is_forbidden() => {
                errln!("{e}\n  {}", way.rights());
                Ok(Exit::NotPermitted.into())
            }
            _ if way == PacketTransport::Xdp && e.is_taken() => Err(miette!(
                help = "`ip link set dev NAME xdp off` detaches an XDP program that is not needed",
                "{e}"
            )),
            PortError::Queues { interface, workers, .. } => Err(miette!(
                help = format!(
                    "`ethtool -L {interface} combined {workers}` gives it as many, if its driver has \
                     them; or leave --workers out"
                ),
                "{e}"
            )),
            PortError::NoZeroCopy { .. } => {
                errln!("{e}\n  leave --zero-copy out, and the kernel copies");
                Ok(Exit::NotPermitted.into())
            }
            PortError::Memory { .. } => Err(miette!(
                help = "frames lie below 2 GiB; `ethtool -L NAME combined N` gives an interface fewer queues",
                "{e}"
            )),
            _ => Err(miette!("{e}")),
        }
    }
}
