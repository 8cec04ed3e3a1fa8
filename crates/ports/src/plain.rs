//! Interfaces with a system call for each packet, for convenience: raw sockets, and TAP and TUN interfaces
//! that are made for the purpose.
//!
//! A raw socket takes nothing from anybody: the host's stack gets the packets, too, and XDP programs come
//! first. For packets that a program of this host sends the kernel may have left the checksum to the card
//! (`ethtool -K NAME tx off` at the sender).

use std::time::Duration;

use millstream_kernel::{LONGEST_FRAME, PacketSocket, Tap};

use crate::{Error, Lost};

/// An interface.
pub struct Plain {
    name: String,
    way: Way,
    frame: Vec<u8>,
    lost: u64,
}

enum Way {
    Raw(PacketSocket),
    Tap(Tap),
}

impl Plain {
    /// Listens at an interface of this network namespace.
    ///
    /// # Errors
    /// If there is none of that name, or this process lacks the rights.
    pub fn raw(name: &str) -> Result<Plain, Error> {
        let index = millstream_kernel::interface_index(name)?;
        Ok(Plain::new(name, Way::Raw(PacketSocket::open(index)?)))
    }

    /// Makes a TAP interface, which is removed with this value, or takes a persistent one; sets it up.
    ///
    /// # Errors
    /// If there is another interface of that name, another process has it, or this process lacks the rights.
    pub fn tap(name: &str) -> Result<Plain, Error> {
        Ok(Plain::new(name, Way::Tap(Tap::open(name)?)))
    }

    /// As [`Plain::tap`], for a TUN interface: its packets are IP packets, without Ethernet.
    ///
    /// # Errors
    /// As for [`Plain::tap`].
    pub fn tun(name: &str) -> Result<Plain, Error> {
        Ok(Plain::new(name, Way::Tap(Tap::open_tun(name)?)))
    }

    /// As [`Plain::raw`], for so many workers: each gets the packets of its flows.
    ///
    /// # Errors
    /// As for [`Plain::raw`].
    pub fn raw_by(name: &str, workers: u32) -> Result<Vec<Plain>, Error> {
        let sockets = PacketSocket::open_by_flow(millstream_kernel::interface_index(name)?, workers)?;
        Ok(sockets.into_iter().map(|socket| Plain::new(name, Way::Raw(socket))).collect())
    }

    /// As [`Plain::tap`], for so many workers.
    ///
    /// # Errors
    /// As for [`Plain::tap`], and for a persistent interface that has one queue only.
    pub fn tap_by(name: &str, workers: u32) -> Result<Vec<Plain>, Error> {
        Ok(Tap::open_queues(name, workers)?.into_iter().map(|tap| Plain::new(name, Way::Tap(tap))).collect())
    }

    /// As [`Plain::tun`], for so many workers.
    ///
    /// # Errors
    /// As for [`Plain::tap_by`].
    pub fn tun_by(name: &str, workers: u32) -> Result<Vec<Plain>, Error> {
        Ok(Tap::open_tun_queues(name, workers)?
            .into_iter()
            .map(|tap| Plain::new(name, Way::Tap(tap)))
            .collect())
    }

    fn new(name: &str, way: Way) -> Plain {
        Plain { name: name.into(), way, frame: vec![0; LONGEST_FRAME], lost: 0 }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the namespace.
    pub fn index(&self) -> u32 {
        match &self.way {
            Way::Raw(socket) => socket.ifindex(),
            Way::Tap(tap) => tap.ifindex(),
        }
    }

    /// Hands over at most so many received packets, and returns their number.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, Error> {
        for taken in 0..most {
            let frame = &mut self.frame;
            let length = match &self.way {
                Way::Raw(socket) => socket.receive_into(frame),
                Way::Tap(tap) => tap.receive(frame),
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
            Way::Raw(socket) => socket.send(packet).is_ok(),
            Way::Tap(tap) => tap.send(packet).is_ok(),
        }
    }

    /// Waits until a packet is received, for at most so long.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn wait(&self, at_most: Duration) -> Result<(), Error> {
        let waited = match &self.way {
            Way::Raw(socket) => PacketSocket::wait(std::slice::from_ref(socket), at_most),
            Way::Tap(tap) => tap.wait(at_most),
        };
        Ok(waited?)
    }

    /// Packets that the kernel dropped before they came here; unknown for TAP interfaces.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn lost(&mut self) -> Result<Lost, Error> {
        if let Way::Raw(socket) = &self.way {
            self.lost += socket.take_lost()?;
        }
        Ok(Lost { no_room: self.lost, unfit: 0 })
    }
}
