//! Interfaces with a system call for each packet, for convenience: raw sockets, and TAP and TUN interfaces
//! that are made for the purpose.
//!
//! A raw socket takes nothing from anybody: the host's stack gets the packets, too, and XDP programs come
//! first. For packets that a program of this host sends the kernel may have left the checksum to the card
//! (`ethtool -K NAME tx off` at the sender).

use std::time::Duration;

use millstream_kernel::{LONGEST_FRAME, PacketSocket, Tap};

use crate::{PortDropCounts, PortError};

/// An interface.
pub struct SyscallPort {
    name: String,
    way: SyscallBackend,
    frame: Vec<u8>,
    lost: u64,
}

enum SyscallBackend {
    Raw(PacketSocket),
    Tap(Tap),
}

impl SyscallPort {
    /// Listens at an interface of this network namespace.
    ///
    /// # Errors
    /// If there is none of that name, or this process lacks the rights.
    pub fn raw(name: &str) -> Result<SyscallPort, PortError> {
        let index = millstream_kernel::interface_index(name)?;
        Ok(SyscallPort::new(name, SyscallBackend::Raw(PacketSocket::open(index)?)))
    }

    /// Makes a TAP interface, which is removed with this value, or takes a persistent one; sets it up.
    ///
    /// # Errors
    /// If there is another interface of that name, another process has it, or this process lacks the rights.
    pub fn tap(name: &str) -> Result<SyscallPort, PortError> {
        Ok(SyscallPort::new(name, SyscallBackend::Tap(Tap::open(name)?)))
    }

    /// As [`SyscallPort::tap`], for a TUN interface: its packets are IP packets, without Ethernet.
    ///
    /// # Errors
    /// As for [`SyscallPort::tap`].
    pub fn tun(name: &str) -> Result<SyscallPort, PortError> {
        Ok(SyscallPort::new(name, SyscallBackend::Tap(Tap::open_tun(name)?)))
    }

    /// As [`SyscallPort::raw`], for so many workers: each gets the packets of its flows.
    ///
    /// # Errors
    /// As for [`SyscallPort::raw`].
    pub fn raw_by(name: &str, workers: u32) -> Result<Vec<SyscallPort>, PortError> {
        let sockets = PacketSocket::open_by_flow(millstream_kernel::interface_index(name)?, workers)?;
        Ok(sockets.into_iter().map(|socket| SyscallPort::new(name, SyscallBackend::Raw(socket))).collect())
    }

    /// As [`SyscallPort::tap`], for so many workers.
    ///
    /// # Errors
    /// As for [`SyscallPort::tap`], and for a persistent interface that has one queue only.
    pub fn tap_by(name: &str, workers: u32) -> Result<Vec<SyscallPort>, PortError> {
        Ok(Tap::open_queues(name, workers)?
            .into_iter()
            .map(|tap| SyscallPort::new(name, SyscallBackend::Tap(tap)))
            .collect())
    }

    /// As [`SyscallPort::tun`], for so many workers.
    ///
    /// # Errors
    /// As for [`SyscallPort::tap_by`].
    pub fn tun_by(name: &str, workers: u32) -> Result<Vec<SyscallPort>, PortError> {
        Ok(Tap::open_tun_queues(name, workers)?
            .into_iter()
            .map(|tap| SyscallPort::new(name, SyscallBackend::Tap(tap)))
            .collect())
    }

    fn new(name: &str, way: SyscallBackend) -> SyscallPort {
        SyscallPort { name: name.into(), way, frame: vec![0; LONGEST_FRAME], lost: 0 }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the namespace.
    pub fn index(&self) -> u32 {
        match &self.way {
            SyscallBackend::Raw(socket) => socket.ifindex(),
            SyscallBackend::Tap(tap) => tap.ifindex(),
        }
    }

    /// Hands over at most so many received packets, and returns their number.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        for taken in 0..most {
            let frame = &mut self.frame;
            let length = match &self.way {
                SyscallBackend::Raw(socket) => socket.receive_into(frame),
                SyscallBackend::Tap(tap) => tap.receive(frame),
            };
            match length? {
                Some(length) => take(&self.frame[..length]),
                None => return Ok(taken),
            }
        }
        Ok(most)
    }

    /// Sends a packet; `false` if the interface does not take it: it has no room, is down, or the packet is
    /// too long for it.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        match &self.way {
            SyscallBackend::Raw(socket) => socket.send(packet).is_ok(),
            SyscallBackend::Tap(tap) => tap.send(packet).is_ok(),
        }
    }

    /// Waits until a packet is received, for at most so long.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn wait(&self, at_most: Duration) -> Result<(), PortError> {
        let waited = match &self.way {
            SyscallBackend::Raw(socket) => PacketSocket::wait(std::slice::from_ref(socket), at_most),
            SyscallBackend::Tap(tap) => tap.wait(at_most),
        };
        Ok(waited?)
    }

    /// Packets that the kernel dropped before they came here; unknown for TAP interfaces.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn lost(&mut self) -> Result<PortDropCounts, PortError> {
        if let SyscallBackend::Raw(socket) = &self.way {
            self.lost += socket.take_drop_count()?;
        }
        Ok(PortDropCounts { no_room: self.lost, unfit: 0 })
    }
}
