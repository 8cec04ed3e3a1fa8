//! Packets from and to DPDK's ports: virtual devices, and NICs.
//!
//! A worker has one queue of every port ([`super::queues`]), and polls. Packets are processed in the driver's
//! buffers (overlay, [`super::queues::BufferMode::InPlace`]), or copied into our buffers and back; either way
//! they have the usual room around them. A burst with a packet in several buffers (chained mbufs) is copied
//! ([`super::burst_batches`]), and a packet longer than a buffer is copied into several.
//!
//! Buffers lie below 4 GiB, within the range of the 32-bit fields of packets, in memory that we give to DPDK;
//! they need no hugepages.
//!
//! Invariant: as in [`super::queues`].

mod device;
mod serve;

use std::io;

use self::device::{DpdkDevice, DpdkQueues};
use self::serve::DpdkPacketDriver;
use super::graph::{GraphPortNumbers, GraphRunStats};
use super::queues::{PollModeServer, ServeConfig};
use super::safepoint::MainThreadTask;
use super::{RunStats, WorkerHooks};
use millstream_native::NativeEngine;

/// Packets that drivers have dropped before they were received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DpdkDropCounts {
    /// Dropped because there was no buffer or descriptor.
    pub no_room: u64,
    /// Dropped because of an error in the packet.
    pub unfit: u64,
}

/// Reason why there are no ports.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
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
    /// A port does not take an Ethernet address.
    #[error("{device} takes no other Ethernet address: {reason}")]
    Address {
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

impl DpdkError {
    /// Returns true if other arguments would help, rather than another machine.
    pub fn is_input(&self) -> bool {
        matches!(self, DpdkError::Eal { errno: libc::EINVAL | libc::ENODEV, .. } | DpdkError::NoPort(_))
    }
}

/// `DPDK 22.11.11`.
pub fn version() -> String {
    device::version()
}

/// Started ports, in the order in which their devices were named.
pub struct DpdkPortSet {
    device: DpdkDevice,
    names: Vec<String>,
    /// Interface numbers for XDP programs.
    numbers: Vec<u32>,
}

impl DpdkPortSet {
    /// Starts EAL with these arguments and the devices: the names and arguments of virtual ones, or the
    /// addresses of NICs. Each port has one queue per worker; the first port is interface `first` to XDP
    /// programs, the next one `first + 1`, and so on. NICs get this MTU; with one that exceeds a buffer,
    /// packets come in several.
    ///
    /// # Errors
    /// [`Error`] if something is missing.
    pub fn open(
        eal: &[String],
        devices: &[String],
        workers: u16,
        first: u32,
        mtu: u16,
    ) -> Result<DpdkPortSet, DpdkError> {
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
        let nics: Vec<_> = names.iter().map(|name| (name.as_str(), is_address(name))).collect();
        let device = DpdkDevice::open(&arguments, &nics, workers, mtu)?;
        let numbers = (first..).take(names.len()).collect();
        Ok(DpdkPortSet { device, names, numbers })
    }

    /// Their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Gives the port with this index an Ethernet address until it is closed.
    ///
    /// # Errors
    /// [`DpdkError::Address`] if its driver does not.
    pub fn set_address(&mut self, port: usize, address: [u8; 6]) -> Result<(), DpdkError> {
        let refused = |reason| DpdkError::Address { device: self.names[port].clone(), reason };
        self.device.set_address(port, address).map_err(refused)
    }

    /// Packets that their drivers have dropped.
    pub fn lost(&self) -> DpdkDropCounts {
        self.device.lost()
    }

    /// Runs an XDP program on received packets, by all workers of the engine. `attend` runs beside them.
    ///
    /// # Errors
    /// If there is no memory for a batch, or a worker cannot begin.
    pub fn run(
        &mut self,
        engine: &mut NativeEngine,
        plan: &ServeConfig<'_>,
        crew: &WorkerHooks<'_>,
        attend: Option<MainThreadTask<'_>>,
    ) -> io::Result<RunStats> {
        self.served(plan, crew).run(engine, attend)
    }

    /// Runs a graph on the packets received by the ports of its sources, by all workers of the engine.
    /// `between` is called between batches; with several workers now and then, when all of them are between
    /// two. It may replace the engine by another one.
    ///
    /// # Errors
    /// As for [`DpdkPortSet::run`].
    pub fn run_graph(
        &mut self,
        engine: &mut NativeEngine,
        ends: &GraphPortNumbers<'_>,
        plan: &ServeConfig<'_>,
        crew: &WorkerHooks<'_>,
        between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        self.served(plan, crew).run_graph(engine, ends, between)
    }

    fn served<'s>(
        &'s mut self,
        plan: &'s ServeConfig<'s>,
        crew: &'s WorkerHooks<'s>,
    ) -> PollModeServer<
        's,
        DpdkQueues<'s>,
        impl Fn(DpdkQueues<'s>, &[usize], bool) -> io::Result<DpdkPacketDriver<'s>> + Sync,
    > {
        let enter = move |line, lists: &[usize], open| DpdkPacketDriver::enter(line, lists, open, plan);
        PollModeServer { lines: self.device.lines(), enter, numbers: &self.numbers, plan, crew }
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
