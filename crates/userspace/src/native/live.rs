//! `--io xdp:INTERFACE`, `raw:` and `tap:`: packets of interfaces, through AF_XDP, raw sockets or as TAP
//! interfaces, until told to stop.

use std::io;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, miette};
use millstream_kernel::interface_index;
use millstream_native::NativeEngine;
use millstream_native_io::live::{PacketCallback, PacketPort, serve};
use millstream_native_io::packet_ports::serve_by;
use millstream_native_io::queues::BufferMode;
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::{PacketAccounting, RunStats};
use millstream_ports::{PortDropCounts, PortError, SyscallPort, XdpPort, XskOptions};

use super::control::MapControlSocket;
use super::port_options;
use super::stop_condition::StopCondition;
use super::transport::{PacketTransport, PortOpenError};

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

impl PacketTransport {
    /// Opens an interface.
    pub(crate) fn open(self, name: &str) -> Result<InterfacePort, PortOpenError> {
        let wired = match self {
            PacketTransport::Xdp => XdpPort::open(name, &XskOptions::default()).map(InterfacePort::Xdp),
            PacketTransport::Raw => SyscallPort::raw(name).map(InterfacePort::Plain),
            PacketTransport::Tap => SyscallPort::tap(name).map(InterfacePort::Plain),
            PacketTransport::Tun => SyscallPort::tun(name).map(InterfacePort::Plain),
        };
        wired.map_err(|error| PortOpenError::new(self, error))
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
        let plain = plain.map_err(|error| PortOpenError::new(self, error))?;
        Ok(plain.into_iter().map(InterfacePort::Plain).collect())
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
