//! Ports of a switch: interfaces and capture files.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_kernel::{KernelError, PacketSocket, interface_index};
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_p4_switch::SentPacket;

/// Endings of the names of capture files.
const CAPTURES: [&str; 3] = [".pcap", ".pcapng", ".cap"];

/// A port as it is given: `PORT@INTERFACE`, or `PORT@IN.pcap[:OUT.pcap]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PortSpec {
    number: u64,
    device: PortDevice,
}

/// Other side of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PortDevice {
    Interface(String),
    Captures { input: Option<PathBuf>, output: Option<PathBuf> },
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PortSpec, String> {
        let (number, device) =
            text.split_once('@').ok_or("a port is PORT@INTERFACE, or PORT@IN.pcap:OUT.pcap")?;
        let number = number.parse::<u32>().map_err(|_| format!("`{number}` is no number of a port"))?;
        let (input, output) = device.split_once(':').map_or((device, None), |(i, o)| (i, Some(o)));
        let is_capture = |name: &str| CAPTURES.iter().any(|ending| name.ends_with(ending));
        let path = |name: &str| (!name.is_empty()).then(|| PathBuf::from(name));
        let device = match output {
            _ if device.is_empty() => return Err("the interface's name is missing".to_owned()),
            Some(output) => PortDevice::Captures { input: path(input), output: path(output) },
            None if is_capture(input) => PortDevice::Captures { input: path(input), output: None },
            None => PortDevice::Interface(device.to_owned()),
        };
        Ok(PortSpec { number: number.into(), device })
    }
}

impl PortSpec {
    /// Returns true if the port is an interface.
    pub(crate) fn is_interface(&self) -> bool {
        matches!(self.device, PortDevice::Interface(_))
    }
}

/// A capture file that is being written.
type CaptureWriter = Mutex<PcapWriter<BufWriter<File>>>;

/// Counters of a port.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Packets that could not be sent.
    pub(crate) unsent: AtomicU64,
    /// Packets that came in and found no room in the socket.
    pub(crate) missed: AtomicU64,
}

/// Other side of a port that is open.
pub(crate) enum OpenDevice {
    /// An interface; none while it is gone.
    Interface { name: String, socket: RwLock<Option<Arc<PacketSocket>>> },
    /// Capture files.
    Captures { input: Option<PathBuf>, output: Mutex<Option<PcapWriter<BufWriter<File>>>> },
}

/// A port that is open.
pub(crate) struct SwitchPort {
    pub(crate) number: u64,
    pub(crate) device: OpenDevice,
    /// Copies of the packets that come in and that leave.
    copies: Option<[CaptureWriter; 2]>,
    pub(crate) counters: PortCounters,
}

/// Ports of a switch.
pub(crate) struct SwitchPorts {
    pub(crate) all: Vec<SwitchPort>,
    /// Packets to ports that the switch does not have.
    pub(crate) nowhere: AtomicU64,
}

fn create(path: &Path) -> Result<PcapWriter<BufWriter<File>>> {
    let file = File::create(path);
    let writer = file.and_then(|file| PcapWriter::new(BufWriter::new(file), PcapHeader::default()));
    writer.into_diagnostic().wrap_err_with(|| format!("cannot write {}", path.display()))
}

/// Writes a copy of a packet.
fn copy(to: Option<&CaptureWriter>, data: &[u8], time: u64) {
    let Some(writer) = to else { return };
    let written = writer.lock().unwrap_or_else(PoisonError::into_inner).write(data, time, 0);
    if let Err(error) = written {
        tracing::debug!("a copy of a packet is lost: {error}");
    }
}

/// Opens an interface of this name.
pub(crate) fn open_interface(name: &str) -> Result<Arc<PacketSocket>, KernelError> {
    PacketSocket::open(interface_index(name)?).map(Arc::new)
}

impl SwitchPorts {
    /// Opens all ports.
    ///
    /// # Errors
    /// If two have the same number, or an interface or file cannot be opened.
    pub(crate) fn open(specs: &[PortSpec], copies: Option<&Path>) -> Result<SwitchPorts> {
        let mut all: Vec<SwitchPort> = Vec::new();
        for spec in specs {
            if all.iter().any(|port| port.number == spec.number) {
                return Err(miette::miette!("the port {} is given twice", spec.number));
            }
            let device = match &spec.device {
                PortDevice::Interface(name) => {
                    let socket = open_interface(name)
                        .into_diagnostic()
                        .wrap_err_with(|| format!("cannot open the interface {name}"))?;
                    OpenDevice::Interface { name: name.clone(), socket: RwLock::new(Some(socket)) }
                }
                PortDevice::Captures { input, output } => {
                    let output = output.as_ref().map(|path| create(path)).transpose()?;
                    OpenDevice::Captures { input: input.clone(), output: Mutex::new(output) }
                }
            };
            let copies = match (&spec.device, copies) {
                (PortDevice::Interface(name), Some(folder)) => {
                    let copy = |way: &str| create(&folder.join(format!("{name}_{way}.pcap"))).map(Mutex::new);
                    Some([copy("in")?, copy("out")?])
                }
                _ => None,
            };
            all.push(SwitchPort { number: spec.number, device, copies, counters: PortCounters::default() });
        }
        Ok(SwitchPorts { all, nowhere: AtomicU64::new(0) })
    }

    /// Sends packets, with this time in capture files, in nanoseconds.
    pub(crate) fn send(&self, packets: &[SentPacket], time: u64) {
        for packet in packets {
            match self.all.iter().find(|port| port.number == packet.port) {
                Some(port) => port.send(&packet.data, time),
                None => _ = self.nowhere.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    /// Ends the capture files.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(crate) fn finish(&self) -> io::Result<()> {
        for port in &self.all {
            if let OpenDevice::Captures { output, .. } = &port.device {
                let writer = output.lock().unwrap_or_else(PoisonError::into_inner).take();
                writer.map_or(Ok(()), PcapWriter::finish)?;
            }
            for copy in port.copies.iter().flatten() {
                copy.lock().unwrap_or_else(PoisonError::into_inner).flush()?;
            }
        }
        Ok(())
    }
}

impl SwitchPort {
    /// Notes a packet that came in.
    pub(crate) fn note_received(&self, data: &[u8], time: u64) {
        self.counters.received.fetch_add(1, Ordering::Relaxed);
        copy(self.copies.as_ref().map(|[input, _]| input), data, time);
    }

    /// Packets that came in and found no room in the socket, until now.
    pub(crate) fn missed(&self) -> u64 {
        let missed = &self.counters.missed;
        if let OpenDevice::Interface { socket, .. } = &self.device {
            let socket = socket.read().unwrap_or_else(PoisonError::into_inner).clone();
            let since = socket.and_then(|socket| socket.take_drop_count().ok()).unwrap_or(0);
            missed.fetch_add(since, Ordering::Relaxed);
        }
        missed.load(Ordering::Relaxed)
    }

    fn send(&self, data: &[u8], time: u64) {
        copy(self.copies.as_ref().map(|[_, output]| output), data, time);
        let sent = match &self.device {
            OpenDevice::Interface { socket, .. } => {
                let socket = socket.read().unwrap_or_else(PoisonError::into_inner).clone();
                socket.is_some_and(|socket| match socket.send(data) {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::debug!("port {}: {error}", self.number);
                        false
                    }
                })
            }
            OpenDevice::Captures { output, .. } => {
                let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                output.as_mut().is_some_and(|writer| writer.write(data, time, 0).is_ok())
            }
        };
        let counter = if sent { &self.counters.sent } else { &self.counters.unsent };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_interfaces_or_capture_files() {
        let spec: PortSpec = "3@veth0".parse().unwrap();
        assert_eq!(spec, PortSpec { number: 3, device: PortDevice::Interface("veth0".into()) });
        let spec: PortSpec = "0@in.pcap:out.pcap".parse().unwrap();
        assert!(!spec.is_interface());
        assert!(matches!(spec.device, PortDevice::Captures { input: Some(_), output: Some(_) }));
        for wrong in ["veth0", "x@veth0", "1@", "-1@veth0"] {
            assert!(wrong.parse::<PortSpec>().is_err(), "{wrong}");
        }
    }
}
