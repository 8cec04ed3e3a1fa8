//! Packets from and to DPDK's ports: virtual devices, and NICs.
//!
//! A worker has one queue of every port ([`super::queues`]), and polls. Packets are processed in the driver's
//! buffers (overlay, [`super::queues::Metadata::InPlace`]), or copied into our buffers and back; either way
//! they have the usual room around them.
//!
//! Buffers lie below 4 GiB, within the range of the 32-bit fields of packets, in memory that we give to DPDK;
//! they need no hugepages.
//!
//! Invariant: as in [`super::queues`].

mod device;
mod serve;

use std::io;

use self::device::{Device, Line};
use self::serve::Way;
use super::floor::Attend;
use super::graph::{Ends, GraphRan};
use super::queues::{Plan, Served};
use super::{Crew, Ran};
use crate::engine::Engine;

/// Packets that drivers have dropped before they were received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Dropped because there was no buffer or descriptor.
    pub no_room: u64,
    /// Dropped because of an error in the packet.
    pub unfit: u64,
}

/// Reason why there are no ports.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// EAL does not start.
    #[error("EAL does not start with `{arguments}`: {}", device::meaning(*errno))]
    Eal {
        /// Its arguments.
        arguments: String,
        /// Error number.
        errno: i32,
    },
    /// EAL has already been started in this process.
    #[error("DPDK can be started only once in a process")]
    Again,
    /// No driver takes the device, or it does not exist.
    #[error("DPDK has no port {0:?}")]
    NoPort(String),
    /// A port does not start.
    #[error("{device}: {reason}")]
    Port {
        /// The device.
        device: String,
        /// DPDK's error message.
        reason: String,
    },
    /// No memory for buffers.
    #[error("no memory for buffers: {0}")]
    Memory(io::Error),
    /// DPDK cannot make buffers in the memory.
    #[error("no pool of buffers: {0}; they need addresses that are virtual: `--iova-mode=va`")]
    Pool(String),
}

impl Error {
    /// Returns true if other arguments would help, rather than another machine.
    pub fn is_input(&self) -> bool {
        matches!(self, Error::Eal { errno: libc::EINVAL | libc::ENODEV, .. } | Error::NoPort(_))
    }
}

/// `DPDK 22.11.11`.
pub fn version() -> String {
    device::version()
}

/// Started ports, in the order in which their devices were named.
pub struct Ports {
    device: Device,
    names: Vec<String>,
    /// Interface numbers for XDP programs.
    numbers: Vec<u32>,
}

impl Ports {
    /// Starts EAL with these arguments and the devices: the names and arguments of virtual ones, or the
    /// addresses of NICs. Each port has one queue per worker; the first port is interface `first` to XDP
    /// programs, the next one `first + 1`, and so on.
    ///
    /// # Errors
    /// [`Error`] if something is missing.
    pub fn open(eal: &[String], devices: &[String], workers: u16, first: u32) -> Result<Ports, Error> {
        let name = |device: &String| device.split(',').next().unwrap_or_default().to_owned();
        let names: Vec<String> = devices.iter().map(name).collect();
        let mut arguments = eal.to_vec();
        for (device, name) in devices.iter().zip(&names) {
            arguments.push(if is_address(name) { "--allow" } else { "--vdev" }.to_owned());
            arguments.push(device.clone());
        }
        if !names.iter().any(|name| is_address(name)) {
            arguments.push("--no-pci".to_owned());
        }
        let device =
            Device::open(&arguments, &names.iter().map(String::as_str).collect::<Vec<_>>(), workers)?;
        let numbers = (first..).take(names.len()).collect();
        Ok(Ports { device, names, numbers })
    }

    /// Their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Packets that their drivers have dropped.
    pub fn lost(&self) -> Lost {
        self.device.lost()
    }

    /// Runs an XDP program on received packets, by all workers of the engine. `attend` runs beside them.
    ///
    /// # Errors
    /// If there is no memory for a batch, or a worker cannot begin.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
        attend: Option<Attend<'_>>,
    ) -> io::Result<Ran> {
        self.served(plan, crew).run(engine, attend)
    }

    /// Runs a graph on the packets received by the ports of its sources, by all workers of the engine.
    /// `between` is called between batches; with several workers now and then, when all of them are between
    /// two. It may replace the engine by another one.
    ///
    /// # Errors
    /// As for [`Ports::run`].
    pub fn run_graph(
        &mut self,
        engine: &mut Engine,
        ends: &Ends<'_>,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
        between: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        self.served(plan, crew).run_graph(engine, ends, between)
    }

    fn served<'s>(
        &'s mut self,
        plan: &'s Plan<'s>,
        crew: &'s Crew<'s>,
    ) -> Served<'s, Line<'s>, impl Fn(Line<'s>, &[usize], bool) -> io::Result<Way<'s>> + Sync> {
        let enter = move |line, lists: &[usize], open| Way::enter(line, lists, open, plan);
        Served { lines: self.device.lines(), enter, numbers: &self.numbers, plan, crew }
    }
}

/// Returns true if a device is named by its address on the PCI bus: `0000:01:00.0` or `01:00.0`.
fn is_address(name: &str) -> bool {
    name.split([':', '.']).count() >= 3 && name.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nics_are_told_from_names() {
        assert!(is_address("0000:01:00.0") && is_address("3b:00.1"));
        assert!(!is_address("net_pcap0") && !is_address("net_null") && !is_address("face"));
    }
}
