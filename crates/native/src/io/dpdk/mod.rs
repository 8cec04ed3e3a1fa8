//! Packets from and to DPDK's ports: virtual devices, and NICs.
//!
//! A worker has one queue of every port and the thread that it runs on, and polls: packets go from the first step to the last by it. Which flows come by
//! which queue is the device's business (RSS where it has that). Packets are worked on where the driver put them, or copied into buffers of ours and
//! back ([`Metadata`]); either way they have the room around them that they have everywhere.
//!
//! Buffers lie below 4 GiB, where the 32-bit fields of packets reach, in memory of ours that DPDK is given; hugepages are not needed for them.
//!
//! Invariant: as in [`super`]. What a driver takes no more is dropped, and counted, for [`Reason::NoRoom`](super::Reason::NoRoom).

mod device;
mod serve;

use std::io;

use crate::engine::Engine;
use device::Device;

use super::graph::{Ends, GraphRan};
use super::{Crew, Ran};

/// Whether packets are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Metadata {
    /// Descriptors over the driver's buffers.
    #[default]
    Overlay,
    /// Into buffers of ours with their descriptors, and into others of the driver's to be sent.
    Copy,
}

/// What drivers have dropped before it came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// For want of a buffer or descriptor.
    pub no_room: u64,
    /// For what is wrong with a packet.
    pub unfit: u64,
}

/// Why there are no ports.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// EAL does not start.
    #[error("EAL does not start with `{arguments}`: {}", device::meaning(*errno))]
    Eal {
        /// Its arguments.
        arguments: String,
        /// Why.
        errno: i32,
    },
    /// EAL was started in this process before.
    #[error("DPDK can be started only once in a process")]
    Again,
    /// No driver takes the device, or there is none.
    #[error("DPDK has no port {0:?}")]
    NoPort(String),
    /// A port does not start.
    #[error("{device}: {reason}")]
    Port {
        /// The device.
        device: String,
        /// In DPDK's words.
        reason: String,
    },
    /// No memory for buffers.
    #[error("no memory for buffers: {0}")]
    Memory(io::Error),
    /// DPDK makes no buffers of it.
    #[error("no pool of buffers: {0}; they need addresses that are virtual: `--iova-mode=va`")]
    Pool(String),
}

impl Error {
    /// Whether other arguments would help, rather than another machine.
    pub fn is_input(&self) -> bool {
        matches!(self, Error::Eal { errno: libc::EINVAL | libc::ENODEV, .. } | Error::NoPort(_))
    }
}

/// `DPDK 22.11.11`.
pub fn version() -> String {
    device::version()
}

/// How ports are served.
#[derive(Clone, Copy)]
pub struct Plan<'p> {
    /// Packets that are taken at once, at most.
    pub batch: usize,
    /// Whether they are copied.
    pub metadata: Metadata,
    /// No more packets are received than these, by one worker; by several, a batch each more.
    pub most: u64,
    /// Whether to go on, asked by all workers after every batch and while nothing comes.
    pub goes_on: &'p (dyn Fn() -> bool + Sync),
}

/// Ports that were started, in the order in which their devices were named.
pub struct Ports {
    device: Device,
    names: Vec<String>,
}

impl Ports {
    /// Starts EAL with these arguments and the devices: the names and arguments of virtual ones, or the addresses of NICs. Each port has a queue a
    /// worker.
    ///
    /// # Errors
    /// [`Error`] by what is missing.
    pub fn open(eal: &[String], devices: &[String], workers: u16) -> Result<Ports, Error> {
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
        Ok(Ports { device, names })
    }

    /// Their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What their drivers have dropped.
    pub fn lost(&self) -> Lost {
        self.device.lost()
    }

    /// Runs a program on what comes. The port at place 0 is interface `first` to it, the next one `first + 1`, and so on.
    ///
    /// # Errors
    /// If there is no memory for a batch, or a worker cannot begin.
    pub fn run(&mut self, engine: &Engine, first: u32, plan: &Plan<'_>, crew: &Crew<'_>) -> io::Result<Ran> {
        serve::programs(&mut self.device, engine, first, plan, crew)
    }

    /// Runs a graph on what comes: for each source its port, for each output that by which packets leave. One worker does it,
    /// and asks `between`, too, between two batches.
    ///
    /// # Errors
    /// As for [`Ports::run`].
    pub fn run_graph(
        &mut self,
        engine: &mut Engine,
        ends: &Ends<'_>,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
        between: impl FnMut(&mut Engine) -> bool,
    ) -> io::Result<GraphRan> {
        serve::graph(&mut self.device, engine, ends, plan, crew, between)
    }

    /// As [`Ports::run_graph`], by as many workers as the engine is for.
    ///
    /// # Errors
    /// As there.
    pub fn run_graph_by(
        &mut self,
        engine: &Engine,
        ends: &Ends<'_>,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
    ) -> io::Result<GraphRan> {
        serve::graph_by(&mut self.device, engine, ends, plan, crew)
    }
}

/// Whether a device is named by its place on the PCI bus: `0000:01:00.0` or `01:00.0`.
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
