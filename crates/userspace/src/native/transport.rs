//! Transports of packets to and from interfaces, and interfaces that cannot be opened.

use std::process::ExitCode;

use miette::{Result, miette};
use millstream_ports::PortError;

use crate::exit::Exit;

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

    /// Privileges that it needs, as a message.
    fn rights(self) -> &'static str {
        match self {
            PacketTransport::Xdp => "--io xdp:... needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
            PacketTransport::Raw => "--io raw:... needs root, or CAP_NET_RAW",
            PacketTransport::Tap | PacketTransport::Tun => "--io tap:... needs root, or CAP_NET_ADMIN",
        }
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
