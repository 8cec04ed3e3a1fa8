//! One queue of an interface: an AF_XDP socket, its rings, and the frames that it shares with the kernel.
//!
//! Half of the frames are for what is received, half for what is sent, so that neither can use up the other's. A frame is in
//! one place at a time: free, with the kernel to be filled, in the ring of what was received, or in that of what is sent.
#![allow(unsafe_code)] // The rings of crate `xdp` hand out frames by address; see each block.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use xdp::nic::NicIndex;
use xdp::slab::{HeapSlab, Slab};
use xdp::socket::{PollTimeout, SocketError, XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{RingConfigBuilder, Umem, WakableRings};

use crate::Lost;

/// Entries of each ring.
const RING: u32 = 2048;
/// Packets that are moved at a time.
const BURST: usize = 64;

/// Why a queue cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The interface has fewer.
    #[error("there is no such queue")]
    NoSuchQueue,
    /// Somebody else has it.
    #[error("another process receives its packets")]
    Taken,
    /// Memory for frames.
    #[error("no memory for frames: {0}")]
    Memory(io::Error),
    /// Anything else.
    #[error("{0}")]
    Socket(String),
}

impl Refused {
    fn socket(e: SocketError) -> Refused {
        match e {
            SocketError::Bind(e) if e.raw_os_error() == Some(libc::EINVAL) => Refused::NoSuchQueue,
            SocketError::Bind(e) if e.raw_os_error() == Some(libc::EBUSY) => Refused::Taken,
            SocketError::Bind(e) | SocketError::SocketCreation(e) => Refused::Socket(e.to_string()),
            e => Refused::Socket(e.to_string()),
        }
    }
}

/// A queue. Fields are dropped in order: the frames outlive what points to them.
pub(crate) struct Queue {
    /// Received and not yet handed over.
    waiting: HeapSlab,
    /// To be put into the ring.
    leaving: HeapSlab,
    rings: WakableRings,
    socket: XdpSocket,
    frames: Umem,
    /// Frames of packets to be sent that have not come back.
    unsent: usize,
}

impl Queue {
    /// Binds a socket to a queue of an interface.
    pub(crate) fn open(interface: u32, queue: u32) -> Result<Queue, Refused> {
        let frames = UmemCfgBuilder {
            frame_size: FrameSize::FourK,
            frame_count: 2 * RING,
            ..UmemCfgBuilder::default()
        };
        let frames = frames.build().map_err(|e| Refused::Socket(e.to_string()))?;
        let mut frames = Umem::map(frames).map_err(Refused::Memory)?;
        let rings =
            RingConfigBuilder { rx_count: RING, tx_count: RING, fill_count: RING, completion_count: RING };
        let rings = rings.build().map_err(|e| Refused::Socket(e.to_string()))?;
        let mut socket = XdpSocketBuilder::new().map_err(Refused::socket)?;
        let (mut rings, flags) = socket.build_wakable_rings(&frames, rings).map_err(Refused::socket)?;
        // SAFETY: the frames outlive the rings, by the order of the fields.
        unsafe { rings.fill_ring.enqueue(&mut frames, RING as usize, false) }.map_err(Refused::Memory)?;
        let socket = socket.bind(NicIndex::new(interface), queue, flags).map_err(Refused::socket)?;
        let slab = || HeapSlab::with_capacity(BURST);
        Ok(Queue { waiting: slab(), leaving: slab(), rings, socket, frames, unsent: 0 })
    }

    /// Hands over at most so many packets.
    pub(crate) fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let mut taken = 0;
        while taken < most {
            if self.waiting.is_empty() {
                let Some(ring) = &mut self.rings.rx_ring else { break };
                // SAFETY: what is received goes back to the frames below, or is dropped before them.
                if unsafe { ring.recv(&self.frames, &mut self.waiting) } == 0 {
                    break;
                }
            }
            let Some(packet) = self.waiting.pop_back() else { break };
            take(&packet);
            self.frames.free_packet(packet);
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: as in `open`.
            unsafe { self.rings.fill_ring.enqueue(&mut self.frames, taken, false) }?;
        } else {
            self.wake_receiver()?;
        }
        Ok(taken)
    }

    /// Copies a packet into a frame and puts it into the ring's way; `false` if there is no room.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        if self.leaving.available() == 0 {
            self.enqueue();
        }
        if self.leaving.available() == 0 || self.unsent >= RING as usize {
            return false;
        }
        // SAFETY: the packet goes into `leaving`, which is dropped before the frames.
        let Some(mut packet) = (unsafe { self.frames.alloc() }) else { return false };
        if packet.append(bytes).is_err() {
            self.frames.free_packet(packet);
            return false;
        }
        self.leaving.push_front(packet);
        self.unsent += 1;
        true
    }

    fn enqueue(&mut self) {
        if let Some(ring) = &mut self.rings.tx_ring {
            // SAFETY: the frames outlive the socket. Without a wake-up this does no system call, so cannot fail.
            let _ = unsafe { ring.send(&mut self.leaving, false) };
        }
    }

    /// Has the kernel send, and takes back frames of what it has sent.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.enqueue();
        // Where the kernel copies, it sends a few dozen packets a call.
        for _ in 0..RING {
            self.unsent -= self.rings.completion_ring.dequeue(&mut self.frames, RING as usize);
            if self.unsent == 0 || !self.wake_sender()? {
                break;
            }
            self.enqueue();
        }
        self.unsent -= self.rings.completion_ring.dequeue(&mut self.frames, RING as usize);
        Ok(())
    }

    /// Packets that are not sent yet.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Asks the kernel to send; whether it says that there is more.
    fn wake_sender(&self) -> io::Result<bool> {
        // SAFETY: no address is passed.
        let done = unsafe {
            libc::sendto(self.socket.raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        match busy(done)? {
            None => Ok(false),
            Some(errno) => Ok(errno == libc::EAGAIN),
        }
    }

    /// Tells a driver that went to sleep for want of frames that there are some.
    fn wake_receiver(&self) -> io::Result<()> {
        let fd = self.socket.raw_fd();
        let (null, from) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is passed.
        let done = unsafe { libc::recvfrom(fd, null, 0, libc::MSG_DONTWAIT, from, std::ptr::null_mut()) };
        busy(done).map(|_| ())
    }

    /// Waits for a packet.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<()> {
        if self.waiting.is_empty() {
            self.socket.poll_read(PollTimeout::new(Some(at_most)))?;
        }
        Ok(())
    }

    /// What the kernel has dropped.
    pub(crate) fn lost(&self) -> Lost {
        self.socket.statistics().map_or_else(
            |_| Lost::default(),
            |s| Lost {
                no_room: s.rx_ring_full + s.rx_fill_ring_empty_descs,
                unfit: s.rx_dropped + s.rx_invalid_descs,
            },
        )
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self` is.
        unsafe { BorrowedFd::borrow_raw(self.socket.raw_fd()) }
    }
}

/// What a wake-up says: nothing, that the kernel is busy and why, or that the interface cannot be used.
fn busy(done: isize) -> io::Result<Option<i32>> {
    if done >= 0 {
        return Ok(None);
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(errno @ (libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR)) => Ok(Some(errno)),
        _ => Err(e),
    }
}
